"""A prefix cache where layers keep different tokens, by hand; the oracle's random clusters do the rest."""

from simserve.catalog.layers import LayerGroup
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.state.prefix_cache import PrefixCache
from tests.invariants import check_cache, n_named

CHAIN = list(range(10, 18))
"""Ids of eight blocks of two tokens."""


def cache_of(*groups: LayerGroup, n_whole: int = 1) -> PrefixCache:
    """Return a cache with a block of each group for the same two tokens."""
    return PrefixCache(LayerBlocks((*(KvGroup(2, 1, group) for group in groups), KvGroup(2, n_whole))))


def serve(cache: PrefixCache, n: int) -> int:
    """Compute n blocks of the chain as one chunk, and leave; return the blocks that become free."""
    copies: set[int] = set()
    cache.insert(CHAIN, 0, n, copies)
    n_free = cache.drop(CHAIN, n, (0, 2 * n), copies)
    n_free += cache.release(CHAIN, n, 0, copies, 2 * n)
    check_cache(cache)
    return n_free


def test_a_hit_needs_what_the_next_token_attends_in_each_window() -> None:
    """Behind 12 tokens a window of five keeps those from 8 on, two blocks; those before are evicted first."""
    cache = cache_of(LayerGroup("windowed", 1, 5))
    assert serve(cache, 6) == 12
    assert cache.match(CHAIN, 8) == 6
    assert (cache.idle_blocks_among(CHAIN, 6, 12), cache.n_blocks(6, 12)) == (8, 8)
    cache.evict(4)  # what the window left when it went on
    assert cache.match(CHAIN, 8) == 6
    assert cache.match(CHAIN, 5) == 0  # needs its block 3; block 0 is gone as well
    cache.evict(1)  # of the window, the last
    assert (cache.match(CHAIN, 8), cache.idle_blocks) == (0, 7)


def test_a_hit_ends_with_a_larger_block_of_a_draft() -> None:
    """The draft's blocks hold three ids, and its window of five tokens needs the last of them."""
    draft = KvGroup(6, 1, LayerGroup("windowed", 1, 5)), KvGroup(6)
    cache = PrefixCache(LayerBlocks((KvGroup(2), *draft)))
    assert serve(cache, 8) == 8 + 2 + 2
    assert [cache.match(CHAIN, most) for most in (2, 3, 5, 6, 8)] == [0, 3, 3, 6, 6]
    assert [cache.n_blocks(n, 2 * n) for n in (3, 6)] == [3 + 1 + 1, 6 + 2 + 1]
    assert cache.keys(CHAIN, 3, 6) == ([10 * 3 + 1, 11 * 3 + 1, 12 * 3, 12 * 3 + 1, 12 * 3 + 2], 5)
    assert cache.n_ids([12 * 3, 11 * 3 + 1, 13 * 3 + 1], CHAIN, 6) == 4
    assert cache.pin(CHAIN, 6, 12) == 9
    assert cache.release(CHAIN, 6, 0, set(), 12) == 9
    check_cache(cache)


def test_a_chunk_needs_its_own_tokens_only() -> None:
    cache = cache_of(LayerGroup("chunked", 1, 8))
    serve(cache, 6)  # the chunk from 8 on: two blocks, and the four before are idle first
    cache.evict(4)
    assert [cache.match(CHAIN, most) for most in (3, 4, 5, 6)] == [0, 4, 5, 6]
    cache.evict(1)  # block 5 of the chunk
    assert cache.match(CHAIN, 6) == 5


def test_windows_alone_have_hits() -> None:
    cache = cache_of(LayerGroup("windowed", 1, 5), n_whole=0)
    assert (cache.match(CHAIN, 8), serve(cache, 6), cache.match(CHAIN, 8)) == (0, 6, 6)
    assert cache.pin(CHAIN, 6, 12) == 2
    assert (cache.pinned_blocks, cache.idle_blocks) == (2, 4)
    assert cache.release(CHAIN, 6, 0, set(), 12) == 2
    check_cache(cache)


def test_a_shared_block_of_a_window_is_free_when_its_last_holder_has_left_it() -> None:
    """Without an id are the blocks that the chain does not reach."""
    cache = cache_of(LayerGroup("windowed", 1, 5), n_whole=0)
    mine: set[int] = set()
    cache.insert(CHAIN, 0, 3, mine)
    assert (cache.pin(CHAIN, 3, 6), cache.n_doubled) == (0, 2)  # of another request, from token 2 on
    assert cache.drop(CHAIN, 3, (0, 8), mine) == 1  # blocks 0 and 1, of which it shares the latter
    check_cache(cache)
    assert (cache.n_doubled, cache.pinned_blocks) == (1, 2)
    assert cache.drop(CHAIN, 3, (6, 14), set()) == 1 + 2  # blocks 1 to 4: it shares block 2
    check_cache(cache)
    assert (cache.n_doubled, cache.pinned_blocks, n_named(cache)) == (0, 1, 3)
