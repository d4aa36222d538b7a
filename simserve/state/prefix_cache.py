"""PrefixCache: which blocks of one replica can be used again, by whom they are held, and which to give up first."""

from collections import OrderedDict
from collections.abc import Sequence

Chain = Sequence[int]
"""Chained block ids of a request, first block first: equal ids mean that all tokens up to there are equal."""


class PrefixCache:
    """KV blocks of one replica by the id of what they hold, as engines keep them by hash (vLLM) or in a tree (SGLang).

    A request holds the first n ids of its chain until it is done: those that it found (`pin`) and those that it
    computed (`insert`). Blocks that nobody holds are idle: they stay as they are, count as free, and are given up in
    the order in which they came to be idle, of one request the last block first (`evict`). So whoever holds an id
    holds all before it, no id is here without those before it, and `match` need not look at every one.

    Who computes an id while others hold it has a copy in blocks of its own (engines do not merge them). The copy stays
    when the others let go of theirs, and whoever comes later shares what was there first.

    An id costs blocks_per_id blocks of the pool, for ids may be counted in larger blocks than the engine's own. Blocks
    without an id wait their turn among the idle like the others, of no use to anybody: engines do not know that, and
    give up an older block of use first.

    It has no size of its own. What is idle is part of what the pool counts as free, so whoever takes free blocks evicts
    as many as keeps idle_blocks <= free_blocks. If nobody evicts, it forgets nothing.

    Invariant: pinned_blocks = blocks_per_id * (ids with holders); idle_blocks = sum of _idle; of the ids that are here
    those without holders, and no others, are in _idle; of an id's holders fewer have copies than there are.
    """

    __slots__ = ("_copies", "_holders", "_idle", "_n_nameless", "blocks_per_id", "idle_blocks", "pinned_blocks")

    def __init__(self, blocks_per_id: int = 1) -> None:
        self.blocks_per_id = blocks_per_id
        self.pinned_blocks = 0
        """Blocks with an id that somebody holds, each counted once."""
        self.idle_blocks = 0
        """Blocks that nobody holds, with an id or without."""
        self._holders: dict[int, int] = {}
        """Requests that hold each id which is here."""
        self._copies: dict[int, list[set[int]]] = {}
        """Of ids that are here more than once: the `copies` of the requests that have one, the oldest first."""
        self._idle: OrderedDict[int, int] = OrderedDict()
        """Blocks of each id without holders, the next to be given up first; those without an id under -1, -2, ..."""
        self._n_nameless = 0

    def __len__(self) -> int:
        """Ids that are here."""
        return len(self._holders)

    def match(self, chain: Chain, most: int) -> int:
        """How many of the first `most` ids of a chain are here, from its beginning. O(log n); changes nothing.

        The last token of a prompt is always computed, for its output is wanted, so of a prompt alone `most` is
        (prompt_tokens - 1) // block_tokens.
        """
        holders = self._holders
        low, high = 0, min(most, len(chain))
        while low < high:  # fast: those that are here come first; the test against the naive cache holds it equal
            middle = (low + high) // 2
            if chain[middle] in holders:
                low = middle + 1
            else:
                high = middle
        return low

    def idle_blocks_among(self, chain: Chain, n: int) -> int:
        """Blocks that nobody holds of the first n ids, which are here: `pin` takes them from what is free. O(log n)."""
        holders = self._holders
        low, high = 0, n
        while low < high:  # fast: who holds an id holds those before it, so the held come first
            middle = (low + high) // 2
            if holders[chain[middle]]:
                low = middle + 1
            else:
                high = middle
        return (n - low) * self.blocks_per_id

    def pin(self, chain: Chain, n: int) -> int:
        """Hold the first n ids, which are here. Returns the blocks of them that were idle, and now are not free."""
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
        """A holder of the ids [0, start) has computed those of [start, end), and holds them from now on.

        Those that somebody else holds in other blocks are put into its `copies`, which are to be kept until it is
        released, and from which ids go whose other blocks are gone. Where the other block is idle, the new one takes
        its place and the other is free, without a use, first to be given up; so neither used nor free blocks change.
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
                self._put_nameless(self.blocks_per_id, first=True)
                holders[block] = 1
                n_new += 1
        self.pinned_blocks += n_new * self.blocks_per_id

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int]) -> int:
        """A request that holds the first n ids, some in `copies`, lets go of them, and of own_blocks without an id.

        Returns the blocks that are free from now on: its own, and those that nobody else holds. All are idle now, to be
        given up first those without an id, and those of which there are others, then its ids from the last to the
        first, as engines free a request's blocks.
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
            self._put_nameless(own_blocks)
        self._idle.update(dict.fromkeys(free, cost))
        n_free = len(free) * cost
        self.pinned_blocks -= n_free
        self.idle_blocks += n_free + own_blocks
        return n_free + own_blocks

    def _frees_a_copy(self, block: int, n_left: int, mine: set[int]) -> bool:
        """A holder of an id that is here more than once lets go of it, and n_left remain: whether blocks are free now:
        its own, or those that it was the last to share."""
        owners = self._copies[block]
        if block in mine:
            mine.discard(block)
            owners[:] = [each for each in owners if each is not mine]
        elif n_left == len(owners):  # all who remain have their own, the oldest of which others may share from now on
            owners.pop(0).discard(block)
        else:
            return False
        if not owners:
            del self._copies[block]
        return True

    def evict(self, n_blocks: int) -> int:
        """Give up at least n_blocks idle ones, the longest idle first; returns how many, as an id goes as a whole.

        Needs n_blocks <= idle_blocks.
        """
        idle, holders = self._idle, self._holders
        n_left = n_blocks
        while n_left > 0:
            block, n = idle.popitem(last=False)
            if block >= 0:
                del holders[block]
            elif n > n_left:  # blocks without an id go singly
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

    def _put_nameless(self, n_blocks: int, first: bool = False) -> None:
        """Blocks of no use to anybody join the idle."""
        self._n_nameless += 1
        name = -self._n_nameless
        self._idle[name] = n_blocks
        if first:
            self._idle.move_to_end(name, last=False)
