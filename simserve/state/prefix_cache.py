"""PrefixCache: reusable KV blocks of one replica, their holders and their eviction order."""

from collections import OrderedDict
from collections.abc import Sequence

Chain = Sequence[int]
"""Chained block ids of a request, first block first: equal ids mean that all tokens up to there are equal."""


class PrefixCache:
    """KV blocks of one replica by content id, as engines keep them by hash (vLLM) or in a tree (SGLang).

    A request holds the first n ids of its chain until it is done: those it found (`pin`) and those it computed
    (`insert`). Blocks without holders are idle: they keep their contents, count as free, and are evicted in the order
    in which they became idle, the last block of a request first (`evict`). So a holder of an id holds all before it, no
    id is present without those before it, and `match` can use binary search.

    A request that computes an id held by others has a copy in blocks of its own (engines do not merge them). The copy
    stays when the others release theirs; later requests share the oldest blocks.

    An id costs blocks_per_id blocks of the pool, as ids may cover several engine blocks. Idle blocks without an id are
    of no use, but are evicted in turn with the others: engines do not know this, and evict older, useful blocks first.

    The cache has no size of its own. Idle blocks are part of the pool's free blocks, so taking free blocks must evict
    until idle_blocks <= free_blocks. Without eviction nothing is forgotten.

    Invariant: pinned_blocks = blocks_per_id * (ids with holders); idle_blocks = sum of _idle; _idle has exactly the ids
    present that have no holders; an id has fewer copies than holders.
    """

    __slots__ = ("_copies", "_holders", "_idle", "_n_nameless", "blocks_per_id", "idle_blocks", "pinned_blocks")

    def __init__(self, blocks_per_id: int = 1) -> None:
        self.blocks_per_id = blocks_per_id
        self.pinned_blocks = 0
        """Blocks with an id that has holders, each counted once."""
        self.idle_blocks = 0
        """Blocks without holders, with or without an id."""
        self._holders: dict[int, int] = {}
        """Number of requests that hold each id present."""
        self._copies: dict[int, list[set[int]]] = {}
        """For ids present more than once: the `copies` of the requests that have one, the oldest first."""
        self._idle: OrderedDict[int, int] = OrderedDict()
        """Blocks of each id without holders, the next to evict first; those without an id have keys -1, -2, ..."""
        self._n_nameless = 0

    def __len__(self) -> int:
        """Return the number of ids present."""
        return len(self._holders)

    def match(self, chain: Chain, most: int) -> int:
        """Return how many leading ids of a chain, at most `most`, are present. O(log n); changes nothing.

        The last token of a prompt is always computed, as its output is needed, so for a prompt alone `most` is
        (prompt_tokens - 1) // block_tokens.
        """
        holders = self._holders
        low, high = 0, min(most, len(chain))
        while low < high:  # fast: ids present come first; the test against the naive cache checks it
            middle = (low + high) // 2
            if chain[middle] in holders:
                low = middle + 1
            else:
                high = middle
        return low

    def idle_blocks_among(self, chain: Chain, n: int) -> int:
        """Return the idle blocks of the first n ids, all present: `pin` takes them from the free ones. O(log n)."""
        holders = self._holders
        low, high = 0, n
        while low < high:  # fast: a holder holds all earlier ids, so held ids come first
            middle = (low + high) // 2
            if holders[chain[middle]]:
                low = middle + 1
            else:
                high = middle
        return (n - low) * self.blocks_per_id

    def pin(self, chain: Chain, n: int) -> int:
        """Hold the first n ids, all present. Return their blocks that were idle, and now are not free."""
        holders, idle = self._holders, self._idle
        n_idle = 0
        for block in chain[:n]:
            n_holders = holders[block]
            if not n_holders:
                del idle[block]
                n_idle += 1
            holders[block] = n_holders + 1
        blocks = n_idle * self.blocks_per_id
        self.idle_blocks -= blocks
        self.pinned_blocks += blocks
        return blocks

    def insert(self, chain: Chain, start: int, end: int, copies: set[int]) -> None:
        """Insert the ids [start, end) that the holder of [0, start) has computed, and hold them.

        Ids that others hold in other blocks are added to `copies`, which must be kept until the release; an id leaves
        it when its other blocks are gone. If the other block is idle, the new one replaces it, and the idle one loses
        its id and is evicted first; so neither used nor free blocks change.
        """
        holders, idle = self._holders, self._idle
        n_new = 0
        for block in chain[start:end]:
            n_holders = holders.get(block)
            if n_holders is None:
                holders[block] = 1
                n_new += 1
            elif n_holders:
                holders[block] = n_holders + 1
                copies.add(block)
                self._copies.setdefault(block, []).append(copies)
            else:
                del idle[block]
                self._add_unnamed(self.blocks_per_id, first=True)
                holders[block] = 1
                n_new += 1
        self.pinned_blocks += n_new * self.blocks_per_id

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int]) -> int:
        """Release the first n ids of a request, some in `copies`, and own_blocks without an id.

        Return the blocks that become free: its own, and those without other holders. All are now idle. The eviction
        order is that of engines: first blocks without an id and extra copies, then its ids from the last to the first.
        """
        holders, cost = self._holders, self.blocks_per_id
        free: list[int] = []
        for block in reversed(chain[:n]):
            n_holders = holders[block] - 1
            holders[block] = n_holders
            if block in self._copies:
                own_blocks += cost * self._frees_a_copy(block, n_holders, copies)
            elif not n_holders:
                free.append(block)
        if own_blocks:
            self._add_unnamed(own_blocks)
        self._idle.update(dict.fromkeys(free, cost))
        n_free = len(free) * cost
        self.pinned_blocks -= n_free
        self.idle_blocks += n_free + own_blocks
        return n_free + own_blocks

    def _frees_a_copy(self, block: int, n_left: int, mine: set[int]) -> bool:
        """Release an id present more than once, with n_left holders remaining; return whether its blocks become free:
        its own copy, or those it was the last to share."""
        owners = self._copies[block]
        if block in mine:
            mine.discard(block)
            owners[:] = [each for each in owners if each is not mine]
        elif n_left == len(owners):  # all remaining holders have copies; later requests share the oldest
            owners.pop(0).discard(block)
        else:
            return False
        if not owners:
            del self._copies[block]
        return True

    def evict(self, n_blocks: int) -> int:
        """Evict at least n_blocks idle blocks, the longest idle first; return how many, as ids are evicted whole.

        Needs n_blocks <= idle_blocks.
        """
        idle, holders = self._idle, self._holders
        n_left = n_blocks
        while n_left > 0:
            block, n = idle.popitem(last=False)
            if block >= 0:
                del holders[block]
            elif n > n_left:  # blocks without an id are evicted singly
                idle[block] = n - n_left
                idle.move_to_end(block, last=False)
                n = n_left
            n_left -= n
        self.idle_blocks -= n_blocks - n_left
        return n_blocks - n_left

    def check(self) -> None:
        """Assert the invariant. O(ids)."""
        free = {block for block, n_holders in self._holders.items() if not n_holders}
        assert min(self._holders.values(), default=0) >= 0, "an id has fewer holders than none"
        assert self.pinned_blocks == self.blocks_per_id * (len(self._holders) - len(free)), self.pinned_blocks
        assert self.idle_blocks == sum(self._idle.values()), (self.idle_blocks, sum(self._idle.values()))
        assert {block for block in self._idle if block >= 0} == free, "an idle id is held, or a free one is not idle"
        assert all(0 < len(owners) < self._holders[block] for block, owners in self._copies.items()), self._copies
        assert all(n == self.blocks_per_id if block >= 0 else n > 0 for block, n in self._idle.items())

    def _add_unnamed(self, n_blocks: int, first: bool = False) -> None:
        """Add blocks without an id to the idle ones."""
        self._n_nameless += 1
        name = -self._n_nameless
        self._idle[name] = n_blocks
        if first:
            self._idle.move_to_end(name, last=False)
