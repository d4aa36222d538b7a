"""Counts that are kept as aggregates equal those of a plain list of requests, whatever joins, leaves and steps."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.catalog.specs import LayerGroup
from simserve.state.cohort import Cohort
from simserve.state.fair_share import TokenCounters
from simserve.state.grouped_cohort import GroupedCohort
from simserve.state.kv_pool import KvPool
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import Request

SIZE = 4


@dataclass
class Member:
    """A decoding request: tokens stored, and how many it had when it joined."""

    request: Request
    stored: int
    joined: int


@st.composite
def layouts(draw: st.DrawFn) -> LayerBlocks:
    """Draw up to two groups with a window or chunk, and perhaps states, beside a full group."""
    group = st.builds(LayerGroup, st.sampled_from(["windowed", "chunked"]), st.just(1), st.integers(1, 13))
    windows = tuple(draw(st.lists(st.tuples(group, st.integers(1, 2)), max_size=2)))
    n_growing = draw(st.integers(1, 2)) + sum(n_parts for _, n_parts in windows)
    most_chunk = draw(st.none() | st.integers(1, 9))
    return LayerBlocks(SIZE, n_growing, windows, draw(st.integers(0, 2)), most_chunk)


def blocks(tokens: int) -> int:
    """Return the blocks that so many tokens lie in."""
    return len({token // SIZE for token in range(tokens)})


def kept(group: LayerGroup, n_tokens: int) -> set[int]:
    """Return the tokens, of n_tokens computed, that a later one attends, by asking each."""
    size, later = group.window or 0, range(n_tokens, n_tokens + 30)
    if group.kind == "chunked":
        return {t for t in range(n_tokens) if any(t // size == at // size for at in later)}
    return {t for t in range(n_tokens) if any(at - t < size for at in later)}


def held(layers: LayerBlocks, n_tokens: int) -> int:
    """Return the blocks of a request, counted one by one: a window frees a block when all of its tokens are."""
    total = layers.n_whole * blocks(n_tokens) + (layers.n_states if n_tokens else 0)
    for group, n_parts in layers.windows:
        first = min(kept(group, n_tokens), default=n_tokens)
        total += n_parts * (blocks(n_tokens) - first // SIZE)
    return total


@given(layouts(), st.integers(0, 40), st.integers(1, 12))
def test_blocks_of_groups_are_those_of_their_tokens(layers: LayerBlocks, n_tokens: int, n_next: int) -> None:
    assert layers.held(n_tokens) == held(layers, n_tokens)
    begun = layers.n_growing * (blocks(n_tokens + n_next) - blocks(n_tokens)) + (0 if n_tokens else layers.n_states)
    assert layers.begun(n_tokens, n_next) == begun
    pool = KvPool(1000, SIZE, layers)
    assert pool.blocks_for(n_tokens) == held(layers, n_tokens)
    assert pool.blocks_in_step(n_tokens, n_next) == held(layers, n_tokens) + begun
    assert pool.most_blocks(n_tokens) == layers.most(n_tokens)


@given(layouts(), st.integers(1, 40), st.integers(1, 9))
def test_no_cut_of_a_prompt_takes_more_than_the_most(layers: LayerBlocks, n_tokens: int, chunk: int) -> None:
    chunk = min(chunk, layers.most_chunk or n_tokens)
    peaks = [held(layers, at) + layers.begun(at, min(chunk, n_tokens - at)) for at in range(0, n_tokens, chunk)]
    assert max(peaks) <= layers.most(n_tokens) <= layers.n_growing * blocks(n_tokens) + layers.n_states


@given(layouts(), st.integers(0, 60))
def test_the_longest_request_fits_and_one_more_block_does_not(layers: LayerBlocks, n_blocks: int) -> None:
    longest = layers.longest(n_blocks)
    assert longest % SIZE == 0
    assert longest == 0 or layers.most(longest) <= n_blocks
    assert longest >= 1 << 40 or layers.most(longest + SIZE) > n_blocks


@given(st.data())
def test_a_cohort_counts_what_its_members_do(data: st.DataObject) -> None:
    check(data, Cohort(SIZE), None)


@given(layouts().filter(lambda layers: bool(layers.windows)), st.data())
def test_a_cohort_of_groups_counts_what_its_members_do(layers: LayerBlocks, data: st.DataObject) -> None:
    check(data, GroupedCohort(layers), layers)


def check(data: st.DataObject, cohort: Cohort, layers: LayerBlocks | None) -> None:
    """Let requests join, step and leave at random; compare every count with that of the list of members."""
    layers = layers or LayerBlocks(SIZE)
    members: list[Member] = []
    for row in range(data.draw(st.integers(1, 25))):
        move = data.draw(st.sampled_from(["join", "join", "leave", "advance", "advance"]))
        if move == "join":
            request = Request(row, 0, prompt_tokens=30, max_tokens=99)
            request.prefilled_tokens = data.draw(st.integers(1, 30))
            request.padding_tokens = data.draw(st.integers(0, 3)) if not layers.windows else 0
            cohort.join(request, 90)
            members.append(Member(request, request.prefilled_tokens + request.padding_tokens, cohort.step))
        elif members and move == "leave":
            gone = members.pop(data.draw(st.integers(0, len(members) - 1)))
            assert cohort.stored_tokens(gone.request) == gone.stored
            assert cohort.drop(gone.request) == gone.stored
            assert gone.request.emitted_tokens == cohort.step - gone.joined
        elif members:
            step(data, cohort, layers, members)
        assert (cohort.n, cohort.kv_tokens) == (len(members), sum(each.stored + 1 for each in members))
        assert cohort.window_keys == [
            sum(group.keys(each.stored + 1) for each in members) for group, _ in layers.windows
        ]


def step(data: st.DataObject, cohort: Cohort, layers: LayerBlocks, members: list[Member]) -> None:
    """Advance some steps that fit into some free blocks, and count their blocks member by member."""

    def begun(at: int) -> int:
        return sum(layers.begun(each.stored + at, 1) for each in members)

    def freed(at: int) -> int:
        return sum(layers.dropped(each.stored + at + 1) - layers.dropped(each.stored + at) for each in members)

    most = cohort.next_bend_step - cohort.step if isinstance(cohort, GroupedCohort) else 200
    n_steps = data.draw(st.integers(1, min(most, 11)))
    total = sum(begun(at) for at in range(n_steps))
    dropped = sum(freed(at) for at in range(n_steps))
    assert cohort.blocks_of_next() == begun(0)
    assert cohort.blocks_begun(n_steps) == total
    assert cohort.blocks_dropped(n_steps) == dropped or n_steps == most  # a chunk's end is a bend
    free_blocks = data.draw(st.integers(0, 30))
    within, left = 0, free_blocks
    while (left := left - begun(within)) >= 0 and within < min(most, 200):
        left += freed(within)
        within += 1
    assert cohort.steps_within(free_blocks) == within or within == 200
    n_steps = min(n_steps, max(1, within))
    cohort.advance(n_steps)
    assert cohort.n_dropped == (sum(freed(at) for at in range(n_steps)) if layers.windows else 0)
    for each in members:
        each.stored += n_steps


@given(st.data())
def test_a_pool_neither_loses_nor_makes_blocks(data: st.DataObject) -> None:
    pool = KvPool(50, SIZE)
    used = reserved = least = 0
    least = 50
    for _ in range(data.draw(st.integers(1, 20))):
        move, n = data.draw(st.sampled_from(["reserve", "take", "claim", "drop", "keep", "release"])), 0
        free = 50 - used - reserved
        if move == "reserve":
            pool.reserve(n := data.draw(st.integers(0, free)))
            reserved += n
        elif move == "take":
            pool.take(n := data.draw(st.integers(0, free)), from_reserved=False)
            used += n
        elif move == "claim":
            pool.take(n := data.draw(st.integers(0, reserved)), from_reserved=True)
            used, reserved = used + n, reserved - n
        elif move == "drop":
            pool.drop(n := data.draw(st.integers(0, used)), to_reserved=False)
            used -= n
        elif move == "keep":
            pool.drop(n := data.draw(st.integers(0, used)), to_reserved=True)
            used, reserved = used - n, reserved + n
        else:
            n, n_reserved = data.draw(st.integers(0, used)), data.draw(st.integers(0, reserved))
            pool.release(n, n_reserved)
            used, reserved = used - n, reserved - n_reserved
        least = min(least, 50 - used - reserved)
        assert (pool.used_blocks, pool.reserved_blocks, pool.free_blocks) == (used, reserved, 50 - used - reserved)
        assert pool.least_free_blocks == least
        assert pool.blocks_in_step(used, n + 1) == blocks(used + n + 1)


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
