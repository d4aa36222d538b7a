"""Routers, splitters and admission policies while members come and go."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random as Stream

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.routers.base import Router
from simserve.routers.least_kv import LeastKv
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.power_of_two import PowerOfTwo
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.routers.session_affinity import SessionAffinity
from simserve.routers.weighted import Weighted
from simserve.splitters.base import Splitter
from simserve.splitters.load import LoadSplitter
from simserve.splitters.mixed import Mixed
from simserve.splitters.prompt_length import PromptLength
from simserve.state.request import Request
from simserve.state.view import MemberViews, least_busy
from tests.effort import examples

BLOCK_TOKENS = 4
PROMPT_TOKENS = 16


@dataclass(eq=False)
class Member:
    """A replica as a router sees it. All its numbers are multiples of powers of two, so that scores are exact."""

    id: int
    n_outstanding: int = 0
    n_waiting: int = 0
    n_held: int = 0
    total_blocks: int = 64
    block_size: int = BLOCK_TOKENS
    block_tokens: int | None = BLOCK_TOKENS
    cached: set[int] = field(default_factory=set)

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def held_blocks(self) -> int:
        return self.n_held

    def found_tokens(self, request: Request) -> int:
        return n_leading(request, self.cached) * BLOCK_TOKENS


def n_leading(request: Request, blocks: set[int]) -> int:
    """Return how many blocks of a prompt lie in a cache, from the first on."""
    chain = request.chains[BLOCK_TOKENS]
    return next((n for n, block in enumerate(chain) if block not in blocks), len(chain))


@dataclass
class Plain:
    """A plain router: it keeps everything that was ever picked, and looks through all of it."""

    stream: Stream
    history: list[tuple[Request, int]] = field(default_factory=list)

    def last_id(self, request: Request) -> int | None:
        """Return the id of the member that had the session's last request."""
        ids = [member for each, member in self.history if each.session == request.session != ""]
        return ids[-1] if ids else None

    def sent_tokens(self, request: Request, member: Member) -> int:
        """Return the leading prompt tokens that were sent to a member before."""
        chains = [each.chains[BLOCK_TOKENS] for each, to in self.history if to == member.id]
        return n_leading(request, {block for chain in chains for block in chain}) * BLOCK_TOKENS


Reference = Callable[[Plain, Request, list[Member]], Member]


def least(members: list[Member]) -> Member:
    return min(members, key=lambda member: member.n_outstanding)


def in_turn(plain: Plain, request: Request, members: list[Member]) -> Member:
    last = plain.history[-1][1] if plain.history else -1
    for place, member in enumerate(members):
        if member.id == last:
            return [*members, *members][place + 1]
    return next((member for member in members if member.id > last), members[0])


def emptiest(plain: Plain, request: Request, members: list[Member]) -> Member:
    return min(members, key=lambda member: (member.n_held / member.total_blocks, member.n_outstanding))


def better_of_two(plain: Plain, request: Request, members: list[Member]) -> Member:
    if len(members) == 1:
        return members[0]
    first = members[plain.stream.randrange(len(members))]
    others = [member for member in members if member is not first]
    second = others[plain.stream.randrange(len(others))]
    return second if second.n_outstanding < first.n_outstanding else first


def of_session(plain: Plain, request: Request, members: list[Member]) -> Member:
    limit = least(members).n_outstanding + 2
    stays = [each for each in members if each.id == plain.last_id(request) and each.n_outstanding <= limit]
    return stays[0] if stays else least(members)


def best_hit(found: Callable[[Plain, Request, Member], int]) -> Reference:
    def pick(plain: Plain, request: Request, members: list[Member]) -> Member:
        near = [member for member in members if member.n_outstanding <= least(members).n_outstanding + 2]
        most = max(found(plain, request, member) for member in near)
        hits = [member for member in near if found(plain, request, member) == most]
        return least(hits if most >= 0.3 * PROMPT_TOKENS else members)

    return pick


def best_score(found: Callable[[Plain, Request, Member], int]) -> Reference:
    def share(number: int, numbers: list[int]) -> float:
        spread = max(numbers) - min(numbers)
        return (max(numbers) - number) / spread if spread else 1.0

    def pick(plain: Plain, request: Request, members: list[Member]) -> Member:
        def score(member: Member) -> float:
            return (
                2.0 * share(member.n_waiting, [each.n_waiting for each in members])
                + 1.0 * share(member.n_outstanding, [each.n_outstanding for each in members])
                + 2.0 * (1 - member.n_held / member.total_blocks)
                + 4.0 * found(plain, request, member) / PROMPT_TOKENS
                + 1.0 * (member.id == plain.last_id(request))
            )

        return min(members, key=lambda member: (-score(member), member.n_outstanding))

    return pick


def cached(plain: Plain, request: Request, member: Member) -> int:
    return member.found_tokens(request)


