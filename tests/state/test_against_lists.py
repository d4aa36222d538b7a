"""Counts that are kept as aggregates equal those of a plain list of requests, whatever joins, leaves and steps."""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.catalog.layers import GroupKind, LayerGroup
from simserve.state.block_runs import NEVER, block_groups
from simserve.state.fair_share import TokenCounters
from simserve.state.kv_pool import KvPool
from simserve.state.layer_blocks import KEEP_ALL, KvGroup, LayerBlocks
from simserve.state.request import Request
from simserve.state.view import MemberViews, ReplicaView, least_busy
from tests.doubles import plain_blocks
from tests.oracle_layers import OracleLayers

SIZE = 4


def layout(rng: Random) -> LayerBlocks:
    """Draw up to two groups with a window or chunk, and perhaps states, beside a full group; perhaps with a draft."""
    most_chunk = rng.choice([None, rng.randint(1, 9)])
    draft = model(rng, rng.choice([2, 4, 8])) if rng.random() < 0.5 else []
    return LayerBlocks((*model(rng, SIZE), *draft), rng.randint(0, 2), most_chunk)


def model(rng: Random, size: int) -> list[KvGroup]:
    kinds: tuple[GroupKind, ...] = ("windowed", "chunked")
    windows = [LayerGroup(rng.choice(kinds), 1, rng.randint(1, 13)) for _ in range(rng.randint(0, 2))]
    return [*(KvGroup(size, rng.randint(1, 2), window) for window in windows), KvGroup(size, rng.randint(1, 2))]


