"""PrefixCache: reusable KV blocks of one replica, and their holders."""

from typing import Protocol, cast

from simserve.state.block_runs import NEVER, BlockGroup, BlockRun, block_groups
from simserve.state.eviction import EvictionOrder
from simserve.state.id_runs import Chain, IdIndex, run_at
from simserve.state.layer_blocks import LayerBlocks


class Beyond(Protocol):
    """Copies of blocks outside of the GPU."""

    def has(self, block: int) -> bool:
        """Return whether a block is there."""

    def hits(self, chain: Chain, n_here: int, most: int) -> int:
        """Return how many of the first `most` ids are on the GPU, which has n_here of them, or there."""


class PrefixCache:
    """KV blocks of one replica by content id, as engines keep them by hash (vLLM) or in a tree (SGLang).

    A request holds the first n ids of its chain until it is done: those it found (`pin`) and those it computed
    (`insert`). Blocks without holders are idle: they keep their contents, count as free, and are evicted in the order
    in which they became idle, the last block of a request first (`evict`). So a holder of an id holds all before it,
    and no id is present without those before it.

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

    fast: holders are counted by run of blocks, not by block. A request holds whole runs: what it finds is cut off where
    it begins and ends.

    Invariant: pinned_blocks = blocks with ids and holders; each id present is in one run of a group, where its chain
    has it, and in `_idle` if the run has no holders; an id has fewer copies than holders.
    """

    def __init__(self, layers: LayerBlocks, *, by_part: bool = False) -> None:
        """by_part: the parts of a group go by themselves, as other tiers hold them."""
        self.n_doubled = 0
        """Holders of blocks in windows that share one with an earlier holder."""
        self.pinned_blocks = 0
        """Blocks with an id that has holders, each counted once."""
        size = self._size = layers.id_tokens
        """Tokens of an id."""
        self._step = layers.common_tokens // size
        """Hits are multiples of as many ids."""
        self._groups = block_groups(layers, by_part=by_part)
        """Groups with a window come first."""
        self._idle = EvictionOrder(self._groups)
        self._windows = [group for group in self._groups if group.window]
        self._whole = self._groups[len(self._windows) :]
        self._is_plain = len(self._groups) == 1 and self._groups[0].n_parts == 1 and not self._windows
        """All layers keep all tokens, in one block."""

    @property
    def idle_blocks(self) -> int:
        """Blocks without holders, with or without an id."""
        return self._idle.n_blocks

    # -- lookups -----------------------------------------------------------------------------------------------------

    def match(self, chain: Chain, most: int) -> int:
        """Return the ids of the longest hit, at most `most`. Changes nothing. The last token of a prompt is always
        computed, as its output is needed, so for a prompt alone `most` is (prompt_tokens - 1) // block_size."""
        self._idle.settle()
        return self._longest(chain, most, None)

    def match_beyond(self, chain: Chain, most: int, beyond: Beyond) -> int:
        """Return the ids of the longest hit, at most `most`, of what is here and beyond."""
        if self._is_plain:
            return beyond.hits(chain, self.match(chain, most), most)
        self._idle.settle()
        return self._longest(chain, most, beyond)

    def _longest(self, chain: Chain, most: int, beyond: Beyond | None) -> int:
        step, whole = self._step, self._whole
        last = n = min(most, len(chain)) // step * step
        for group in whole:
            n = group.runs.present_to(group.of(chain), 0, n // group.n_ids) * group.n_ids // step * step
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
        n_ids = group.n_ids
        while n:
            at, first = n // n_ids - 1, group.first_kept(n * self._size)
            low = NEVER
            while at >= first:
                if at < low:
                    low, _, block = run_at(of, at)
                run = group.run(block + at - low)
                if run is not None:
                    at = run.low
                elif beyond is None or not beyond.has(self._key(group, block + at - low)):
                    break
                at -= 1
            if at < first:
                break
            n = at * n_ids // self._step * self._step  # all longer hits need this block, too
        return n

    def idle_blocks_among(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Return the idle blocks here of a hit of n ids that a request with n_tokens computed keeps: `pin` takes them
        from the free ones.

        n_tokens, here and below: those computed of the holder, which say what windows keep, where there are any.
        """
        self._idle.settle()
        n_idle = 0
        for group in self._groups:
            of, first, at, low = group.of(chain), group.first_kept(n_tokens), n // group.n_ids, NEVER
            while at > first:
                if at <= low:
                    low, _, block = run_at(of, at - 1)
                run = group.run(block + at - 1 - low)
                if run is None:
                    at -= 1
                    continue
                start = max(run.low, first)
                if not run.n_holders:
                    n_idle += (at - start) * group.n_parts
                elif not group.window:
                    break  # fast: a holder holds all earlier ids, so idle ones come last
                at = start
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
        self._idle.settle()
        n_idle = 0
        for group in self._groups:
            first = group.first_kept(n_tokens)
            for run in self._cut(group.runs, group.of(chain), first, n // group.n_ids):
                if not run.n_holders:
                    n_idle += self._idle.remove(run)
                elif group.window:
                    self.n_doubled += run.n * group.n_parts
                run.n_holders += 1
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
        runs, n_idle = group.runs, 0
        at, end = places
        if at < end:
            self._idle.settle()
        while at < end:
            low, high, block = run_at(of, at)
            high = min(high, end)
            block -= low
            if block + at in runs:
                high = runs.present_to(of, at, end)
                for run in self._cut(runs, of, at, high):
                    if run.n_holders:
                        self._copy(run, copies)
                    else:
                        n_blocks = self._idle.remove(run)
                        n_idle += n_blocks
                        self.pinned_blocks += n_blocks
                    run.n_holders += 1
            else:
                if group.window:
                    last, high = high, at + 1
                    while high < last and block + high not in runs:
                        high += 1
                if group.torn:
                    n_idle += sum(map(self._drop_torn, self._cut(group.torn, of, at, high)))
                self._add_new(
                    group, group.run(of[at - 1]) if at > first else None, BlockRun(group, at, high - at, block + at, 1)
                )
            at = high
        if n_idle:
            self._idle.add_first(n_idle)

    def _add_new(self, group: BlockGroup, last: BlockRun | None, run: BlockRun) -> None:
        """Add a run that is not here; the one before it goes on if it is the holder's own."""
        self.pinned_blocks += run.n * group.n_parts
        if last is None or last.n_holders > 1 or run.first != last.first + last.n * group.n_ids:
            group.runs.put(run.first, run.n, run)
        else:
            last.n += run.n
            group.runs.put(run.first, run.n, last)

    def _copy(self, run: BlockRun, copies: set[int]) -> None:
        """Note that a holder has copies of the blocks of a run."""
        for block in run.ids:
            copies.add(self._key(run.group, block))
            run.group.copies.setdefault(block, []).append(copies)

    def _drop_torn(self, run: BlockRun) -> int:
        """Take the ids from what is left of blocks that are computed again; return how many blocks are left."""
        run.group.torn.put(run.first, run.n, None)
        return self._idle.remove(run)

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int], n_tokens: int = 0) -> int:
        """Release the first n ids of a request with n_tokens computed, some in `copies`, and own_blocks without an id.

        Return the blocks that become free: its own, and those without other holders. All are now idle. The eviction
        order is that of engines: first blocks without an id and extra copies, then its ids from the last to the first.
        """
        free: list[BlockRun] = []
        for group in self._groups:
            first, end = group.first_kept(n_tokens), n // group.n_ids
            own_blocks += self._let_go(self._cut(group.runs, group.of(chain), first, end), copies, free)
        return self._rest(free, own_blocks)

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
            own_blocks += self._let_go(self._cut(group.runs, group.of(chain), first, end), copies, free)
        return self._rest(free, own_blocks)

    def _let_go(self, runs: list[BlockRun], copies: set[int], free: list[BlockRun]) -> int:
        """Release runs; append those that become idle, and return the copies that become free."""
        n_freed = 0
        for run in runs:
            run.n_holders -= 1
            if not run.n_holders:
                free.append(run)
                continue
            group, n_before = run.group, n_freed
            if group.copies:
                for block in run.ids:
                    if block in group.copies and self._frees_a_copy(group, block, run.n_holders, copies):
                        n_freed += group.n_parts
            if group.window:
                self.n_doubled -= run.n * group.n_parts - (n_freed - n_before)
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

    def keys(self, chain: Chain, n: int, n_tokens: int) -> tuple[Chain, int]:
        """Return the blocks in which a request with n_tokens computed holds its first n ids, the first ids first: the
        first ones of what is returned, and how many."""
        if self._is_plain:
            return chain, n
        firsts = [(group, group.n_ids, group.first_kept(n_tokens)) for group in self._groups]
        keys = [
            self._key(group, chain[i])
            for i in range(n)
            for group, n_ids, first in firsts
            if i // n_ids >= first and (i + 1) % n_ids == 0
        ]
        return keys, len(keys)

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
        self._idle.settle()
        groups, n_groups = self._groups, len(self._groups)
        keys, _ = self.keys(chain, n, n * self._size)
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
        self._rest([], n_blocks)

    def evict(self, n_blocks: int) -> None:
        """Evict n_blocks idle blocks, the longest idle first; needs n_blocks <= idle_blocks."""
        self._idle.evict(n_blocks)

    def _rest(self, runs: list[BlockRun], own_blocks: int) -> int:
        """Let runs without holders be idle, after own_blocks without ids; return their blocks."""
        n_free = self._idle.add(runs, own_blocks)
        self.pinned_blocks -= n_free
        return n_free + own_blocks

    # -- runs --------------------------------------------------------------------------------------------------------

    def _cut(self, runs: IdIndex, of: Chain, start: int, end: int) -> list[BlockRun]:
        """Return the runs of the blocks [start, end) as far as present, the last first, cut off where these begin and
        end, and where they go on otherwise than the chain."""
        parts: list[BlockRun] = []
        at, low = end, NEVER
        while at > start:
            if at <= low:
                low, _, block = run_at(of, at - 1)
            run = cast("BlockRun | None", runs.get(block + at - 1 - low))
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

    def _split(self, runs: IdIndex, run: BlockRun, at: int) -> tuple[BlockRun, BlockRun]:
        """Cut a run in two, which keep their places in the eviction order."""
        n_first = at - run.low
        if 2 * n_first < run.n:  # fast: the smaller part is written anew
            first, rest = BlockRun(run.group, run.low, n_first, run.first, run.n_holders), run
            run.begin_later(n_first)
            first.number, first.n_parts = run.number, run.n_parts
            runs.put(first.first, first.n, first)
        else:
            first, rest = run, run.cut_off(run.n - n_first)
            rest.n_parts = run.n_parts
            runs.put(rest.first, rest.n, rest)
        if not run.n_holders:
            self._idle.split(first, rest)
        return first, rest