ROUTERS: dict[str, tuple[Callable[[], Router], Reference]] = {
    "round_robin": (RoundRobin, in_turn),
    "random": (Random, lambda plain, request, members: members[plain.stream.randrange(len(members))]),
    "least_outstanding": (LeastOutstanding, lambda plain, request, members: least(members)),
    "least_kv": (LeastKv, emptiest),
    "power_of_two": (PowerOfTwo, better_of_two),
    "session_affinity": (lambda: SessionAffinity(2), of_session),
    "prefix_affinity": (lambda: PrefixAffinity(0.3, 2), best_hit(cached)),
    "prefix_affinity own_sends": (lambda: PrefixAffinity(0.3, 2, "own_sends"), best_hit(Plain.sent_tokens)),
    "weighted": (lambda: Weighted(2.0, 1.0, 2.0, 4.0, 1.0, "exact"), best_score(cached)),
    "weighted own_sends": (lambda: Weighted(2.0, 1.0, 2.0, 4.0, 1.0), best_score(Plain.sent_tokens)),
}


def request_of(session: str, branches: Sequence[int]) -> Request:
    """Return a request with a chain of block ids; equal branches from the first on are the same blocks."""
    request = Request(row=0, arrival_ps=0, prompt_tokens=PROMPT_TOKENS, max_tokens=1)
    request.session = session
    chain = [int("1" + "".join(map(str, branches[: n + 1]))) for n in range(len(branches))]
    request.chains = {BLOCK_TOKENS: chain}
    return request


def draw_loads(stream: Stream, members: list[Member]) -> None:
    for member in members:
        member.n_outstanding, member.n_waiting = stream.choice((0, 2, 4)), stream.choice((0, 2, 4))
        member.n_held = 16 * stream.randrange(5)
        member.cached = set(draw_request(stream).chains[BLOCK_TOKENS][: stream.randrange(5)])


def draw_request(stream: Stream) -> Request:
    return request_of(stream.choice(("", "a", "b")), [stream.randrange(2) for _ in range(4)])


def change(stream: Stream, members: list[Member], next_id: int) -> None:
    """Let members join and leave; of two that join, the second was ordered first, but took longer to be ready."""
    if stream.random() < 0.5 and len(members) > 1:
        del members[stream.randrange(len(members))]
    if stream.random() < 0.5 and len(members) < 6:
        members += stream.choice(([Member(next_id)], [Member(next_id + 1), Member(next_id)]))


@pytest.mark.parametrize("name", ROUTERS)
@settings(max_examples=examples(300))
@given(st.integers(1, 4), st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.7]))
def test_a_router_picks_as_a_plain_one_while_members_come_and_go(name: str, n: int, seed: int, change_p: float) -> None:
    """With a change_p of 0 the fleet is fixed."""
    make, reference = ROUTERS[name]
    router, plain, stream = make(), Plain(Stream("draws")), Stream(seed)
    router.begin(Stream("draws"))
    members = [Member(number) for number in range(n)]
    for step in range(1, 25):
        if stream.random() < change_p:
            change(stream, members, next_id=10 * step)
        draw_loads(stream, members)
        request = draw_request(stream)
        expected = reference(plain, request, members)
        assert router.pick(request, tuple(members)) is expected
        plain.history.append((request, expected.id))


@settings(max_examples=examples(200))
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3), st.booleans()), max_size=60))
def test_the_least_busy_is_found_as_by_a_look_at_all(n: int, changes: list[tuple[int, int, bool]]) -> None:
    """Members say only when they have fewer requests, and only after the first question."""
    members = [Member(10 + place) for place in range(n)]
    views, is_watched = MemberViews(members), False

    def watch() -> None:
        nonlocal is_watched
        is_watched = True

    views.watch = watch
    for place, n_more, asks in changes:
        member = members[place % n]
        member.n_outstanding = max(0, member.n_outstanding + n_more)
        if n_more < 0 and is_watched:
            views.fewer(member.id, member.n_outstanding)
        if asks:
            assert members[views.least_busy()] is members[least_busy(views)] is least(members)


def test_a_look_at_all_after_changes_of_which_nobody_told() -> None:
    members = [Member(0, 3), Member(1, 2)]
    views = MemberViews(members)
    assert views.least_busy() == 1
    members[0].n_outstanding = 1
    views.forget()
    assert views.least_busy() == 0


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_forgets_members_that_are_gone(name: str) -> None:
    router = ROUTERS[name][0]()
    router.begin(Stream("a test"))
    n_bytes = []
    for first in range(300):
        members = [Member(first + place) for place in range(3)]
        for session in ("", "a", "b"):
            router.pick(request_of(session, [0, 1, 1, 0]), members)
        n_bytes.append(len(pickle.dumps(router)))
    assert max(n_bytes[20:]) <= max(n_bytes[:20]) + 32  # larger ids are a few bytes longer


@pytest.mark.parametrize(
    ("splitter", "where"),
    [
        (LoadSplitter(max_outstanding=3), ("local", "apart")),
        (LoadSplitter(max_outstanding=3, min_prompt_tokens=5), ("local", "apart")),
        (Mixed(max_prefill_waiting=2, max_decode_kv_frac=0.5), ("local", "prefill")),
        (PromptLength(min_prompt_tokens=5), ("apart", "apart")),
    ],
)
def test_a_splitter_decides_while_a_side_has_no_member(splitter: Splitter, where: tuple[str, str]) -> None:
    request = request_of("", [0, 0, 0, 0])
    assert splitter.where(request, (), (Member(0),)) == where[0]
    assert splitter.where(request, (Member(0),), ()) == where[1]