def blocks(tokens: int, size: int = SIZE) -> int:
    """Return the blocks that so many tokens lie in."""
    return len({token // size for token in range(tokens)})


def filled(layers: LayerBlocks | None, n_tokens: int) -> int:
    """Return the blocks that all layers take for tokens."""
    groups = layers.groups if layers else (KvGroup(SIZE),)
    return sum(group.n_parts * blocks(n_tokens, group.tokens) for group in groups)


def kept(group: LayerGroup, n_tokens: int) -> set[int]:
    """Return the tokens, of n_tokens computed, that a later one attends, by asking each."""
    size, later = group.window or 0, range(n_tokens, n_tokens + 30)
    if group.kind == "chunked":
        return {t for t in range(n_tokens) if any(t // size == at // size for at in later)}
    return {t for t in range(n_tokens) if any(at - t < size for at in later)}


def held(layers: LayerBlocks, n_tokens: int) -> int:
    """Return the blocks of a request, counted one by one: a window frees a block when all of its tokens are."""
    total = filled(layers, n_tokens) + (layers.n_states if n_tokens else 0)
    for group in windows(layers):
        total -= group.n_parts * (min(kept(group.layers, n_tokens), default=n_tokens) // group.tokens)
    return total


def windows(layers: LayerBlocks) -> list[KvGroup]:
    """Return the groups with a window."""
    return [group for group in layers.groups if group.layers.window]


SEEDS = range(300)


def test_blocks_of_groups_are_those_of_their_tokens() -> None:
    for rng in map(Random, SEEDS):
        layers, n_tokens, n_next = layout(rng), rng.choice([0, rng.randint(0, 40)]), rng.randint(1, 12)
        assert layers.held(n_tokens) == held(layers, n_tokens)
        begun = filled(layers, n_tokens + n_next) - filled(layers, n_tokens) + (0 if n_tokens else layers.n_states)
        assert layers.begun(n_tokens, n_next) == begun
        parts = [(each.window, each.is_chunked, each.n_ids) for each in block_groups(layers, by_part=True)]
        kinds = [(group or KEEP_ALL, n_ids) for group, n_ids in OracleLayers(layers).kinds]
        assert parts == [(group.window or 0, group.kind == "chunked", n_ids) for group, n_ids in kinds]
        pool = KvPool(1000, layers)
        assert pool.blocks_for(n_tokens) == held(layers, n_tokens)
        assert pool.blocks_in_step(n_tokens, n_next) == held(layers, n_tokens) + begun
        assert pool.most_blocks(n_tokens) == layers.most(n_tokens) == OracleLayers(layers).most(n_tokens)


def test_no_cut_of_a_prompt_takes_more_than_the_most() -> None:
    for rng in map(Random, SEEDS):
        layers, n_tokens = layout(rng), rng.randint(1, 40)
        chunk = min(rng.randint(1, 9), layers.most_chunk or n_tokens)
        peaks = [held(layers, at) + layers.begun(at, min(chunk, n_tokens - at)) for at in range(0, n_tokens, chunk)]
        assert max(peaks) <= layers.most(n_tokens) <= filled(layers, n_tokens) + layers.n_states


def test_the_longest_request_fits_and_one_more_block_does_not() -> None:
    for rng in map(Random, SEEDS):
        layers, n_blocks = layout(rng), rng.randint(0, 60)
        longest, size = layers.longest(n_blocks), min(group.tokens for group in layers.groups)
        assert longest % size == 0
        assert longest == 0 or layers.most(longest) <= n_blocks
        assert longest >= 1 << 40 or layers.most(longest + size) > n_blocks


def test_the_next_drop_is_that_of_a_look_at_each_token() -> None:
    """A block leaves a window with the last of its tokens; it has an id if all of them have."""
    for rng in map(Random, SEEDS):
        layers, n_tokens, n_ids = layout(rng), rng.randint(0, 40), rng.randint(0, 12)
        n_named = n_ids * min(group.tokens for group in layers.groups)
        now = gone(layers, n_tokens, n_named)
        ahead = range(n_tokens + 1, max(n_tokens, n_named) + 30)
        first = next((at for at in ahead if gone(layers, at, n_named) != now), None)
        next_drop = min(group.next_drop(n_tokens, n_ids) for group in block_groups(layers))
        assert next_drop == (NEVER if first is None else first)


def gone(layers: LayerBlocks, n_tokens: int, n_named: int) -> int:
    """Return the blocks of the first n_named tokens that windows have left with n_tokens computed."""
    groups = windows(layers)
    blocks_left = [min(kept(group.layers, n_tokens), default=n_tokens) // group.tokens for group in groups]
    most = [n_named // group.tokens for group in groups]
    return sum(map(min, blocks_left, most))


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_neither_loses_nor_makes_blocks(seed: int) -> None:
    rng, pool = Random(seed), KvPool(50, plain_blocks(SIZE))
    used = reserved = freed = 0
    least = 50
    for _ in range(40):
        move, free = (
            rng.choice(["reserve", "take", "take at once", "claim", "drop", "keep", "release"]),
            50 - used - reserved,
        )
        n = rng.randint(0, {"claim": reserved, "drop": used, "keep": used, "release": used}.get(move, free))
        if move == "reserve":
            pool.reserve(n)
            reserved += n
        elif move == "take":
            pool.take(n, from_reserved=False)
            used += n
        elif move == "take at once":
            pool.take_at_once(n)
            pool.keep_within(rng.randint(0, 50))  # nothing is kept in free blocks
            used += n
        elif move == "claim":
            pool.take(n, from_reserved=True)
            used, reserved = used + n, reserved - n
        elif move == "drop":
            pool.drop(n, to_reserved=False)
            used, freed = used - n, freed + n
        elif move == "keep":
            pool.drop(n, to_reserved=True)
            used, reserved = used - n, reserved + n
        else:
            n_reserved = rng.randint(0, reserved)
            pool.release(*([n, n_reserved] if n_reserved else [n]))
            used, reserved, freed = used - n, reserved - n_reserved, freed + n + n_reserved
        least = min(least, 50 - used - reserved)
        assert (pool.used_blocks, pool.reserved_blocks, pool.free_blocks) == (used, reserved, 50 - used - reserved)
        assert (pool.least_free_blocks, pool.freed_blocks) == (least, freed)
        assert pool.blocks_in_step(used, n + 1) == blocks(used + n + 1)
        assert pool.blocks_for(n) == pool.most_blocks(n) == blocks(n)


@given(st.data(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([1.0, 2.0]))
def test_token_counters_are_those_of_single_tokens(data: st.DataObject, of_input: float, of_output: float) -> None:
    weights = {"a": 2.0, "b": 0.5}
    counters, served = TokenCounters(of_input, of_output, weights), dict.fromkeys("abc", 0.0)
    decoding: list[Request] = []
    for row in range(data.draw(st.integers(1, 20))):
        move = data.draw(st.sampled_from(["admit", "advance", "advance", "accept", "leave", "lift", "return"]))
        n, tenant = data.draw(st.integers(1, 9)), data.draw(st.sampled_from("abc"))
        request = Request(row, 0, prompt_tokens=n, max_tokens=9)
        request.tenant = tenant
        weight = weights.get(tenant, 1.0)
        if move == "admit":
            assert counters.cost(request) == of_input * n / weight
            counters.admit(request)
            if n > 4:  # others have one token only, which `leave` charges
                counters.join(request)
                decoding.append(request)
            else:
                counters.leave(request)
            served[tenant] += (of_input * n + of_output) / weight
        elif move == "return":  # a preempted request was charged before
            request.n_preemptions = 1
            assert counters.cost(request) == 0
            counters.admit(request)
            counters.join(request, 0)
            decoding.append(request)
        elif move == "advance":
            counters.advance(n)
            for each in decoding:
                served[each.tenant] += n * of_output / weights.get(each.tenant, 1.0)
        elif move == "lift":
            counters.lift(tenant, float(n))
            served[tenant] = max(served[tenant], n)
        elif decoding:
            each = decoding[n % len(decoding)]
            if move == "accept":
                counters.accept(each, n)
                served[each.tenant] += n * of_output / weights.get(each.tenant, 1.0)
            else:
                counters.leave(each)
                decoding.remove(each)
        for name in "abc":
            assert counters[name] == pytest.approx(served[name], abs=1e-9)
            pace = sum(each.tenant == name for each in decoding) * of_output / weights.get(name, 1.0)
            assert counters.per_step(name) == pytest.approx(pace)


@dataclass
class Found:
    """A prefix cache that finds some tokens, and says how many of their blocks are idle."""

    n_tokens: int
    n_idle: int

    def hit(self, request: Request) -> tuple[int, int]:
        return self.n_tokens, self.n_idle

    def missing(self, request: Request) -> int | None:
        return 7


@pytest.mark.parametrize("seed", SEEDS)
def test_a_view_counts_blocks_as_lists_do(seed: int) -> None:
    rng = Random(seed)
    layers = layout(rng) if rng.random() < 0.8 else None
    prompt, emitted, n_found, n_tokens = rng.randint(1, 30), rng.randint(0, 6), rng.randint(0, 7), rng.randint(1, 30)
    most, n_states = OracleLayers(layers or plain_blocks(SIZE)).most, layers.n_states if layers else 0
    sizes = [group.tokens for group in layers.groups] if layers else [SIZE]
    request = Request(0, 0, prompt, 9)
    request.emitted_tokens = emitted
    n_found = min(n_found, (prompt - 1) // max(sizes)) * max(sizes)
    request.finder = Found(n_found, 3)
    view = ReplicaView((), (), (), 100, SIZE, 99, layers=layers, finder=request.finder)
    left = prompt + emitted - n_found
    assert request.prefill_left_tokens == left
    assert request.is_new
    assert view.blocks_to_admit(request) == most(n_found + left, n_found) + 3
    assert view.blocks_to_admit(request, n_tokens) == most(n_found + n_tokens, n_found) + 3
    assert view.blocks_for(n_tokens) == most(n_tokens)
    inside = view.tokens_in(n_tokens)
    assert inside % min(sizes) == 0
    assert filled(layers, inside) <= n_tokens < filled(layers, inside + min(sizes))
    of_hit = view.tokens_of_hit(request)
    assert of_hit % min(sizes) == 0
    assert filled(layers, of_hit - min(sizes)) < 3 + n_states <= filled(layers, of_hit)
    assert view.missing_block(request) == 7
    request.finder, view.finder = None, None
    assert (view.missing_block(request), request.idle_hit_blocks, request.prefill_left_tokens) == (
        None,
        0,
        prompt + emitted,
    )
    assert view.blocks_to_admit(request, n_tokens) == most(n_tokens)
    request.prefilled_tokens = n_found
    begun = filled(layers, n_found + n_tokens) - filled(layers, n_found) + (0 if n_found else n_states)
    assert view.blocks_for_chunk(request, n_tokens) == begun


def test_a_new_request_holds_nothing() -> None:
    request = Request(3, 5, 7, 9)
    counts = (request.prefilled_tokens, request.emitted_tokens, request.padding_tokens, request.reserved_blocks)
    assert (*counts, request.n_preemptions, request.preempted_at_ps, request.priority) == (0,) * 7


def test_a_view_of_which_nothing_is_said_is_of_an_idle_replica_at_the_start() -> None:
    view = ReplicaView((), (), (), 100, SIZE, 99)
    assert (view.now_ps, view.n_decoding, view.n_running, view.free_blocks, view.just_preempted) == (0, 0, 0, 0, False)
    assert view.decode_tokens == 1


@dataclass
class Load:
    """A view of a member that only counts its requests."""

    id: int
    n_outstanding: int


@pytest.mark.parametrize("seed", range(30))
def test_the_least_busy_is_that_of_a_look_at_all(seed: int) -> None:
    rng = Random(seed)
    loads = [Load(100 + 3 * place, rng.randint(0, 4)) for place in range(rng.randint(1, 40))]
    views = MemberViews(loads)  # type: ignore[arg-type]
    watched: list[int] = []
    views.watch = lambda: watched.append(1)
    for _ in range(150):
        numbers = [load.n_outstanding for load in loads]
        assert views.least_busy() == least_busy(views) == least_busy(loads) == numbers.index(min(numbers))  # type: ignore[arg-type]
        for load in rng.sample(loads, rng.randint(0, len(loads))):
            load.n_outstanding = max(0, load.n_outstanding + rng.choice([-2, -1, 1, 1]))
            views.fewer(load.id, load.n_outstanding)
        if rng.random() < 0.1:
            views.forget()
    assert watched
