"""The cache of one replica: what is shared, what is given up first, and that its counts always add up."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.state.prefix_cache import PrefixCache


def served(cache: PrefixCache, chain: Sequence[int], own_blocks: int = 0) -> int:
    """A request that comes, computes what is not there, and goes; returns how many ids it found."""
    found = cache.match(chain, len(chain))
    cache.pin(chain, found)
    cache.insert(chain, found, len(chain))
    cache.release(chain, len(chain), own_blocks)
    return found


def test_a_prompt_finds_the_beginning_that_an_earlier_one_left() -> None:
    cache = PrefixCache()
    assert [served(cache, chain) for chain in ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3])] == [0, 2, 0, 3]
    assert (len(cache), cache.pinned_blocks, cache.idle_blocks) == (5, 0, 5)


def test_the_last_token_of_a_prompt_is_computed_whatever_is_there() -> None:
    cache = PrefixCache()
    served(cache, [1, 2])
    prompt_tokens, block_tokens = 32, 16  # two blocks to the token
    assert cache.match([1, 2], (prompt_tokens - 1) // block_tokens) == 1
    assert cache.match([1, 2], prompt_tokens // block_tokens) == 2  # a prompt of 33 tokens


def test_shared_blocks_count_once_and_stay_until_the_last_holder_goes() -> None:
    cache = PrefixCache()
    first, second = [1, 2, 3], [1, 2, 4]
    assert cache.insert(first, 0, 3) == 0
    assert cache.idle_blocks_among(second, 2) == 0
    assert cache.pin(second, 2) == 0
    assert cache.insert(second, 2, 3) == 0
    assert (cache.pinned_blocks, cache.idle_blocks) == (4, 0)
    assert cache.release(first, 3) == 1  # block 3 alone; the second holds 1 and 2
    assert (cache.pinned_blocks, cache.idle_blocks) == (3, 1)
    assert cache.release(second, 3) == 3
    assert (cache.pinned_blocks, cache.idle_blocks) == (0, 4)


def test_holding_an_idle_beginning_takes_its_blocks_from_what_is_free() -> None:
    cache = PrefixCache(blocks_per_id=32)  # ids of 512 tokens over blocks of 16
    served(cache, [1, 2, 3])
    assert cache.insert([1], 0, 1) == 0  # another computed block 1 again, and now holds it
    assert cache.idle_blocks_among([1, 2, 3], 3) == 64
    assert cache.pin([1, 2, 3], 3) == 64
    assert cache.pinned_blocks == 96


def test_leaves_are_given_up_before_their_beginning_and_the_longest_idle_first() -> None:
    cache = PrefixCache()
    served(cache, [1, 2, 3])
    served(cache, [1, 4])
    left = []
    while cache.idle_blocks:  # in order of their last use, of one request the last block first: 3, 2, then 4, 1
        cache.evict(1)
        left.append([cache.match(chain, 3) for chain in ([1, 2, 3], [1, 4])])
    assert left == [[2, 2], [1, 2], [1, 1], [0, 0]]


def test_what_is_held_is_never_given_up() -> None:
    cache = PrefixCache()
    cache.insert([1, 2], 0, 2)
    served(cache, [3])
    assert cache.evict(1) == 1
    assert (cache.match([1, 2], 2), cache.match([3], 1)) == (2, 0)
    with pytest.raises(KeyError):
        cache.evict(1)


def test_an_id_of_many_blocks_is_given_up_as_a_whole() -> None:
    cache = PrefixCache(blocks_per_id=32)
    served(cache, [1, 2])
    assert cache.evict(5) == 32
    assert (cache.idle_blocks, cache.match([1, 2], 2)) == (32, 1)


def test_two_that_compute_the_same_at_once_both_keep_their_blocks_and_the_second_frees_its_own_at_its_end() -> None:
    cache = PrefixCache()
    chain = [1, 2]
    assert cache.insert(chain, 0, 2) == 0
    assert cache.insert(chain, 0, 2) == 2  # computed in other blocks, which remain its own
    assert cache.pinned_blocks == 2
    assert cache.release(chain, 2) == 0  # the first goes; the second counts on blocks 1 and 2 too
    assert cache.release(chain, 2, own_blocks=2) == 4
    assert (cache.pinned_blocks, cache.idle_blocks, len(cache)) == (0, 4, 2)


def test_a_block_computed_again_while_the_first_is_idle_takes_its_place() -> None:
    cache = PrefixCache()
    late = [1, 2]
    assert cache.match(late, 2) == 0  # it starts, finding nothing,
    served(cache, [1])  # another computes block 1 and goes,
    assert cache.insert(late, 0, 2) == 0  # and what is idle then is free for other use, at once
    assert (cache.pinned_blocks, cache.idle_blocks) == (2, 1)
    assert cache.evict(1) == 1
    assert cache.match(late, 2) == 2


def test_blocks_without_an_id_wait_their_turn_and_so_push_out_older_ones() -> None:
    cache = PrefixCache()
    served(cache, [1], own_blocks=3)
    served(cache, [2])
    assert (cache.idle_blocks, len(cache)) == (5, 2)
    assert cache.evict(2) == 2  # two of the three
    assert cache.evict(2) == 2  # the third, then block 1
    assert (cache.match([1], 1), cache.match([2], 1)) == (0, 1)


# -- against lists and loops -------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """The same cache, a list of single blocks and a loop for everything."""

    blocks_per_id: int
    holds: list[list[int]] = field(default_factory=list)
    """Ids that each request holds."""
    idle: list[list[int | None]] = field(default_factory=list)
    """[id, ...] a block with an id, [None] one without; the next to be given up first."""

    def is_held(self, block: int) -> bool:
        return any(block in hold for hold in self.holds)

    def is_here(self, block: int) -> bool:
        return self.is_held(block) or [block] in self.idle

    def match(self, chain: Sequence[int]) -> int:
        n = 0
        while n < len(chain) and self.is_here(chain[n]):
            n += 1
        return n

    def hold(self, hold: list[int], block: int) -> int:
        """1 if somebody else holds it."""
        held = self.is_held(block)
        if [block] in self.idle:
            self.idle.remove([block])
        hold.append(block)
        return int(held)

    def compute(self, hold: list[int], block: int) -> int:
        was_idle = [block] in self.idle
        duplicates = self.hold(hold, block)
        if was_idle:
            self.idle[:0] = [[None]] * self.blocks_per_id
        return duplicates

    def release(self, hold: list[int], own_blocks: int) -> None:
        self.holds.remove(hold)
        self.idle += [[None]] * own_blocks
        self.idle += [[block] for block in reversed(hold) if not self.is_held(block)]

    def evict(self, n_blocks: int) -> int:
        n = 0
        while n < n_blocks:
            n += self.cost(self.idle.pop(0))
        return n

    def cost(self, entry: list[int | None]) -> int:
        return 1 if entry == [None] else self.blocks_per_id

    def counts(self) -> tuple[int, int, int]:
        """Blocks held, blocks idle, ids here."""
        held = {block for hold in self.holds for block in hold}
        named = sum(entry != [None] for entry in self.idle)
        return len(held) * self.blocks_per_id, sum(map(self.cost, self.idle)), len(held) + named


TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from(["start", "compute", "end", "evict"]), st.integers(0, 11)), max_size=60)


class Identity(list[int]):
    """A list that equals itself alone, so that two requests with equal holds are two."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None


