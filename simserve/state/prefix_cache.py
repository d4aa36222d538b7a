"""PrefixCache: reusable KV blocks of one replica, their holders and their eviction order."""

from collections import OrderedDict
from collections.abc import Sequence

Chain = Sequence[int]
"""Chained block ids of a request, first block first: equal ids mean that all tokens up to there are equal."""


class IdleRun:
    """Blocks that became idle together: of the ids [low, high) of a chain, or without ids; the last goes first."""

    __slots__ = ("high", "ids", "low", "start")

    def __init__(self, ids: Chain, start: int, n_blocks: int) -> None:
        self.ids = ids
        """Ids [start, start + n_blocks) of the chain; empty for blocks without ids."""
        self.start = self.low = start
        self.high = start + n_blocks


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

    Invariant: pinned_blocks = ids with holders; idle_blocks = sum of _idle; the runs of _idle have exactly the ids
    present that have no holders, each where its chain has it; an id has fewer copies than holders.
    """

    __slots__ = ("_copies", "_holders", "_idle", "_n_runs", "idle_blocks", "pinned_blocks")

    def __init__(self) -> None:
        self.pinned_blocks = 0
        """Blocks with an id that has holders, each counted once."""
        self.idle_blocks = 0
        """Blocks without holders, with or without an id."""
        self._holders: dict[int, int] = {}
        """Number of requests that hold each id present; for an idle id the negative number of its run."""
        self._copies: dict[int, list[set[int]]] = {}
        """For ids present more than once: the `copies` of the requests that have one, the oldest first."""
        self._idle: OrderedDict[int, IdleRun] = OrderedDict()
        """Runs of idle blocks by number, the next to evict first."""
        self._n_runs = 0

    def __len__(self) -> int:
        """Return the number of ids present."""
        return len(self._holders)

    def match(self, chain: Chain, most: int) -> int:
        """Return how many leading ids of a chain, at most `most`, are present. O(log n); changes nothing.

        The last token of a prompt is always computed, as its output is needed, so for a prompt alone `most` is
        (prompt_tokens - 1) // block_size.
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
        return n - self._n_with(chain, n, 1)

    def pin(self, chain: Chain, n: int) -> int:
        """Hold the first n ids, all present. Return their blocks that were idle, and now are not free."""
        holders = self._holders
        n_held = self._n_with(chain, n, 1)
        for block in chain[:n_held]:
            holders[block] += 1
        self._wake(chain, n_held, n)
        holders.update(dict.fromkeys(chain[n_held:n], 1))  # fast: a loop in C, as are those below
        self.idle_blocks -= n - n_held
        self.pinned_blocks += n - n_held
        return n - n_held

    def insert(self, chain: Chain, start: int, end: int, copies: set[int]) -> None:
        """Insert the ids [start, end) that the holder of [0, start) has computed, and hold them.

        Ids that others hold in other blocks are added to `copies`, which must be kept until the release; an id leaves
        it when its other blocks are gone. If the other block is idle, the new one replaces it, and the idle one loses
        its id and is evicted first; so neither used nor free blocks change.
        """
        holders = self._holders
        n_present = max(start, self.match(chain, end))
        n_held = max(start, self._n_with(chain, n_present, 1))
        for block in chain[start:n_held]:
            holders[block] += 1
            copies.add(block)
            self._copies.setdefault(block, []).append(copies)
        if n_held < n_present:
            self._wake(chain, n_held, n_present)
            self._rest(IdleRun((), 0, n_present - n_held), first=True)
        holders.update(dict.fromkeys(chain[n_held:end], 1))
        self.pinned_blocks += end - n_held

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int]) -> int:
        """Release the first n ids of a request, some in `copies`, and own_blocks without an id.

        Return the blocks that become free: its own, and those without other holders. All are now idle. The eviction
        order is that of engines: first blocks without an id and extra copies, then its ids from the last to the first.
        """
        holders = self._holders
        n_shared = self._n_with(chain, n, 2)  # ids with copies are among these
        for block in chain[:n_shared]:
            holders[block] -= 1
            if block in self._copies:
                own_blocks += self._frees_a_copy(block, holders[block], copies)
        if own_blocks:
            self._rest(IdleRun((), 0, own_blocks))
        if n > n_shared:
            free = chain[n_shared:n]
            holders.update(dict.fromkeys(free, -self._rest(IdleRun(free, n_shared, n - n_shared))))
            self.pinned_blocks -= n - n_shared
        n_free = n - n_shared + own_blocks
        self.idle_blocks += n_free
        return n_free

    def evict(self, n_blocks: int) -> None:
        """Evict n_blocks idle blocks, the longest idle first; needs n_blocks <= idle_blocks."""
        holders = self._holders
        self.idle_blocks -= n_blocks
        while n_blocks > 0:
            number = next(iter(self._idle))
            run = self._idle[number]
            low = max(run.low, run.high - n_blocks)
            for block in run.ids[low - run.start : run.high - run.start]:
                del holders[block]
            n_blocks -= run.high - low
            run.high = low
            if low == run.low:
                del self._idle[number]

    def check(self) -> None:
        """Assert the invariant. O(ids)."""
        free = {block: -number for block, number in self._holders.items() if number <= 0}
        assert self.pinned_blocks == len(self._holders) - len(free), self.pinned_blocks
        n_idle = sum(run.high - run.low for run in self._idle.values())
        assert self.idle_blocks == n_idle, (self.idle_blocks, n_idle)
        assert all(run.low < run.high for run in self._idle.values()), "an empty run"
        named = {
            block: number
            for number, run in self._idle.items()
            for block in run.ids[run.low - run.start : run.high - run.start]
        }
        assert named == free, "an idle id is held, or a free one is not idle"
        assert all(0 < len(owners) < self._holders[block] for block, owners in self._copies.items()), self._copies

    def _n_with(self, chain: Chain, n: int, n_holders: int) -> int:
        """Return how many of the first n ids, all present, have n_holders or more. O(log n)."""
        holders = self._holders
        low, high = 0, n
        while low < high:  # fast: a holder holds all earlier ids, so those with more holders come first
            middle = (low + high) // 2
            if holders[chain[middle]] >= n_holders:
                low = middle + 1
            else:
                high = middle
        return low

    def _rest(self, run: IdleRun, first: bool = False) -> int:
        """Add a run of idle blocks, the last or the first to evict; return its number."""
        self._n_runs += 1
        self._idle[self._n_runs] = run
        if first:
            self._idle.move_to_end(self._n_runs, last=False)
        return self._n_runs

    def _wake(self, chain: Chain, start: int, end: int) -> None:
        """Take the ids [start, end), all idle, from their runs: always the first ones, as all ids before are held."""
        holders = self._holders
        while start < end:
            number = holders[chain[start]]
            low, high = start + 1, min(self._idle[-number].high, end)
            while low < high:  # fast: a run goes on as its own chain does, so its ids come first
                middle = (low + high) // 2
                if holders[chain[middle]] == number:
                    low = middle + 1
                else:
                    high = middle
            run = self._idle[-number]
            run.low = start = low
            if run.low == run.high:
                del self._idle[-number]

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
