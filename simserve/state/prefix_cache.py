"""PrefixCache: reusable KV blocks of one replica, their holders and their eviction order."""

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from itertools import groupby
from typing import Final, Protocol, cast

from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.state.request import IdRuns

Chain = Sequence[int]
"""Chained block ids of a request, first block first: equal ids mean that all tokens up to there are equal."""

PLACE_BITS: Final = 26
MOST_PLACES: Final = (1 << PLACE_BITS) - 1
"""Limit of the blocks of a chain."""
NEVER: Final = 1 << 62
"""More tokens, and steps, than any request has."""


class Beyond(Protocol):
    """Copies of blocks outside of the GPU."""

    def has(self, block: int) -> bool:
        """Return whether a block is there."""

    def hits(self, chain: Chain, n_here: int, most: int) -> int:
        """Return how many of the first `most` ids are on the GPU, which has n_here of them, or there."""


class BlockRun:
    """Consecutive blocks of a chain that the same requests hold; or idle ones without ids."""

    __slots__ = ("group", "high", "ids", "low", "n_gone", "n_holders", "n_parts", "number", "tail")

    def __init__(self, group: "BlockGroup", low: int, high: int, ids: list[int], n_holders: int) -> None:
        self.group = group
        self.low = low
        """Place of its first block in its chain; its last one is before `high`."""
        self.high = high
        self.ids = ids
        """Ids of its blocks; empty for blocks without ids."""
        self.n_holders = n_holders
        """Requests that hold all of it; 0: it is idle."""
        self.n_parts = group.n_parts
        """Blocks that it has of each id: fewer than the group once some are evicted."""
        self.n_gone = 0
        """Number of its last ids of which it has one block less."""
        self.tail: BlockRun | None = None
        """The last of its ids of which parts are evicted."""
        self.number = 0
        """Its place in the eviction order, if it is idle."""


