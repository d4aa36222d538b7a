"""Prefix cache of one replica: sharing, eviction order, and counts that always add up."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

import pytest

from simserve.catalog.layers import GroupKind, LayerGroup
from simserve.state.id_runs import Chain
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.state.prefix_cache import PrefixCache
from tests.doubles import in_runs, plain_blocks
from tests.invariants import check_cache, n_named, runs_of


def served(cache: PrefixCache, chain: Sequence[int], own_blocks: int = 0) -> int:
    """Serve a request that computes what is missing and leaves; return how many ids it hit."""
    result = cache.match(chain, len(chain))
    cache.pin(chain, result)
    mine: set[int] = set()
    cache.insert(chain, result, len(chain), mine)
    cache.release(chain, len(chain), own_blocks, mine)
    return result


def test_a_prompt_finds_the_beginning_that_an_earlier_one_left() -> None:
    cache = PrefixCache(plain_blocks(1))
    assert [served(cache, chain) for chain in ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3])] == [0, 2, 0, 3]
    assert (n_named(cache), cache.pinned_blocks, cache.idle_blocks) == (5, 0, 5)


def test_the_last_token_of_a_prompt_is_computed_whatever_is_there() -> None:
    cache = PrefixCache(plain_blocks(1))
    served(cache, [1, 2])
    prompt_tokens, block_size = 32, 16  # two blocks to the token
    assert cache.match([1, 2], (prompt_tokens - 1) // block_size) == 1
    assert cache.match([1, 2], prompt_tokens // block_size) == 2  # a prompt of 33 tokens


def test_shared_blocks_count_once_and_stay_until_the_last_holder_goes() -> None:
    cache = PrefixCache(plain_blocks(1))
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
    cache = PrefixCache(plain_blocks(1))
    served(cache, [1, 2, 3])
    cache.insert([1], 0, 1, set())  # another request computed block 1 again, and holds it
    assert cache.idle_blocks_among([1, 2, 3], 3) == 2
    assert cache.pin([1, 2, 3], 3) == 2
    assert cache.pinned_blocks == 3


def test_leaves_are_given_up_before_their_beginning_and_the_longest_idle_first() -> None:
    cache = PrefixCache(plain_blocks(1))
    served(cache, [1, 2, 3])
    served(cache, [1, 4])
    left = []
    while cache.idle_blocks:  # in order of their last use, of one request the last block first: 3, 2, then 4, 1
        cache.evict(1)
        left.append([cache.match(chain, 3) for chain in ([1, 2, 3], [1, 4])])
    assert left == [[2, 2], [1, 2], [1, 1], [0, 0]]


def test_a_fork_takes_its_part_of_what_another_left_and_the_rest_stays_idle() -> None:
    cache = PrefixCache(plain_blocks(1))
    served(cache, [1, 2, 3, 4])
    served(cache, [1, 2, 5, 6])  # leaves 1, 2, 5 and 6 together; 3 and 4 are idle for longer
    assert cache.pin([1, 2, 3, 4], 4) == 4
    check_cache(cache)
    assert (cache.pinned_blocks, cache.idle_blocks) == (4, 2)
    cache.evict(1)
    assert cache.match([1, 2, 5, 6], 4) == 3


def test_what_is_held_is_never_given_up() -> None:
    cache = PrefixCache(plain_blocks(1))
    cache.insert([1, 2], 0, 2, set())
    served(cache, [3])
    cache.evict(1)
    assert (cache.match([1, 2], 2), cache.match([3], 1)) == (2, 0)
    with pytest.raises(IndexError):
        cache.evict(1)


def test_two_that_compute_the_same_at_once_have_a_copy_each_and_what_remains_is_found() -> None:
    cache = PrefixCache(plain_blocks(1))
    chain, mine, other = [1, 2], set[int](), set[int]()
    cache.insert(chain, 0, 2, mine)
    cache.insert(chain, 0, 2, other)  # computed in blocks of its own, which it keeps
    assert (mine, other, cache.pinned_blocks) == (set(), {1, 2}, 2)
    assert cache.release(chain, 2, 0, mine) == 2  # its blocks are freed, and the copies replace them
    assert (other, cache.pinned_blocks, cache.idle_blocks) == (set(), 2, 2)
    assert cache.pin(chain, 2) == 0  # a later request shares them
    assert cache.release(chain, 2, 0, other) == 0
    assert cache.release(chain, 2, 0, set()) == 2
    assert (cache.pinned_blocks, cache.idle_blocks, n_named(cache)) == (0, 4, 2)


def test_who_goes_first_takes_its_copy_along() -> None:
    cache = PrefixCache(plain_blocks(1))
    chain, mine, other = [1, 2], set[int](), set[int]()
    cache.insert(chain, 0, 2, mine)
    cache.insert(chain, 0, 2, other)
    assert cache.release(chain, 2, 0, other) == 2
    assert (other, cache.pinned_blocks, cache.idle_blocks) == (set(), 2, 2)
    assert cache.release(chain, 2, 0, mine) == 2


def test_a_block_computed_again_while_the_first_is_idle_takes_its_place() -> None:
    cache = PrefixCache(plain_blocks(1))
    late = [1, 2]
    assert cache.match(late, 2) == 0  # it starts without a hit,
    served(cache, [1])  # another request computes block 1 and leaves,
    cache.insert(late, 0, 2, set())  # and what is idle then is free for other use, at once
    assert (cache.pinned_blocks, cache.idle_blocks) == (2, 1)
    cache.evict(1)
    assert cache.match(late, 2) == 2


def test_blocks_without_an_id_wait_their_turn_and_so_push_out_older_ones() -> None:
    cache = PrefixCache(plain_blocks(1))
    served(cache, [1], own_blocks=3)
    served(cache, [2])
    assert (cache.idle_blocks, n_named(cache)) == (5, 2)
    cache.evict(2)  # two of the three
    cache.evict(2)  # the third, then block 1
    assert (cache.match([1], 1), cache.match([2], 1)) == (0, 1)


def test_runs_that_become_idle_together_are_given_up_from_the_last() -> None:
    cache = PrefixCache(plain_blocks(1))
    cache.insert([1, 2], 0, 2, set())
    cache.pin([1, 2, 3, 4], 2)
    cache.insert([1, 2, 3, 4], 2, 4, set())
    cache.release([1, 2], 2, 0, set())
    cache.release([1, 2, 3, 4], 4, 0, set())  # two runs: others shared the first
    for n_left in (3, 2, 1, 0):
        cache.evict(1)
        check_cache(cache)
        assert cache.match([1, 2, 3, 4], 4) == n_left


def test_what_lost_its_id_goes_before_all_others() -> None:
    cache = PrefixCache(plain_blocks(1))
    served(cache, [7])
    served(cache, [1, 2])
    cache.insert([1, 2], 0, 2, set())
    cache.evict(2)
    assert (cache.match([7], 1), n_named(cache)) == (1, 3)


def test_a_part_that_is_left_of_later_ids_goes_before_layers_that_come_after_it() -> None:
    window = LayerGroup("windowed", 1, 100)
    cache = PrefixCache(
        LayerBlocks((KvGroup(SIZE, 3, window), KvGroup(SIZE)))
    )  # a window in three parts, then layers that keep all
    cache.insert([1, 2], 0, 2, set())
    cache.release([1, 2], 2, 0, set(), 2 * SIZE)
    cache.evict(3)  # the first part of both, and the second of the last
    cache.insert([1], 0, 1, set())  # its other blocks lose their id, and go first
    check_cache(cache)
    cache.evict(3)
    assert [n_named(cache), cache.idle_blocks] == [6, 2]
    cache.evict(1)  # the third part of the last
    check_cache(cache)
    assert 2 in cache._groups[1].runs


# -- against lists and loops -------------------------------------------------------------------------------------------

SIZE = 2


@dataclass
class Naive:
    """The same cache, with a list of copies per block and loops for everything."""

    layers: LayerBlocks
    copies: dict[int, list[list["Holder"]]] = field(default_factory=dict)
    """For each block present, by id and part: its copies, each with its holders; an idle one has none."""
    idle: list[list[int | None]] = field(default_factory=list)
    """[block] one with an id, [None] one without; the next to evict first."""

    @property
    def n_parts(self) -> int:
        """Blocks that layers take for the same tokens."""
        return len(self.kinds)

    @cached_property
    def kinds(self) -> list[tuple[LayerGroup | None, int]]:
        """The group of each block that layers take for the same tokens, and its tokens; None: they keep all."""
        groups = [(each.layers if each.layers.window else None, each) for each in self.layers.groups]
        return [(group, each.tokens) for group, each in groups for _ in range(each.n_parts)]

    @property
    def windows(self) -> list[LayerGroup]:
        """The group of each of the first parts of the blocks for the same tokens."""
        return [group for group, _ in self.kinds if group is not None]

    def n_ids(self, part: int) -> int:
        """Return the ids in a block of a part."""
        return self.kinds[part][1] // SIZE

    def first(self, part: int, n_tokens: int) -> int:
        """Return the number of the first block that a part keeps."""
        group, size = self.kinds[part]
        return 0 if group is None else int(group.first_kept(n_tokens)) // size

    def blocks(self, chain: Sequence[int], part: int, numbers: range) -> list[int]:
        """Return blocks of a part; one of several ids goes by the last."""
        return [chain[(number + 1) * self.n_ids(part) - 1] * self.n_parts + part for number in numbers]

    def needed(self, chain: Sequence[int], n: int, n_tokens: int) -> list[list[int]]:
        """Return the blocks of the first n ids that a request with n_tokens computed keeps, by part."""
        return [
            self.blocks(chain, part, range(self.first(part, n_tokens), n // self.n_ids(part)))
            for part in range(self.n_parts)
        ]

    def is_held(self, block: int) -> bool:
        return any(self.copies.get(block, []))

    def match(self, chain: Sequence[int], most: int, beyond: Collection[int] = ()) -> int:
        """Return the most ids, in whole blocks, of which all that the next token needs is present, or beyond."""
        for n in range(min(most, len(chain)), 0, -1):
            if any(n % self.n_ids(part) for part in range(self.n_parts)):
                continue
            if all(
                block in self.copies or block in beyond for part in self.needed(chain, n, n * SIZE) for block in part
            ):
                return n
        return 0

    def share(self, holder: "Holder", block: int) -> None:
        if not self.is_held(block):
            self.idle.remove([block])
        self.copies[block][0].append(holder)

    def compute(self, holder: "Holder", block: int) -> None:
        if block in self.copies and not self.is_held(block):
            self.idle.remove([block])
            self.idle[:0] = [[None]]
            del self.copies[block]
        self.copies.setdefault(block, []).append([holder])

    def release(self, holder: "Holder", blocks: list[int], own_blocks: int) -> None:
        named: list[list[int | None]] = []
        for block in blocks:
            copies = self.copies[block]
            users = next(users for users in copies if any(each is holder for each in users))
            users[:] = [each for each in users if each is not holder]
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

    def counts(self) -> tuple[int, int, int, int]:
        """Return blocks with ids held, each counted once; idle blocks; blocks with ids present; those shared in
        windows, by each holder but the first."""
        in_windows = [block for block in self.copies if block % self.n_parts < len(self.windows)]
        n_doubled = sum(len(users) - 1 for block in in_windows for users in self.copies[block] if users)
        return sum(map(self.is_held, self.copies)), len(self.idle), len(self.copies), n_doubled


@dataclass(eq=False)
class Holder:
    """A request: the tokens that it has computed, and the blocks that are its copies of those of others."""

    chain: Chain
    n_tokens: int
    copies: set[int] = field(default_factory=set)

    @property
    def n_ids(self) -> int:
        return min(self.n_tokens // SIZE, len(self.chain))


@dataclass
class Elsewhere:
    """Blocks outside of the GPU; where all layers keep all tokens, those before a block are there or here."""

    blocks: set[int]
    naive: Naive

    def has(self, block: int) -> bool:
        return block in self.blocks

    def hits(self, chain: Sequence[int], n_here: int, most: int) -> int:
        return self.naive.match(chain, most, self.blocks)


def groups_of(rng: Random, size: int, n_windows: int) -> tuple[KvGroup, ...]:
    """Draw groups with a window or chunk, perhaps beside layers that keep all."""
    kinds: tuple[GroupKind, ...] = ("windowed", "chunked")
    windows = [(LayerGroup(rng.choice(kinds), 1, rng.randint(1, 9)), rng.choice([1, 2, 4])) for _ in range(n_windows)]
    n_whole = rng.choice([0, 1, 2, 4] if windows else [1, 2, 4])
    return *(KvGroup(size, n_parts, group) for group, n_parts in windows), KvGroup(size, n_whole)


@pytest.mark.parametrize(("is_grouped", "by_part"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("seed", range(60))
def test_it_does_what_a_list_of_blocks_does(seed: int, is_grouped: bool, by_part: bool) -> None:
    """Tiers hold blocks by part."""
    rng = Random(seed)
    has_tier = by_part or not is_grouped
    layers = plain_blocks(SIZE)
    if is_grouped:
        sizes = rng.choice([(SIZE, SIZE), (SIZE, 2 * SIZE), (SIZE, 3 * SIZE), (2 * SIZE, SIZE)])
        groups = groups_of(rng, SIZE, seed % 3)
        if rng.random() < 0.5:
            target = (replace(group, tokens=sizes[0]) for group in groups)
            groups = *target, *groups_of(rng, sizes[1], rng.randint(0, 2))
        layers = LayerBlocks(groups)
    cache = PrefixCache(layers, by_part=by_part)
    texts = [[rng.randint(0, 1) for _ in range(rng.randint(1, 9))] for _ in range(rng.randint(1, 6))]
    ids: dict[tuple[int, ...], int] = {}
    chains: list[Chain] = [[ids.setdefault(tuple(text[: i + 1]), len(ids)) for i in range(len(text))] for text in texts]
    if rng.random() < 0.5:
        chains = [in_runs(chain) for chain in chains]
    naive, running = Naive(layers), list[Holder]()
    for _ in range(50):
        what = rng.choice(["start", "start", "compute", "compute", "end", "evict", "add"])
        if what == "start":
            running.append(start(rng, cache, naive, rng.choice(chains), has_tier, is_grouped))
        elif what == "compute" and running:
            compute(rng, cache, naive, rng.choice(running))
        elif what == "end" and running:
            gone, own_blocks = running.pop(rng.randrange(len(running))), rng.randint(0, 2)
            free_before = cache.idle_blocks
            freed = cache.release(gone.chain, gone.n_ids, own_blocks, gone.copies, gone.n_tokens)
            needed = naive.needed(gone.chain, gone.n_ids, gone.n_tokens)
            naive.release(gone, [block for part in needed for block in reversed(part)], own_blocks)
            assert freed == cache.idle_blocks - free_before
        elif what == "evict":
            n_blocks = rng.randint(0, min(rng.choice([5, 20]), cache.idle_blocks))
            cache.evict(n_blocks)
            naive.evict(n_blocks)
        elif what == "add":
            cache.add_idle(n_blocks := rng.randint(1, 2))
            naive.idle += [[None]] * n_blocks
        n_held, n_idle, n_ids, n_doubled = naive.counts()
        assert (cache.pinned_blocks, cache.idle_blocks, cache.n_doubled) == (n_held, n_idle, n_doubled)
        if rng.random() < 0.5:
            continue  # ids of evicted blocks are still there until one is looked for
        check_cache(cache)
        assert n_named(cache) == n_ids
        for chain in chains:
            most = rng.randint(0, len(chain) + 1)
            assert cache.match(chain, most) == naive.match(chain, most)


def start(rng: Random, cache: PrefixCache, naive: Naive, chain: Chain, has_tier: bool, is_grouped: bool) -> Holder:
    """Start a request with what it finds, here or also elsewhere."""
    most = rng.randint(0, len(chain))
    here = cache.match(chain, most)
    if rng.random() < 0.5 and has_tier:
        elsewhere = {block for block in range(200) if rng.random() < 0.5}
        if not is_grouped:
            elsewhere = set(chain[here : rng.randint(here, len(chain))])
        n = cache.match_beyond(chain, most, Elsewhere(elsewhere, naive))
        assert n == naive.match(chain, most, elsewhere)
    else:
        n = here
    holder = Holder(chain, n * SIZE)
    parts = naive.needed(chain, n, n * SIZE)
    needed = [block for part in parts for block in part]
    missing = [block for block in needed if block not in naive.copies]
    n_idle = sum(block in naive.copies and not naive.is_held(block) for block in needed)
    if has_tier:
        in_order = sorted(needed, key=lambda block: (chain.index(block // naive.n_parts), block))
        keys, n_keys = cache.keys(chain, n, n * SIZE)
        assert list(keys[:n_keys]) == in_order
        ends = [(chain.index(block // naive.n_parts), naive.n_ids(block % naive.n_parts)) for block in needed]
        assert cache.n_ids(needed, chain, n) == len({end - i for end, n_ids in ends for i in range(n_ids)})
        assert sorted(cache.missing(chain, n)) == sorted(missing)
    assert cache.n_blocks(n, n * SIZE) == len(needed)
    assert cache.idle_blocks_among(chain, n, n * SIZE) == n_idle
    assert cache.pin(chain, n, n * SIZE) == n_idle
    for block in needed:
        if block not in missing:
            naive.share(holder, block)
    if missing:
        cache.insert_missing(chain, n, cache.missing(chain, n), holder.copies)
    for block in missing:
        naive.compute(holder, block)
    return holder


def compute(rng: Random, cache: PrefixCache, naive: Naive, holder: Holder) -> None:
    """Compute the next tokens of a request, and let go of what windows have left."""
    before, n_before = holder.n_tokens, holder.n_ids
    holder.n_tokens += rng.randint(1, 7)
    chain, n, after = holder.chain, holder.n_ids, holder.n_tokens
    cache.insert(chain, n_before, n, holder.copies, before)
    for part in range(naive.n_parts):
        n_ids = naive.n_ids(part)
        for block in naive.blocks(chain, part, range(max(n_before // n_ids, naive.first(part, before)), n // n_ids)):
            naive.compute(holder, block)
    free_before = cache.idle_blocks
    freed = cache.drop(chain, n, (before, after), holder.copies)
    left, own_blocks = list[int](), 0
    for part in range(len(naive.windows)):
        gone = range(naive.first(part, before), naive.first(part, after))
        n_named = n // naive.n_ids(part)
        left += reversed(naive.blocks(chain, part, range(gone.start, min(gone.stop, n_named))))
        own_blocks += sum(number >= n_named for number in gone)
    naive.release(holder, left, own_blocks)
    assert freed == cache.idle_blocks - free_before


# -- how much it keeps -------------------------------------------------------------------------------------------------


def test_a_request_that_grows_by_blocks_has_one_run() -> None:
    cache, chain = PrefixCache(plain_blocks(1)), list(range(102))
    for n in range(0, 102, 3):
        cache.insert(chain, n, n + 1, set())
        cache.insert(chain, n + 1, n + 3, set())
    assert len({id(run) for run in runs_of(cache._groups[0].runs).values()}) == 1


def test_a_run_of_others_does_not_grow_by_one_that_does_not_hold_it() -> None:
    cache = PrefixCache(LayerBlocks((KvGroup(SIZE, 1, LayerGroup("windowed", 1, SIZE)),)))
    cache.insert([1, 2], 0, 2, set())
    missing = cache.missing([1, 3], 2)
    assert missing == [3]  # the next token attends the second block alone
    cache.insert_missing([1, 3], 2, missing, set())
    check_cache(cache)
    assert cache.release([1, 2], 2, 0, set()) == 2
    assert (cache.pinned_blocks, cache.idle_blocks) == (1, 2)


def test_places_of_what_is_held_again_do_not_pile_up() -> None:
    cache, chains = PrefixCache(plain_blocks(1)), [[i] for i in range(100)]
    for chain in chains:
        served(cache, chain)
    for _ in range(5):
        for chain in chains:
            served(cache, chain)
            assert len(cache._idle._numbers) <= 2 * len(cache._idle.runs) + 64