@given(texts=TEXTS, steps=STEPS, blocks_per_id=st.sampled_from([1, 3]))
def test_it_does_what_a_list_of_blocks_does(
    texts: list[list[int]], steps: list[tuple[str, int]], blocks_per_id: int
) -> None:
    ids: dict[tuple[int, ...], int] = {}
    chains = [[ids.setdefault(tuple(text[: i + 1]), len(ids)) for i in range(len(text))] for text in texts]
    cache, naive = PrefixCache(blocks_per_id), Naive(blocks_per_id)
    running: list[tuple[list[int], Identity, list[int]]] = []
    for what, n in steps:
        if what == "start":
            chain, hold = chains[n % len(chains)], Identity()
            found = cache.match(chain, len(chain))
            assert found == naive.match(chain)
            n_idle = cache.idle_blocks_among(chain, found)
            assert n_idle == sum(blocks_per_id for block in chain[:found] if not naive.is_held(block))
            assert cache.pin(chain, found) == n_idle
            naive.holds.append(hold)
            assert sum(naive.hold(hold, block) for block in chain[:found]) * blocks_per_id + n_idle == (
                found * blocks_per_id
            )
            running.append((chain, hold, [0]))
        elif what == "compute" and running:
            chain, hold, duplicates = running[n % len(running)]
            end = min(len(chain), len(hold) + 1 + n % 3)
            said = cache.insert(chain, len(hold), end)
            assert said == sum(naive.compute(hold, block) for block in chain[len(hold) : end]) * blocks_per_id
            duplicates[0] += said
        elif what == "end" and running:
            chain, hold, duplicates = running.pop(n % len(running))
            free_before = cache.idle_blocks
            own_blocks = duplicates[0] + n % 3
            freed = cache.release(chain, len(hold), own_blocks)
            naive.release(hold, own_blocks)
            assert freed == cache.idle_blocks - free_before
        elif what == "evict":
            n_blocks = min(n, cache.idle_blocks)
            assert cache.evict(n_blocks) == naive.evict(n_blocks)
        cache.check()
        assert (cache.pinned_blocks, cache.idle_blocks, len(cache)) == naive.counts()
        assert [cache.match(chain, len(chain)) for chain in chains] == [naive.match(chain) for chain in chains]