class BlockGroup:
    """Layers that keep the same tokens, and the runs of their blocks with an id."""

    __slots__ = (
        "copies",
        "first_part",
        "index",
        "is_chunked",
        "n_ids",
        "n_parts",
        "runs",
        "tokens",
        "torn",
        "window",
    )

    def __init__(self, index: int, blocks: KvGroup, n_ids: int, n_parts: int, first_part: int) -> None:
        self.index = index
        # fast: numbers of its own, which the steps of all its requests look at
        self.window = blocks.layers.window or 0
        """Tokens of its window or chunk; 0: it keeps all."""
        self.is_chunked = blocks.layers.kind == "chunked"
        self.tokens = blocks.tokens
        """Tokens of a block."""
        self.n_ids = n_ids
        """Ids of a block, which goes by the last of them."""
        self.n_parts = n_parts
        """Blocks that its layers take for the same tokens."""
        self.first_part = first_part
        """Blocks that the groups before it take for these."""
        self.runs: dict[int, BlockRun] = {}
        """The run of each id present in all parts."""
        self.torn: dict[int, BlockRun] = {}
        """The run of each id of which some parts are evicted: idle ones, which no request can find."""
        self.copies: dict[int, list[set[int]]] = {}
        """For ids present more than once: the `copies` of the requests that have one, the oldest first."""

    def of(self, chain: Chain) -> Chain:
        """Return the ids that its blocks go by."""
        return chain if self.n_ids == 1 else chain[self.n_ids - 1 :: self.n_ids]

    def first_kept(self, n_tokens: int) -> int:
        """Return the number of the first block that a request with n_tokens computed keeps."""
        window = self.window
        if n_tokens < window or not window:
            return 0
        return (n_tokens // window * window if self.is_chunked else n_tokens - window + 1) // self.tokens

    def next_drop(self, n_tokens: int, n_ids: int) -> int:
        """Return the least number of tokens, above n_tokens, with which a window has left one more block of the first
        n_ids ids; NEVER: it has left them all."""
        window, n_left = self.window, self.first_kept(n_tokens) + 1
        if not window or n_left * self.n_ids > n_ids:
            return NEVER
        end = n_left * self.tokens
        return -(-end // window) * window if self.is_chunked else end + window - 1

    def n_leading(self, of: Chain, most: int) -> int:
        """Return how many leading blocks, at most `most`, are present in layers without a window. O(log n)."""
        runs, in_runs = self.runs, type(of) is IdRuns
        low, high = 0, min(most, len(of))
        while low < high:  # fast: ids present come first; the test against the naive cache checks it
            middle = (low + high) // 2
            block = cast("IdRuns", of).at(middle) if in_runs else of[middle]
            if block in runs:
                low = middle + 1
            else:
                high = middle
        return low


def block_groups(layers: LayerBlocks, *, by_part: bool = False) -> list[BlockGroup]:
    """Return the groups of layers, those with a window first, or a group for each of their parts."""
    groups: list[BlockGroup] = []
    n_before = 0
    with_blocks = (group for group in layers.groups if group.n_parts)
    for _, each in groupby(with_blocks, key=lambda group: (group.layers, group.tokens)):
        alike = [*each]
        n_ids, n_alike = alike[0].tokens // layers.id_tokens, sum(group.n_parts for group in alike)
        for n_parts in [1] * n_alike if by_part else [n_alike]:
            groups.append(BlockGroup(len(groups), alike[0], n_ids, n_parts, n_before))
            n_before += n_parts
    return groups


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

    Where layers keep different tokens, each group has blocks of its own for the same tokens. In windows, a request
    holds the ids that its next token attends: blocks that leave a window are idle, and are found until they are
    evicted. A hit ends where layers without a window have all ids, and each window has what the next token attends;
    where blocks of some layers hold several ids, at the end of one of these. Blocks that become idle together are
    evicted in the order of the windows, then of the other layers, part by part, each from the last id to the first.
    Sources: vLLM V1, kv_cache_coordinator.py (lcm_block_size) and single_type_kv_cache_manager.py.

    fast: holders are counted by run of blocks, not by block; an id is written when it comes, when its run is cut in
    two, and when it goes. A request holds whole runs: what it finds is cut off where it begins and ends. The parts of a
    group share a run until eviction begins with one of them.

    Invariant: pinned_blocks = blocks with ids and holders; idle_blocks = sum of _idle, less _n_due; each id present is
    in one run of a group, where its chain has it, and in _idle if the run has no holders; an id has fewer copies than
    holders.
    """

    __slots__ = (
        "_groups",
        "_idle",
        "_is_plain",
        "_n_due",
        "_n_first",
        "_n_parts",
        "_n_rests",
        "_order",
        "_size",
        "_step",
        "_unnamed",
        "_windows",
        "idle_blocks",
        "n_doubled",
        "pinned_blocks",
    )

    def __init__(self, layers: LayerBlocks, *, by_part: bool = False) -> None:
        """by_part: the parts of a group go by themselves, as other tiers hold them."""
        self.n_doubled = 0
        """Holders of blocks in windows that share one with an earlier holder."""
        self.pinned_blocks = 0
        """Blocks with an id that has holders, each counted once."""
        self.idle_blocks = 0
        """Blocks without holders, with or without an id."""
        size = self._size = layers.id_tokens
        """Tokens of an id."""
        self._step = layers.common_tokens // size
        """Hits are multiples of as many ids."""
        self._groups = block_groups(layers, by_part=by_part)
        """Groups with a window come first."""
        self._n_parts = sum(group.n_parts for group in self._groups)
        self._windows = [group for group in self._groups if group.window]
        self._is_plain = self._n_parts == 1 and not self._windows
        """All layers keep all tokens, in one block."""
        self._idle: dict[int, BlockRun] = {}
        """Idle runs by number; of a run, the last block goes first."""
        self._order: list[int] = []
        """A heap of these numbers, the next to evict first, and of some that are gone."""
        self._n_rests = 0
        """Last number given to blocks that became idle, without their place in the chain."""
        self._n_due = 0
        """Evicted blocks that are not gone yet: the first of the eviction order."""
        self._n_first = 0
        """Last number given to blocks to evict before all others; below 0."""
        self._unnamed: BlockRun | None = None
        """The last run of idle blocks without ids."""

    def __len__(self) -> int:
        """Return the number of blocks with an id."""
        self._settle()
        n_torn = sum(run.n_parts for group in self._groups for run in group.torn.values())
        n_gone = sum(run.n_gone for run in self._idle.values())
        return sum(group.n_parts * len(group.runs) for group in self._groups) + n_torn - n_gone

    # -- lookups -----------------------------------------------------------------------------------------------------

    def match(self, chain: Chain, most: int) -> int:
        """Return the ids of the longest hit, at most `most`. Changes nothing. O(log n), and O(n) in windows.

        The last token of a prompt is always computed, as its output is needed, so for a prompt alone `most` is
        (prompt_tokens - 1) // block_size.
        """
        self._settle()
        return self._groups[0].n_leading(chain, most) if self._is_plain else self._longest(chain, most, None)

    def match_beyond(self, chain: Chain, most: int, beyond: Beyond) -> int:
        """Return the ids of the longest hit, at most `most`, of what is here and beyond. O(n) with windows."""
        if self._is_plain:
            return beyond.hits(chain, self.match(chain, most), most)
        self._settle()
        return self._longest(chain, most, beyond)

    def _longest(self, chain: Chain, most: int, beyond: Beyond | None) -> int:
        step, whole = self._step, [group for group in self._groups if not group.window]
        last = n = min(most, len(chain)) // step * step
        for group in whole:
            n = min(n, group.n_leading(group.of(chain), n // group.n_ids) * group.n_ids // step * step)
        if beyond is not None:
            while n < last and all(self._has(group, chain, n, n + step, beyond) for group in whole):
                n += step
        n_before = -1
        while n != n_before:
            n_before = n
            for group in self._windows:
                n = self._longest_in(group, group.of(chain), n, beyond)
        return n

    def _has(self, group: BlockGroup, chain: Chain, start: int, end: int, beyond: Beyond) -> bool:
        """Return whether all blocks between two ids are here or beyond."""
        ids = group.of(chain)[start // group.n_ids : end // group.n_ids]
        return all(block in group.runs or beyond.has(self._key(group, block)) for block in ids)

    def _longest_in(self, group: BlockGroup, of: Chain, n: int, beyond: Beyond | None) -> int:
        """Return the most ids, at most n, behind which a window has all that the next token attends."""
        runs, n_ids = group.runs, group.n_ids
        while n:
            at, first = n // n_ids - 1, group.first_kept(n * self._size)
            if all(map(runs.__contains__, of[first : at + 1])):  # fast: many runs of few blocks, but a loop in C
                break
            while at >= first:
                run = runs.get(of[at])
                if run is not None:
                    at = run.low
                elif beyond is None or not beyond.has(self._key(group, of[at])):
                    break
                at -= 1
            if at < first:
                break
            n = at * n_ids // self._step * self._step  # all longer hits need this block, too
        return n

    def idle_blocks_among(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Return the idle blocks here of a hit of n ids that a request with n_tokens computed keeps: `pin` takes them
        from the free ones. O(runs).

        n_tokens, here and below: those computed of the holder, which say what windows keep, where there are any.
        """
        self._settle()
        n_idle = 0
        for group in self._groups:
            runs, of, first, at = group.runs, group.of(chain), group.first_kept(n_tokens), n // group.n_ids
            while at > first:
                run = runs.get(of[at - 1])
                if run is None:
                    at -= 1
                    continue
                low = max(run.low, first)
                if not run.n_holders:
                    n_idle += (at - low) * group.n_parts
                elif not group.window:
                    break  # fast: a holder holds all earlier ids, so idle ones come last
                at = low
        return n_idle

    def n_blocks(self, n: int, n_tokens: int) -> int:
        """Return the blocks in which a request with n_tokens computed holds its first n ids."""
        if self._is_plain:
            return n
        n_blocks = 0
        for group in self._groups:
            n_blocks += max(0, n // group.n_ids - group.first_kept(n_tokens)) * group.n_parts
        return n_blocks

    # -- holding and releasing -----------------------------------------------------------------------------------------

    def pin(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Hold what is here of the first n ids, as a request with n_tokens computed does; the rest is read from beyond.
        Return the blocks that were idle, and now are not free."""
        self._settle()
        n_idle = 0
        for group in self._groups:
            first = group.first_kept(n_tokens)
            for run in self._cut(group.runs, group.of(chain), first, n // group.n_ids):
                n_blocks = (run.high - run.low) * group.n_parts
                if not run.n_holders:
                    del self._idle[run.number]
                    n_idle += n_blocks
                elif group.window:
                    self.n_doubled += n_blocks
                run.n_holders += 1
        self.idle_blocks -= n_idle
        self.pinned_blocks += n_idle
        return n_idle

    def insert(self, chain: Chain, start: int, end: int, copies: set[int], n_tokens: int = 0) -> None:
        """Insert the ids [start, end) that the holder of [0, start) has computed, and hold them; in windows only those
        that it keeps with n_tokens computed.

        What others hold in other blocks is added to `copies`, which must be kept until the release; it leaves it when
        the other blocks are gone. If the other block is idle, the new one replaces it, and the idle one loses its id
        and is evicted first; so neither used nor free blocks change.
        """
        for group in self._groups:
            n_ids, first = group.n_ids, group.first_kept(n_tokens)
            self._hold_new(group, group.of(chain), (max(start // n_ids, first), end // n_ids), first, copies)

    def _hold_new(self, group: BlockGroup, of: Chain, places: tuple[int, int], first: int, copies: set[int]) -> None:
        """Hold blocks [at, end) that were computed or read, by the holder of those from `first` to there."""
        runs, n_parts, n_idle = group.runs, group.n_parts, 0
        at, end = places
        if end - at == 1 and at > first and of[at] not in runs and of[at] not in group.torn:  # fast: as in most decodes
            own = runs[of[at - 1]]
            if own.n_holders == 1:
                own.high = end
                own.ids.append(of[at])
                runs[of[at]] = own
                self.pinned_blocks += n_parts
                return
        if at < end:
            self._settle()
        while at < end:
            high = end
            if of[at] in runs:
                if not group.window:
                    high = group.n_leading(of, end)
                else:
                    high = next((i for i in range(at + 1, end) if of[i] not in runs), end)
                for run in self._cut(runs, of, at, high):
                    if run.n_holders:
                        self._copy(run, copies)
                    else:
                        del self._idle[run.number]
                        n_idle += (run.high - run.low) * n_parts
                        self.pinned_blocks += (run.high - run.low) * n_parts
                    run.n_holders += 1
            else:
                new = list(of[at:end])
                if group.window and not runs.keys().isdisjoint(new):
                    high = next(i for i in range(at + 1, end) if of[i] in runs)
                    del new[high - at :]
                if group.torn:
                    n_idle += self._drop_torn(group, of, at, high)
                last = runs[of[at - 1]] if at > first else None
                if last is not None and last.n_holders == 1:  # it is the holder's own, so it ends here
                    last.high = high
                    last.ids += new
                else:
                    last = BlockRun(group, at, high, new, 1)
                runs.update(dict.fromkeys(new, last))  # fast: a loop in C
                self.pinned_blocks += len(new) * n_parts
            at = high
        if n_idle:
            self._n_first -= 1
            self._rest(BlockRun(group, 0, n_idle, [], 0), self._n_first)

    def _copy(self, run: BlockRun, copies: set[int]) -> None:
        """Note that a holder has copies of the blocks of a run."""
        for block in run.ids:
            copies.add(self._key(run.group, block))
            run.group.copies.setdefault(block, []).append(copies)

    def _drop_torn(self, group: BlockGroup, of: Chain, start: int, end: int) -> int:
        """Take the ids from what is left of blocks that are computed again; return how many blocks are left."""
        n_left = 0
        for run in self._cut(group.torn, of, start, end):
            del self._idle[run.number]
            n_left += (run.high - run.low) * run.n_parts - run.n_gone
            for block in run.ids:
                del group.torn[block]
        return n_left

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int], n_tokens: int = 0) -> int:
        """Release the first n ids of a request with n_tokens computed, some in `copies`, and own_blocks without an id.

        Return the blocks that become free: its own, and those without other holders. All are now idle. The eviction
        order is that of engines: first blocks without an id and extra copies, then its ids from the last to the first.
        """
        free: list[BlockRun] = []
        for group in self._groups:
            first, end = group.first_kept(n_tokens), n // group.n_ids
            own_blocks += self._let_go(self._cut(group.runs, group.of(chain), first, end), copies, free)
        return self._rest_all(free, own_blocks)

    def drop(self, chain: Chain, n: int, tokens: tuple[int, int], copies: set[int]) -> int:
        """Release what windows keep no longer of a request with n ids, as its tokens computed grow from the first
        number to the second. Return the blocks that become free."""
        free: list[BlockRun] = []
        own_blocks = 0
        for group in self._windows:
            first, end, n_named = group.first_kept(tokens[0]), group.first_kept(tokens[1]), n // group.n_ids
            if end > n_named:
                own_blocks += (end - max(first, n_named)) * group.n_parts
                end = n_named
            if first >= end:
                continue
            of = group.of(chain)
            run = group.runs[of[first]]
            if run.n_holders == 1 and run.low == first and end == first + 1 < run.high:  # fast: as in most decode steps
                run.low = end
                new = group.runs[of[first]] = BlockRun(group, first, end, [run.ids.pop(0)], 0)
                free.append(new)
            elif run.low == first and run.high == end:
                own_blocks += self._let_go([run], copies, free)
            else:
                own_blocks += self._let_go(self._cut(group.runs, of, first, end), copies, free)
        return self._rest_all(free, own_blocks)

    def _let_go(self, runs: list[BlockRun], copies: set[int], free: list[BlockRun]) -> int:
        """Release runs; append those that become idle, and return the copies that become free."""
        n_freed = 0
        for run in runs:
            run.n_holders -= 1
            if not run.n_holders:
                free.append(run)
                continue
            group, n_before = run.group, n_freed
            if group.copies and not group.copies.keys().isdisjoint(run.ids):
                for block in run.ids:
                    if block in group.copies and self._frees_a_copy(group, block, run.n_holders, copies):
                        n_freed += group.n_parts
            if group.window:
                self.n_doubled -= (run.high - run.low) * group.n_parts - (n_freed - n_before)
        return n_freed

    def _frees_a_copy(self, group: BlockGroup, block: int, n_left: int, mine: set[int]) -> bool:
        """Release a block present more than once, with n_left holders remaining; return whether it becomes free: its
        own copy, or one that it was the last to share."""
        owners, key = group.copies[block], self._key(group, block)
        if key in mine:
            mine.discard(key)
            owners[:] = [each for each in owners if each is not mine]
        elif n_left == len(owners):  # all remaining holders have copies; later requests share the oldest
            owners.pop(0).discard(key)
        else:
            return False
        if not owners:
            del group.copies[block]
        return True

    # -- with copies outside of the GPU: blocks go by `keys` -----------------------------------------------------------

    def _key(self, group: BlockGroup, block: int) -> int:
        return block * len(self._groups) + group.index

    def keys(self, chain: Chain, n: int, n_tokens: int) -> Chain:
        """Return the blocks in which a request with n_tokens computed holds its first n ids, the first ids first."""
        if self._is_plain:
            return chain[:n]
        firsts = [(group, group.n_ids, group.first_kept(n_tokens)) for group in self._groups]
        return [
            self._key(group, chain[i])
            for i in range(n)
            for group, n_ids, first in firsts
            if i // n_ids >= first and (i + 1) % n_ids == 0
        ]

    def n_ids(self, keys: Chain, chain: Chain, n: int) -> int:
        """Return how many of the first n ids blocks are of."""
        n_groups = len(self._groups)
        if self._step == 1:
            return len({key // n_groups for key in keys})
        numbers = {block: number for number, block in enumerate(chain[:n])}
        blocks = [(numbers[key // n_groups], self._groups[key % n_groups].n_ids) for key in keys]
        return len({number - i for number, n_ids in blocks for i in range(n_ids)})

    def missing(self, chain: Chain, n: int) -> Chain:
        """Return the blocks of a hit of n ids that are not here."""
        if self._is_plain:
            return chain[self.match(chain, n) : n]
        self._settle()
        groups, n_groups = self._groups, len(self._groups)
        keys = self.keys(chain, n, n * self._size)
        return [key for key in keys if key // n_groups not in groups[key % n_groups].runs]

    def insert_missing(self, chain: Chain, n: int, missing: Chain, copies: set[int]) -> None:
        """Insert what a hit of n ids was missing, and hold it."""
        if self._is_plain:
            self.insert(chain, n - len(missing), n, copies)
            return
        keys = set(missing)
        for group in self._groups:
            of, first = group.of(chain), group.first_kept(n * self._size)
            for at in range(first, n // group.n_ids):
                if self._key(group, of[at]) in keys:
                    self._hold_new(group, of, (at, at + 1), first, copies)

    # -- eviction ----------------------------------------------------------------------------------------------------

    def add_idle(self, n_blocks: int) -> None:
        """Add idle blocks without ids, the last to evict."""
        self._rest_all([], n_blocks)

    def evict(self, n_blocks: int) -> None:
        """Evict n_blocks idle blocks, the longest idle first; needs n_blocks <= idle_blocks.

        fast: what becomes idle later is evicted later, so they go when their ids might be found.
        """
        if n_blocks > self.idle_blocks:
            raise IndexError("more blocks to evict than are idle")
        self.idle_blocks -= n_blocks
        self._n_due += n_blocks

    def _settle(self) -> None:
        """Take the ids from evicted blocks."""
        idle, order, n_blocks = self._idle, self._order, self._n_due
        self._n_due = 0
        while n_blocks > 0:
            number = order[0]
            run = idle.get(number)
            if run is None:
                heappop(order)
                continue
            group, ids = run.group, run.ids
            n_ids, n_parts = run.high - run.low, run.n_parts
            n_left = n_ids - run.n_gone
            n = min(n_blocks, n_left)
            n_blocks -= n
            if not ids:
                run.high -= n
            elif n_parts == 1:
                named = group.runs if group.n_parts == 1 else group.torn
                for block in ids[-n:]:
                    del named[block]
                del ids[-n:]
                run.high -= n
            elif n < n_left:
                if n_parts == group.n_parts:
                    self._tear(run, n)
                else:
                    run.n_gone += n
            elif n_ids * (n_parts - 1) <= n_blocks and (number >> PLACE_BITS) + n_parts <= self._next_number():
                named = group.runs if n_parts == group.n_parts else group.torn  # no other run's turn is before its end
                for block in ids:
                    del named[block]
                n_blocks -= n_ids * (n_parts - 1)
                run.low = run.high
            else:  # go on with the next part
                if n_parts == group.n_parts:
                    self._hide(group, ids, run)
                run.n_gone, run.n_parts = 0, n_parts - 1
                del idle[number]
                run.number = number = (((number >> PLACE_BITS) + 1) << PLACE_BITS) + MOST_PLACES - run.high
                idle[number] = run
                heapreplace(order, number)
            if run.low == run.high:
                del idle[number]

    def _next_number(self) -> int:
        """Return a number, without a place in the chain, that no run but the first in the eviction order is below."""
        order = self._order
        return min(order[1:3], default=NEVER) >> PLACE_BITS

    def _hide(self, group: BlockGroup, ids: list[int], run: BlockRun) -> None:
        """Let no request find ids of which a part goes; the run has what is left of them."""
        for block in ids:
            del group.runs[block]
        group.torn.update(dict.fromkeys(ids, run))

    def _tear(self, run: BlockRun, n: int) -> None:
        """Evict the first part of the last n ids of a run; the others are evicted after this one of all its ids."""
        group, tail, ids = run.group, run.tail, run.ids[-n:]
        del run.ids[-n:]
        if tail is not None and tail.low == run.high and not tail.n_gone and self._idle.get(tail.number) is tail:
            tail.low -= n
            tail.ids[:0] = ids
        else:
            run.tail = tail = BlockRun(group, run.high - n, run.high, ids, 0)
            tail.n_parts = group.n_parts - 1
            self._rest(tail, (run.number >> PLACE_BITS) + 1)
        self._hide(group, ids, tail)
        run.high -= n

    def _rest_all(self, free: list[BlockRun], own_blocks: int) -> int:
        """Add runs without holders, after blocks without ids, as the last to evict; return their blocks."""
        n_free = 0
        if own_blocks:
            last = self._unnamed
            if last is not None and last.number >> PLACE_BITS == self._n_rests and last.number in self._idle:
                last.high += own_blocks
            else:
                self._n_rests += 1
                self._unnamed = last = BlockRun(self._groups[0], 0, own_blocks, [], 0)
                self._rest(last, self._n_rests)
        if free:
            for run in free:  # those of one group go from the last to the first by their places
                n_free += (run.high - run.low) * run.n_parts
                self._rest(run, self._n_rests + 1 + run.group.first_part)
            self._n_rests += self._n_parts
            self.pinned_blocks -= n_free
        self.idle_blocks += n_free + own_blocks
        return n_free + own_blocks

    def _rest(self, run: BlockRun, number: int) -> None:
        """Add a run to the eviction order: by number, and those of one number from the last block to the first."""
        run.number = number = (number << PLACE_BITS) + MOST_PLACES - run.high
        self._idle[number] = run
        heappush(self._order, number)
        if len(self._order) > 2 * len(self._idle) + 64:
            self._order = sorted(self._idle)

    # -- runs --------------------------------------------------------------------------------------------------------

    def _cut(self, runs: dict[int, BlockRun], of: Chain, start: int, end: int) -> list[BlockRun]:
        """Return the runs of the blocks [start, end) as far as present, the last first, cut off where these begin and
        end, and where they go on otherwise than the chain."""
        parts: list[BlockRun] = []
        at = end
        while at > start:
            run = runs.get(of[at - 1])
            if run is None:
                at -= 1
                continue
            if run.high > at:
                run, _ = self._split(runs, run, at)
            if run.low < start:
                _, run = self._split(runs, run, start)
            parts.append(run)
            at = run.low
        return parts

    def _split(self, runs: dict[int, BlockRun], run: BlockRun, at: int) -> tuple[BlockRun, BlockRun]:
        """Cut a run in two, which keep their places in the eviction order."""
        n_first, number = at - run.low, run.number
        first = rest = run
        if 2 * n_first < len(run.ids):  # fast: the smaller part is written anew
            first = new = BlockRun(run.group, run.low, at, run.ids[:n_first], run.n_holders)
            run.low = at
            del run.ids[:n_first]
        else:
            rest = new = BlockRun(run.group, at, run.high, run.ids[n_first:], run.n_holders)
            run.high = at
            del run.ids[n_first:]
        new.n_parts = run.n_parts
        runs.update(dict.fromkeys(new.ids, new))
        if not run.n_holders:
            rest.number = number
            self._idle[number] = rest
            self._rest(first, number >> PLACE_BITS)
            if run.n_gone:
                n_gone, n_rest = run.n_gone, rest.high - rest.low
                first.n_gone, rest.n_gone = max(0, n_gone - n_rest), min(n_gone, n_rest)
                if rest.n_gone == n_rest:
                    rest.n_gone, rest.n_parts = 0, rest.n_parts - 1
                    del self._idle[number]
                    self._rest(rest, (number >> PLACE_BITS) + 1)
        return first, rest
