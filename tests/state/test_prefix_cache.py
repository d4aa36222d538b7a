"""Prefix cache of one replica: sharing, eviction order, and counts that always add up."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.state.prefix_cache import PrefixCache
from tests.effort import examples


def served(cache: PrefixCache, chain: Sequence[int], own_blocks: int = 0) -> int:
    """Serve a request that computes what is missing and leaves; return how many ids it hit."""
    result = cache.match(chain, len(chain))
    cache.pin(chain, result)
    mine: set[int] = set()
    cache.insert(chain, result, len(chain), mine)
    cache.release(chain, len(chain), own_blocks, mine)
    return result


def test_a_prompt_finds_the_beginning_that_an_earlier_one_left() -> None:
    cache = PrefixCache()
    assert [served(cache, chain) for chain in ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3])] == [0, 2, 0, 3]
    assert (len(cache), cache.pinned_blocks, cache.idle_blocks) == (5, 0, 5)


def test_the_last_token_of_a_prompt_is_computed_whatever_is_there() -> None:
    cache = PrefixCache()
    served(cache, [1, 2])
    prompt_tokens, block_size = 32, 16  # two blocks to the token
    assert cache.match([1, 2], (prompt_tokens - 1) // block_size) == 1
    assert cache.match([1, 2], prompt_tokens // block_size) == 2  # a prompt of 33 tokens


def test_shared_blocks_count_once_and_stay_until_the_last_holder_goes() -> None:
    cache = PrefixCache()
    first, second = [1, 2, 3], [1, 2, 4]
    cache.insert(first, 0, 3, set())
    assert cache.idle_blocks_among(second, 2) == 0
    assert cache.pin(second, 2) == 0
    cache.insert(second, 2, 3, set())
    assert (cache.pinned_blocks, cache.idle_blocks) == (4, 0)
    assert cache.release(first, 3, 0, set()) == 1  # block 3 alone; the second holds 1 and 2
    assert (cache.pinned_blocks, cache.idle_blocks) == (3, 1)
    assert cache.release(second, 3, 0, set()) == 3
    assert (cache.pinned_blocks, cache.idle_blocks) == (0, 4)


def test_holding_an_idle_beginning_takes_its_blocks_from_what_is_free() -> None:
    cache = PrefixCache()
    served(cache, [1, 2, 3])
    cache.insert([1], 0, 1, set())  # another request computed block 1 again, and holds it
    assert cache.idle_blocks_among([1, 2, 3], 3) == 2
    assert cache.pin([1, 2, 3], 3) == 2
    assert cache.pinned_blocks == 3


def test_leaves_are_given_up_before_their_beginning_and_the_longest_idle_first() -> None:
    cache = PrefixCache()
    served(cache, [1, 2, 3])
    served(cache, [1, 4])
    left = []
    while cache.idle_blocks:  # in order of their last use, of one request the last block first: 3, 2, then 4, 1
        cache.evict(1)
        left.append([cache.match(chain, 3) for chain in ([1, 2, 3], [1, 4])])
    assert left == [[2, 2], [1, 2], [1, 1], [0, 0]]


def test_a_fork_takes_its_part_of_what_another_left_and_the_rest_stays_idle() -> None:
    cache = PrefixCache()
    served(cache, [1, 2, 3, 4])
    served(cache, [1, 2, 5, 6])  # leaves 1, 2, 5 and 6 together; 3 and 4 are idle for longer
    assert cache.pin([1, 2, 3, 4], 4) == 4
    cache.check()
    assert (cache.pinned_blocks, cache.idle_blocks) == (4, 2)
    cache.evict(1)
    assert cache.match([1, 2, 5, 6], 4) == 3


def test_what_is_held_is_never_given_up() -> None:
    cache = PrefixCache()
    cache.insert([1, 2], 0, 2, set())
    served(cache, [3])
    cache.evict(1)
    assert (cache.match([1, 2], 2), cache.match([3], 1)) == (2, 0)
    with pytest.raises(StopIteration):
        cache.evict(1)


def test_two_that_compute_the_same_at_once_have_a_copy_each_and_what_remains_is_found() -> None:
    cache = PrefixCache()
    chain, mine, other = [1, 2], set[int](), set[int]()
    cache.insert(chain, 0, 2, mine)
    cache.insert(chain, 0, 2, other)  # computed in blocks of its own, which it keeps
    assert (mine, other, cache.pinned_blocks) == (set(), {1, 2}, 2)
    assert cache.release(chain, 2, 0, mine) == 2  # its blocks are freed, and the copies replace them
    assert (other, cache.pinned_blocks, cache.idle_blocks) == (set(), 2, 2)
    assert cache.pin(chain, 2) == 0  # a later request shares them
    assert cache.release(chain, 2, 0, other) == 0
    assert cache.release(chain, 2, 0, set()) == 2
    assert (cache.pinned_blocks, cache.idle_blocks, len(cache)) == (0, 4, 2)


def test_who_goes_first_takes_its_copy_along() -> None:
    cache = PrefixCache()
    chain, mine, other = [1, 2], set[int](), set[int]()
    cache.insert(chain, 0, 2, mine)
    cache.insert(chain, 0, 2, other)
    assert cache.release(chain, 2, 0, other) == 2
    assert (other, cache.pinned_blocks, cache.idle_blocks) == (set(), 2, 2)
    assert cache.release(chain, 2, 0, mine) == 2


def test_a_block_computed_again_while_the_first_is_idle_takes_its_place() -> None:
    cache = PrefixCache()
    late = [1, 2]
    assert cache.match(late, 2) == 0  # it starts without a hit,
    served(cache, [1])  # another request computes block 1 and leaves,
    cache.insert(late, 0, 2, set())  # and what is idle then is free for other use, at once
    assert (cache.pinned_blocks, cache.idle_blocks) == (2, 1)
    cache.evict(1)
    assert cache.match(late, 2) == 2


def test_blocks_without_an_id_wait_their_turn_and_so_push_out_older_ones() -> None:
    cache = PrefixCache()
    served(cache, [1], own_blocks=3)
    served(cache, [2])
    assert (cache.idle_blocks, len(cache)) == (5, 2)
    cache.evict(2)  # two of the three
    cache.evict(2)  # the third, then block 1
    assert (cache.match([1], 1), cache.match([2], 1)) == (0, 1)


def test_runs_that_become_idle_together_are_given_up_from_the_last() -> None:
    cache = PrefixCache()
    cache.insert([1, 2], 0, 2, set())
    cache.pin([1, 2, 3, 4], 2)
    cache.insert([1, 2, 3, 4], 2, 4, set())
    cache.release([1, 2], 2, 0, set())
    cache.release([1, 2, 3, 4], 4, 0, set())  # two runs: others shared the first
    for n_left in (3, 2, 1, 0):
        cache.evict(1)
        cache.check()
        assert cache.match([1, 2, 3, 4], 4) == n_left


def test_what_lost_its_id_goes_before_all_others() -> None:
    cache = PrefixCache()
    served(cache, [7])
    served(cache, [1, 2])
    cache.insert([1, 2], 0, 2, set())
    cache.evict(2)
    assert (cache.match([7], 1), len(cache)) == (1, 3)


# -- against lists and loops -------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """The same cache, with a list of copies per id and loops for everything."""

    copies: dict[int, list[list["Hold"]]] = field(default_factory=dict)
    """For each id present: its copies, each with its holders; an idle one has none."""
    idle: list[list[int | None]] = field(default_factory=list)
    """[id] the blocks of an id, [None] one without; the next to evict first."""

    def is_held(self, block: int) -> bool:
        return any(self.copies.get(block, []))

    def match(self, chain: Sequence[int]) -> int:
        n = 0
        while n < len(chain) and chain[n] in self.copies:
            n += 1
        return n

    def share(self, hold: "Hold", block: int) -> None:
        if not self.is_held(block):
            self.idle.remove([block])
        self.copies[block][0].append(hold)
        hold.append(block)

    def compute(self, hold: "Hold", block: int) -> None:
        if block in self.copies and not self.is_held(block):
            self.idle.remove([block])
            self.idle[:0] = [[None]]
            del self.copies[block]
        self.copies.setdefault(block, []).append([hold])
        hold.append(block)

    def release(self, hold: "Hold", own_blocks: int) -> None:
        named: list[list[int | None]] = []
        for block in reversed(hold):
            copies = self.copies[block]
            users = next(users for users in copies if any(each is hold for each in users))
            users[:] = [each for each in users if each is not hold]
            if not users and len(copies) == 1:
                named.append([block])
            elif not users:
                copies[:] = [each for each in copies if each]
                own_blocks += 1
        self.idle += [[None]] * own_blocks
        self.idle += named

    def evict(self, n_blocks: int) -> None:
        for _ in range(n_blocks):
            (block,) = self.idle.pop(0)
            if block is not None:
                del self.copies[block]

    def counts(self) -> tuple[int, int, int]:
        """Return blocks of ids held, each id counted once; idle blocks; ids present."""
        return sum(map(self.is_held, self.copies)), len(self.idle), len(self.copies)


TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from(["start", "compute", "end", "evict"]), st.integers(0, 11)), max_size=60)


class Hold(list[int]):
    """The ids that a request holds; two equal chains are two holders."""


@settings(max_examples=examples(2000))
@given(texts=TEXTS, steps=STEPS)
def test_it_does_what_a_list_of_blocks_does(texts: list[list[int]], steps: list[tuple[str, int]]) -> None:
    ids: dict[tuple[int, ...], int] = {}
    chains = [[ids.setdefault(tuple(text[: i + 1]), len(ids)) for i in range(len(text))] for text in texts]
    cache, naive = PrefixCache(), Naive()
    running: list[tuple[list[int], Hold, set[int]]] = []
    for what, n in steps:
        if what == "start":
            chain, hold = chains[n % len(chains)], Hold()
            result = cache.match(chain, len(chain))
            assert result == naive.match(chain)
            n_idle = cache.idle_blocks_among(chain, result)
            assert n_idle == sum(not naive.is_held(block) for block in chain[:result])
            assert cache.pin(chain, result) == n_idle
            for block in chain[:result]:
                naive.share(hold, block)
            running.append((chain, hold, set()))
        elif what == "compute" and running:
            chain, hold, copies = running[n % len(running)]
            new = chain[len(hold) : len(hold) + 1 + n % 3]
            cache.insert(chain, len(hold), len(hold) + len(new), copies)
            for block in new:
                naive.compute(hold, block)
        elif what == "end" and running:
            chain, hold, copies = running.pop(n % len(running))
            free_before = cache.idle_blocks
            freed = cache.release(chain, len(hold), n % 3, copies)
            naive.release(hold, n % 3)
            assert freed == cache.idle_blocks - free_before
        elif what == "evict":
            n_blocks = min(n, cache.idle_blocks)
            cache.evict(n_blocks)
            naive.evict(n_blocks)
        cache.check()
        assert (cache.pinned_blocks, cache.idle_blocks, len(cache)) == naive.counts()
        assert [cache.match(chain, len(chain)) for chain in chains] == [naive.match(chain) for chain in chains]
