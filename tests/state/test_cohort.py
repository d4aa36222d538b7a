"""Cohorts hold, count and finish what a plain list of their members does, after any joins, leaves and steps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from simserve.catalog.layers import GroupKind, LayerGroup
from simserve.columns.live import Live
from simserve.columns.running import Running, SpeculativeRunning
from simserve.state.acceptance import Acceptance
from simserve.state.cohort import NO_FINISH, Cohort
from simserve.state.grouped_cohort import GroupedCohort
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.state.request import DECODE, Request
from simserve.state.speculative_cohort import SpeculativeCohort
from tests.doubles import plain_blocks

SIZE = 4
ENDLESS = 10**6
"""Steps of a member that never finishes."""


@dataclass
class Member:
    """A decoding request, with what it stores before each step."""

    request: Request
    stored: list[int]
    n_steps: int
    """Steps to its end."""
    emitted: int
    """Tokens produced before it joined."""
    n_done: int = 0
    """Steps done."""

    def at(self, n_steps: int = 0) -> int:
        """Return its tokens in the cache after n_steps more."""
        return self.stored[min(self.n_done + n_steps, len(self.stored) - 1)]

    @property
    def ends(self) -> bool:
        """Whether it ever finishes."""
        return self.n_steps < ENDLESS

    @property
    def left(self) -> int:
        """Steps to its end."""
        return self.n_steps - self.n_done


@dataclass
class Members:
    """A cohort as a plain list; every count is a sum over it."""

    cohort: Cohort
    layers: LayerBlocks
    n_slots: int = 1
    has_ids: bool = False
    step: int = 0
    all: list[Member] = field(default_factory=list)

    def slots(self, each: Member, n_steps: int) -> int:
        """Return the tokens that a member has blocks for in a step that comes after n_steps."""
        slots = each.at(n_steps) + self.n_slots
        if isinstance(self.cohort, SpeculativeCohort):
            slots = min(slots, each.request.prompt_tokens + each.request.max_tokens)
        return slots

    def whole(self, n_tokens: int) -> int:
        """Return the blocks for tokens if no window freed any."""
        total = self.layers.n_states
        for group in self.layers.groups:
            total += group.n_parts * len({token // group.tokens for token in range(n_tokens)})
        return total

    def held(self, each: Member, n_steps: int) -> int:
        """Return the blocks of a member in a step that comes after n_steps."""
        return self.whole(self.slots(each, n_steps)) - int(self.layers.dropped(each.at(n_steps)))

    def held_now(self, each: Member) -> int:
        """Return the blocks of a member between two steps: those of its last step that windows did not free since."""
        slots = self.slots(each, -1) if each.n_done else each.at()
        return self.whole(slots) - int(self.layers.dropped(each.at()))

    def freed(self, n_steps: int) -> int:
        """Return the blocks that windows free at the end of the step that comes after n_steps."""
        dropped = self.layers.dropped
        return sum(dropped(each.at(n_steps + 1)) - dropped(each.at(n_steps)) for each in self.all)

    def keys(self, n_steps: int = 0) -> int:
        """Return the keys of the step that comes after n_steps."""
        return sum(each.at(n_steps) + 1 for each in self.all)

    def window_keys(self, n_steps: int = 0) -> list[int]:
        """Return the keys that lie in windows, by window."""
        return [sum(group.layers.keys(each.at(n_steps) + 1) for each in self.all) for group in self.layers.windows]

    def growth(self, n_steps: int) -> int:
        """Return the blocks held more in the last of n_steps."""
        return sum(self.held(each, n_steps - 1) - self.held_now(each) for each in self.all) if n_steps else 0

    def next_finish(self) -> int:
        """Return the step in which the next member finishes."""
        return min((self.step + each.left for each in self.all if each.ends), default=NO_FINISH)

    def leaves_ids(self, each: Member, n_steps: int) -> bool:
        """Return whether a window leaves a block with an id in the step that comes after n_steps."""
        n_tokens = ids_of(each.request) * self.layers.id_tokens
        for group in self.layers.windows:
            before, after = (group.layers.first_kept(each.at(n)) // group.tokens for n in (n_steps, n_steps + 1))
            if before < after and (before + 1) * group.tokens <= n_tokens:
                return True
        return False

    def next_drop(self) -> int:
        """Return the step in which the next id leaves a window."""
        steps = [
            n
            for each in self.all
            for n in range(min(len(each.stored) - 1 - each.n_done, 80))
            if self.leaves_ids(each, n)
        ]
        return min((self.step + n + 1 for n in steps), default=NO_FINISH) if self.has_ids else NO_FINISH

    def next_bend(self) -> int:
        """Return the step in which the next member fills a window, or goes on to another chunk."""
        ahead = [NO_FINISH]
        for each in self.all:
            for group in self.layers.windows:
                size = group.layers.window or 0
                if group.layers.kind == "chunked":
                    ahead.append(self.step + size - each.at() % size)
                elif each.at() + 1 < size:
                    ahead.append(self.step + size - 1 - each.at())
        return min(ahead)

    def within(self, free_blocks: int, most: int) -> int:
        """Return the most steps that fit into free blocks."""
        n = 0
        while n < most and self.growth(n + 1) <= free_blocks:
            n += 1
        return n


def layers_of(rng: Random, n_windows: int) -> LayerBlocks:
    """Draw groups with a window or chunk beside a full group."""
    kinds: tuple[GroupKind, ...] = ("windowed", "chunked")
    windows = [LayerGroup(rng.choice(kinds), 1, rng.randint(1, 13)) for _ in range(n_windows)]
    groups = [KvGroup(SIZE, rng.randint(1, 2), window) for window in windows]
    return LayerBlocks((*groups, KvGroup(SIZE, rng.randint(0 if windows else 1, 2))), rng.choice([0, 0, 1, 2]))


def ids_of(request: Request) -> int:
    """Return how many blocks of a request have an id."""
    return len(request.chains[SIZE])


class Places:
    """Requests in columns that a cohort counts, joining and leaving as objects; goes before a kind of `Running`."""

    def __init__(self, cohort: Cohort, has_ids: bool) -> None:
        decode = SimpleNamespace(windows=cohort.window_keys, is_uneven=isinstance(cohort, SpeculativeCohort))
        named = SimpleNamespace(named=lambda place: self.live.requests[place] if has_ids else None)
        self.live: Live = Live()
        self.counts = cohort
        self.n_kept = 0
        """Blocks beyond its stored tokens of the request that left last."""
        replica = SimpleNamespace(id=0, cohort=cohort, decode=decode, pool=self)
        super().__init__(replica, self.live, named)  # type: ignore[call-arg]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.counts, name)

    def enter(self, request: Request, n_left: int) -> None:
        place = self.live.add(request.row, request.prompt_tokens, n_left, request.max_tokens)
        self.live.show(place, request)
        live, request.phase = self.live, DECODE
        live.prefilled_tokens[place], live.padding_tokens[place] = request.prefilled_tokens, request.padding_tokens
        live.emitted_tokens[place], live.join_step[place] = request.emitted_tokens, self.counts.step
        live.replica[place] = 0
        self.join(place, n_left)

    def quit(self, request: Request, stop: Callable[[int], int]) -> int:
        place, self.n_kept = self.live.place_of(request), 0
        n_tokens = stop(place)
        request.emitted_tokens = self.live.emitted_tokens[place]
        self.live.remove(place)
        return n_tokens

    def leave(self, request: Request) -> int:
        return self.quit(request, self.stop_decoding)

    def drop(self, request: Any, _: bool = False) -> int:
        """Let a request leave before its end; as a pool, note blocks that become free."""
        if isinstance(request, Request):
            return self.quit(request, super().drop)  # type: ignore[misc]
        self.n_kept = request
        return 0

    def forget(self, request: Request) -> None:
        self.cancel(self.live.place_of(request))

    def count_first(self, request: Request) -> None:
        super().count_first(place := self.live.place_of(request))  # type: ignore[misc]
        request.emitted_tokens = self.live.emitted_tokens[place]

    def pop_finished(self) -> list[Request]:
        return [self.live.requests[place] for place in self.finished[: super().pop_finished()]]  # type: ignore[misc]

    def stored_tokens(self, request: Request) -> int:
        return super().stored_tokens(self.live.place_of(request))  # type: ignore[misc, no-any-return]


class Played(Places, Running):  # type: ignore[misc]
    """With a token a step."""

    def stored_at(self, request: Request, step: int) -> int:
        return self.live.kv_offset[self.live.place_of(request)] + step

    def step_with(self, request: Request, n_tokens: int) -> int:
        return n_tokens - self.live.kv_offset[self.live.place_of(request)]


class PlayedCourses(Places, SpeculativeRunning):  # type: ignore[misc]
    """With proposals."""


def plain(rng: Random) -> Members:
    """Return an empty cohort of layers that keep all."""
    return Members(Cohort(SIZE), plain_blocks(SIZE))


def grouped(rng: Random) -> Members:
    """Return an empty cohort of layers with windows; those have ids or none."""
    layers, has_ids = layers_of(rng, rng.randint(1, 2)), rng.random() < 0.5
    return Members(GroupedCohort(layers, ids_of if has_ids else None), layers, has_ids=has_ids)


def speculative(rng: Random) -> Members:
    """Return an empty cohort with proposals."""
    layers, has_ids = layers_of(rng, rng.randint(0, 2)), rng.random() < 0.5
    if rng.random() < 0.3:
        size, draft = rng.choice([2, 4, 8]), layers_of(rng, rng.randint(0, 1)).groups
        layers = replace(layers, groups=(*layers.groups, *(replace(group, tokens=size) for group in draft)))
    rates = tuple(rng.random() for _ in range(rng.randint(0, 3)))
    n_slots = len(rates) + rng.randint(1, 2)
    acceptance = Acceptance(rates, rng.randrange(9))
    cohort = SpeculativeCohort(layers, acceptance, n_slots, n_ids=ids_of if has_ids else None)
    return Members(cohort, layers, n_slots, has_ids)


SEEDS = range(40)


@pytest.mark.parametrize("kind", [plain, grouped, speculative])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_cohort_counts_what_its_members_do(
    kind: Callable[[Random], Members], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simserve.state.speculative_cohort.FIRST_STEPS", 8)  # it grows
    rng = Random(seed)
    members = kind(rng)
    n_proposed = len(members.cohort._acceptance.rates) if isinstance(members.cohort, SpeculativeCohort) else 0
    assert (members.cohort.n_tokens, members.cohort.n_slots) == (n_proposed + 1, members.n_slots)
    walk = Walk(rng, members)
    for _ in range(40):
        rng.choice([walk.join, walk.join, walk.leave, walk.advance, walk.advance, walk.advance])()
        walk.check()


class Walk:
    """Random joins, leaves and steps of a cohort and its list."""

    def __init__(self, rng: Random, members: Members) -> None:
        self.rng, self.members, self.cohort = rng, members, members.cohort
        speculates = isinstance(members.cohort, SpeculativeCohort)
        self.played: Any = (PlayedCourses if speculates else Played)(members.cohort, members.has_ids)
        self.n_requests = 0
        self.gone: list[Request] = []
        """Requests that left before their end, which may come back."""
        self.resumed: dict[Request, int] = {}

    def join(self) -> None:
        """Let a request join, new or come back."""
        rng, members, cohort = self.rng, self.members, self.cohort
        speculates = isinstance(cohort, SpeculativeCohort)
        if self.gone and rng.random() < 0.3:
            request = self.gone.pop(rng.randrange(len(self.gone)))
        else:
            request = Request(self.n_requests, 0, rng.randint(1, 20), rng.randint(1, 40))
            self.n_requests += 1
        request.chains = {SIZE: range(rng.randint(0, 12))}
        request.prefilled_tokens = request.prompt_tokens + request.emitted_tokens - (request.emitted_tokens > 0)
        request.padding_tokens = rng.randint(0, 3) if type(cohort) is Cohort else 0
        n_left = max(1, request.max_tokens - request.emitted_tokens)
        n_left = rng.choice([n_left, rng.randint(1, n_left)])
        stored = request.prefilled_tokens + request.padding_tokens
        ends = speculates or rng.random() < 0.8
        if isinstance(cohort, SpeculativeCohort):
            first = self.resumed.get(request, 0)
            produced = cohort._acceptance.tokens_before(request.row, first, n_left).tolist()
            ahead = [stored + min(n, n_left) for n in produced]
            ahead = ahead[: ahead.index(stored + n_left) + 1]  # no window moves beyond its end
        else:
            ahead = [stored + n for n in range(500)]
        self.played.enter(request, n_left if ends else 0)
        assert request.phase is DECODE
        n_steps = ahead.index(stored + n_left) if ends else ENDLESS
        members.all.append(Member(request, ahead, n_steps, request.emitted_tokens))

    def leave(self) -> None:
        """Let a member leave before its end; its first step may be counted already."""
        rng, members, cohort = self.rng, self.members, self.cohort
        if not members.all:
            return
        each = members.all.pop(rng.randrange(len(members.all)))
        if each.ends and rng.random() < 0.3:
            self.played.forget(each.request)
            assert cohort.next_finish_step == members.next_finish()
            assert self.played.leave(each.request) == each.at()
        else:
            assert (self.played.drop if each.ends else self.played.leave)(each.request) == each.at()
        self.resumed[each.request] = self.resumed.get(each.request, 0) + each.n_done
        self.has_left(each)
        self.gone.append(each.request)

    def has_left(self, each: Member) -> None:
        """Compare what a member takes along."""
        assert each.request.emitted_tokens == each.emitted + each.at() - each.stored[0]
        n_kept = self.members.held_now(each) - self.members.layers.held(each.at()) if each.n_done else 0
        assert self.played.n_kept == n_kept

    def advance(self) -> None:
        """Step, at most to the next event, and let finished members leave."""
        rng, members, cohort = self.rng, self.members, self.cohort
        if not members.all:
            return
        most = min(members.next_finish(), members.next_drop()) - members.step
        if isinstance(cohort, GroupedCohort):
            most = min(most, members.next_bend() - members.step)
        most = min(most, 60)
        self.look_ahead(most)
        n_steps = rng.randint(1, most)
        if rng.random() < 0.3:
            n_steps = 1
            for each in members.all:
                if not each.n_done and rng.random() < 0.5:  # counted with the step before it joined
                    self.played.count_first(each.request)
                    assert each.request.emitted_tokens == each.emitted + each.at(1) - each.at()
        n_begun = members.growth(n_steps) + sum(members.freed(n) for n in range(n_steps - 1))
        due = [
            (each.request, each.at(n_steps - 1), each.at(n_steps))
            for each in members.all
            if self.is_due(each, n_steps - 1)
        ]
        n_due = sum(self.dropped(each, n_steps) for each in members.all if self.is_due(each, n_steps - 1))
        assert cohort.advance(n_steps) == n_begun
        assert (cohort.drops.due if cohort.drops is not None else []) == due
        assert cohort.n_dropped == sum(members.freed(n) for n in range(n_steps)) - n_due
        members.step += n_steps
        for each in members.all:
            each.n_done += n_steps
            assert self.played.stored_at(each.request, cohort.step - 1) == each.at(-1)
        assert cohort.kv_tokens == members.keys()
        finished = [each for each in members.all if each.ends and not each.left]
        assert self.played.pop_finished() == [each.request for each in finished]
        for each in finished:
            members.all.remove(each)
            assert self.played.leave(each.request) == each.at()
            self.has_left(each)

    def is_due(self, each: Member, n_steps: int) -> bool:
        return self.members.has_ids and self.members.leaves_ids(each, n_steps)

    def dropped(self, each: Member, n_steps: int) -> int:
        dropped = self.members.layers.dropped
        return int(dropped(each.at(n_steps)) - dropped(each.at(n_steps - 1)))

    def look_ahead(self, most: int) -> None:
        """Compare what the cohort says about steps to come."""
        rng, members, cohort = self.rng, self.members, self.cohort
        for n in {1, rng.randint(1, most), most}:
            ends_in_chunk = isinstance(cohort, GroupedCohort) and n == most  # a chunk's end is counted when it is there
            freed = sum(members.freed(i) for i in range(n))
            assert cohort.blocks_to_grow(n) == members.growth(n)
            assert cohort.blocks_begun(n) == members.growth(n) + sum(members.freed(i) for i in range(n - 1))
            assert cohort.blocks_dropped(n) == freed or ends_in_chunk
            more = {each.request: each.at(n) - each.at() - n for each in members.all}
            assert dict(cohort.accepted(n)) == {request: n_more for request, n_more in more.items() if n_more}
            if isinstance(cohort, SpeculativeCohort):
                held = [members.growth(i + 1) - members.freed(i) for i in range(n)]
                assert cohort.keys_ahead(n).tolist() == [members.keys(i) for i in range(n)]
                assert cohort.keys_of_next() == members.keys()
                assert (cohort.held_ahead(n) - cohort.held_blocks).tolist() == held
                windows = [members.window_keys(i) for i in range(n)] if members.layers.windows else []
                assert cohort.window_keys_ahead(n).T.tolist() == (windows or [[]] * n)
                assert cohort.tokens_of_next() == sum(each.at(1) - each.at() for each in members.all)
        assert cohort.blocks_to_grow(0) == 0
        assert cohort.blocks_dropped(0) == 0
        assert cohort.blocks_of_next() == members.growth(1)
        for free_blocks in (0, rng.randint(0, 12), rng.randint(0, 40)):
            within, n = members.within(free_blocks, most), cohort.steps_within(free_blocks)
            assert n == within or n > within == most
            if isinstance(cohort, GroupedCohort):
                assert members.step + n <= min(cohort.next_bend_step, members.next_drop())

    def check(self) -> None:
        """Compare the counts between two steps."""
        members, cohort = self.members, self.cohort
        assert (cohort.n, cohort.step) == (len(members.all), members.step)
        assert cohort.kv_tokens == members.keys()
        assert cohort.window_keys == members.window_keys()
        assert cohort.next_finish_step == members.next_finish()
        if isinstance(cohort, GroupedCohort):
            assert cohort.next_bend_step == members.next_bend()
            if members.next_bend() > members.step + 1:
                then = [now + n for now, n in zip(cohort.window_keys, cohort.growth, strict=True)]
                assert then == members.window_keys(1)
        elif isinstance(cohort, SpeculativeCohort):
            assert (NO_FINISH if cohort.drops is None else cohort.drops.next_step) == members.next_drop()
            assert cohort.held_blocks == sum(map(members.held_now, members.all))
        for each in members.all:
            assert self.played.stored_tokens(each.request) == each.at()
            for n_steps in {1, max(1, min(each.left, 60))}:
                if each.at(n_steps) > each.at():
                    assert self.played.step_with(each.request, each.at(n_steps)) == members.step + n_steps


def test_the_next_finish_is_known_when_most_finishes_are_canceled() -> None:
    cohort = SpeculativeCohort(plain_blocks(SIZE), Acceptance(()), 1)
    played = PlayedCourses(cohort, has_ids=False)
    requests = {n_left: Request(n_left, 0, 1, 10) for n_left in (1, 5, 2, 6, 7, 3, 4)}
    for n_left, request in requests.items():
        played.enter(request, n_left)
    for n_left in (6, 7, 3, 1):
        played.drop(requests[n_left])
    assert cohort.next_finish_step == 2
    cohort.advance(4)
    assert played.pop_finished() == [requests[2], requests[4]]
