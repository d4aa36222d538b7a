"""PrefixCache: reusable KV blocks of one replica, their holders and their eviction order."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

Chain = Sequence[int]
"""Chained block ids of a request, first block first: equal ids mean that all tokens up to there are equal."""


class Beyond(Protocol):
    """Copies of blocks outside of the GPU."""

    def has(self, block: int) -> bool:
        """Return whether a block is there."""

    def hits(self, chain: Chain, n_here: int, most: int) -> int:
        """Return how many of the first `most` ids are on the GPU, which has n_here of them, or there."""


class BlockRun:
    """Consecutive blocks of a chain that the same requests hold; or idle ones without ids."""

    __slots__ = ("high", "ids", "low", "n_holders", "number")

    def __init__(self, low: int, high: int, ids: list[int], n_holders: int = 0) -> None:
        self.low = low
        """Place of its first block in its chain; its last one is before `high`."""
        self.high = high
        self.ids = ids
        """Ids of its blocks; empty for blocks without ids."""
        self.n_holders = n_holders
        """Requests that hold all of it; 0: it is idle."""
        self.number = 0
        """Its key in the eviction order, if it is idle."""


class PrefixCache:
    """KV blocks of one replica by content id, as engines keep them by hash (vLLM) or in a tree (SGLang).

    A request holds the first n ids of its chain until it is done: those it found (`pin`) and those it computed
    (`insert`). Blocks without holders are idle: they keep their contents, count as free, and are evicted in the order
    in which they became idle, the last block of a request first (`evict`). So a holder of an id holds all before it, no
    id is present without those before it, and `match` can use binary search.

    A request that computes an id held by others has a copy in blocks of its own (engines do not merge them). The copy
    stays when the others release theirs; later requests share the oldest blocks.

    Idle blocks without an id are of no use, but are evicted in turn with the others: engines do not know this, and
    evict older, useful blocks first.

    The cache has no size of its own. Idle blocks are part of the pool's free blocks, so taking free blocks must evict
    until idle_blocks <= free_blocks. Without eviction nothing is forgotten.

    fast: holders are counted by run of blocks, not by block; an id is written when it comes, when its run is cut in
    two, and when it goes. A request holds whole runs: what it finds is cut off where it ends.

    Invariant: pinned_blocks = ids with holders; idle_blocks = sum of _idle; each id present is in one run, where its
    chain has it, and in _idle if the run has no holders; an id has fewer copies than holders.
    """

    __slots__ = ("_copies", "_idle", "_n_runs", "_runs", "idle_blocks", "n_doubled", "pinned_blocks")

    def __init__(self) -> None:
        self.n_doubled = 0
        """Holders of blocks in windows that share one with an earlier holder."""
        self.pinned_blocks = 0
        """Blocks with an id that has holders, each counted once."""
        self.idle_blocks = 0
        """Blocks without holders, with or without an id."""
        self._runs: dict[int, BlockRun] = {}
        """The run of each id present."""
        self._copies: dict[int, list[set[int]]] = {}
        """For ids present more than once: the `copies` of the requests that have one, the oldest first."""
        self._idle: OrderedDict[int, BlockRun] = OrderedDict()
        """Idle runs by number, the next to evict first; the last block of a run goes first."""
        self._n_runs = 0

    def __len__(self) -> int:
        """Return the number of ids present."""
        return len(self._runs)

    def match(self, chain: Chain, most: int) -> int:
        """Return how many leading ids of a chain, at most `most`, are present. O(log n); changes nothing.

        The last token of a prompt is always computed, as its output is needed, so for a prompt alone `most` is
        (prompt_tokens - 1) // block_size.
        """
        runs = self._runs
        low, high = 0, min(most, len(chain))
        while low < high:  # fast: ids present come first; the test against the naive cache checks it
            middle = (low + high) // 2
            if chain[middle] in runs:
                low = middle + 1
            else:
                high = middle
        return low

    def idle_blocks_among(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Return the idle blocks of the first n ids, all present: `pin` takes them from the free ones. O(log n).

        n_tokens, here and below: those computed of the holder, which say what windows keep, where there are any.
        """
        runs = self._runs
        low, high = 0, n
        while low < high:  # fast: a holder holds all earlier ids, so idle ones come last
            middle = (low + high) // 2
            if runs[chain[middle]].n_holders:
                low = middle + 1
            else:
                high = middle
        return n - low

    def n_blocks(self, n: int, n_tokens: int) -> int:
        """Return the blocks in which a request with n_tokens computed holds its first n ids."""
        return n

    def pin(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Hold the first n ids, all present. Return their blocks that were idle, and now are not free."""
        n_idle = 0
        for run in self._cut(chain, 0, n):
            if not run.n_holders:
                del self._idle[run.number]
                n_idle += run.high - run.low
            run.n_holders += 1
        self.idle_blocks -= n_idle
        self.pinned_blocks += n_idle
        return n_idle

    def insert(self, chain: Chain, start: int, end: int, copies: set[int], n_tokens: int = 0) -> None:
        """Insert the ids [start, end) that the holder of [0, start) has computed, and hold them.

        Ids that others hold in other blocks are added to `copies`, which must be kept until the release; an id leaves
        it when its other blocks are gone. If the other block is idle, the new one replaces it, and the idle one loses
        its id and is evicted first; so neither used nor free blocks change.
        """
        n_present = max(start, self.match(chain, end))
        n_idle = 0
        for run in self._cut(chain, start, n_present):
            if run.n_holders:
                for block in run.ids:
                    copies.add(block)
                    self._copies.setdefault(block, []).append(copies)
            else:
                del self._idle[run.number]
                n_idle += run.high - run.low
            run.n_holders += 1
        if n_idle:
            self._rest(BlockRun(0, n_idle, []), first=True)
        self.pinned_blocks += n_idle + end - n_present
        if n_present == end:
            return
        new = list(chain[n_present:end])
        last = self._runs[chain[n_present - 1]] if n_present else None
        if last is not None and last.n_holders == 1 and last.high == n_present:  # it is the holder's own
            last.high = end
            last.ids += new
        else:
            last = BlockRun(n_present, end, new, 1)
        self._runs.update(dict.fromkeys(new, last))  # fast: a loop in C

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int], n_tokens: int = 0) -> int:
        """Release the first n ids of a request, some in `copies`, and own_blocks without an id.

        Return the blocks that become free: its own, and those without other holders. All are now idle. The eviction
        order is that of engines: first blocks without an id and extra copies, then its ids from the last to the first.
        """
        free: list[BlockRun] = []
        n_free = 0
        for run in self._cut(chain, 0, n):
            run.n_holders -= 1
            if not run.n_holders:
                free.append(run)
                n_free += run.high - run.low
            elif self._copies:
                for block in run.ids:
                    if block in self._copies:
                        own_blocks += self._frees_a_copy(block, run.n_holders, copies)
        if own_blocks:
            self._rest_unnamed(own_blocks)
        for run in reversed(free):
            self._rest(run)
        self.pinned_blocks -= n_free
        self.idle_blocks += n_free + own_blocks
        return n_free + own_blocks

    def add_idle(self, n_blocks: int) -> None:
        """Add idle blocks without ids, the last to evict."""
        self.idle_blocks += n_blocks
        self._rest_unnamed(n_blocks)

    # -- with copies outside of the GPU: blocks go by `keys`, which here are their ids --------------------------------

    def keys(self, chain: Chain, n: int, n_tokens: int) -> Chain:
        """Return the blocks in which a request with n_tokens computed holds its first n ids, the first ids first."""
        return chain[:n]

    def n_ids(self, keys: Chain, chain: Chain, n: int) -> int:
        """Return how many of the first n ids blocks are of."""
        return len(keys)

    def match_beyond(self, chain: Chain, most: int, beyond: Beyond) -> int:
        """Return the ids of the longest hit, at most `most`, of what is here and beyond."""
        return beyond.hits(chain, self.match(chain, most), most)

    def missing(self, chain: Chain, n: int) -> Chain:
        """Return the blocks of a hit of n ids that are not here."""
        return chain[self.match(chain, n) : n]

    def idle_blocks_here(self, chain: Chain, n: int, n_tokens: int) -> int:
        """Return the idle blocks here of a hit of n ids."""
        return self.idle_blocks_among(chain, self.match(chain, n), n_tokens)

    def pin_here(self, chain: Chain, n: int, n_tokens: int) -> int:
        """Hold what is here of a hit of n ids. Return the blocks that were idle, and now are not free."""
        return self.pin(chain, self.match(chain, n), n_tokens)

    def insert_missing(self, chain: Chain, n: int, missing: Chain, copies: set[int]) -> None:
        """Insert what a hit of n ids was missing, and hold it."""
        self.insert(chain, n - len(missing), n, copies)

    def drop(self, chain: Chain, n: int, tokens: tuple[int, int], copies: set[int]) -> int:
        """Release what windows keep no longer of a request with n ids, as its tokens computed grow from the first
        number to the second. Return the blocks that become free."""
        return 0

    def evict(self, n_blocks: int) -> None:
        """Evict n_blocks idle blocks, the longest idle first; needs n_blocks <= idle_blocks."""
        runs = self._runs
        self.idle_blocks -= n_blocks
        while n_blocks > 0:
            run = self._idle[next(iter(self._idle))]
            low = max(run.low, run.high - n_blocks)
            for block in run.ids[low - run.low :]:
                del runs[block]
            del run.ids[low - run.low :]
            n_blocks -= run.high - low
            run.high = low
            if low == run.low:
                del self._idle[run.number]

    def check(self) -> None:
        """Assert the invariant. O(ids)."""
        runs = {id(run): run for run in self._runs.values()}.values()
        named = {block: run for run in runs for block in run.ids}
        assert named == self._runs, "an id is in none of its runs, or in two"
        free = [run for run in runs if not run.n_holders]
        assert all(self._idle.get(run.number) is run for run in free), "a run without holders is not idle"
        idle = self._idle.values()
        assert sum(map(bool, (run.ids for run in idle))) == len(free), "an idle run has holders"
        assert all(run.low < run.high and len(run.ids) in (0, run.high - run.low) for run in (*runs, *idle)), "its ends"
        n_idle = sum(run.high - run.low for run in idle)
        assert self.idle_blocks == n_idle, (self.idle_blocks, n_idle)
        assert self.pinned_blocks == len(named) - sum(len(run.ids) for run in free), self.pinned_blocks
        copied = self._copies.items()
        assert all(0 < len(owners) < self._runs[block].n_holders for block, owners in copied), self._copies

    def _cut(self, chain: Chain, start: int, end: int) -> list[BlockRun]:
        """Return the runs of the ids [start, end), all present, in order; a run begins at `start`. The last one is cut
        in two if it goes on otherwise than the chain, or farther."""
        runs = self._runs
        parts: list[BlockRun] = []
        while start < end:
            run = runs[chain[start]]
            high = min(run.high, end)
            if runs[chain[high - 1]] is not run:
                low = start + 1
                while low < high:  # fast: its ids come first
                    middle = (low + high) // 2
                    if runs[chain[middle]] is run:
                        low = middle + 1
                    else:
                        high = middle
            if high < run.high:
                run = self._split(run, high)
            parts.append(run)
            start = high
        return parts

    def _split(self, run: BlockRun, at: int) -> BlockRun:
        """Cut a run in two; return the first part, which is about to be held if it is idle."""
        n_first = at - run.low
        first, rest = run.ids[:n_first], run.ids[n_first:]
        if n_first < len(rest):  # fast: the smaller part is written anew
            new = part = BlockRun(run.low, at, first, run.n_holders)
            run.low, run.ids = at, rest
        else:
            new, part = BlockRun(at, run.high, rest, run.n_holders), run
            run.high, run.ids = at, first
            if not run.n_holders:  # the second part keeps the place in the eviction order
                new.number = run.number
                self._idle[new.number] = new
        self._runs.update(dict.fromkeys(new.ids, new))
        if not part.n_holders:
            self._rest(part)
        return part

    def _rest(self, run: BlockRun, first: bool = False) -> None:
        """Add a run of idle blocks, the last or the first to evict."""
        self._n_runs += 1
        run.number = self._n_runs
        self._idle[self._n_runs] = run
        if first:
            self._idle.move_to_end(self._n_runs, last=False)

    def _rest_unnamed(self, n_blocks: int) -> None:
        """Add idle blocks without ids to the eviction order, in a run with those before them."""
        last = next(reversed(self._idle), -1)
        run = self._idle.get(last)
        if run is not None and not run.ids:
            run.high += n_blocks
        else:
            self._rest(BlockRun(0, n_blocks, []))

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
