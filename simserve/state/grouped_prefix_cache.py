"""GroupedPrefixCache: reusable KV blocks of one replica where layers keep different tokens."""

from collections.abc import Iterator

from simserve.state.layer_blocks import LayerBlocks
from simserve.state.prefix_cache import Beyond, BlockRun, Chain, PrefixCache


class GroupedPrefixCache(PrefixCache):
    """KV blocks by content id, with a key for each of the blocks that layers take for the same tokens.

    A hit ends where the layers without a window have all ids, and each window has what the next token attends. Where
    blocks of some layers hold several ids, it ends with one of these, which has the key of its last id. A request holds
    its ids in the former, and in windows those that its next token attends: blocks that leave a window are idle, and
    are found until they are evicted. All blocks are evicted in one order; those that become idle together in that of
    the windows, then of the other layers, each from the last id to the first. Sources: vLLM V1, kv_cache_coordinator.py
    (lcm_block_size) and single_type_kv_cache_manager.py.
    """

    __slots__ = ("_n_ids", "_n_parts", "_size", "_step", "_windows")

    def __init__(self, layers: LayerBlocks) -> None:
        super().__init__()
        self._size = layers.id_tokens
        """Tokens of an id."""
        self._step = layers.common_tokens // layers.id_tokens
        """Hits are multiples of as many ids."""
        self._n_parts = len(layers.kinds)
        self._windows = [group for group, _ in layers.kinds if group is not None]
        """The group of each of the first parts; the others have none."""
        self._n_ids = [size // layers.id_tokens for _, size in layers.kinds]
        """Ids in a block of each part."""

    def match(self, chain: Chain, most: int) -> int:
        """Return the ids of the longest hit, at most `most`. O(log n), and O(window) for each end tried."""
        return self._longest(chain, most, None)

    def match_beyond(self, chain: Chain, most: int, beyond: Beyond) -> int:
        """Return the ids of the longest hit, at most `most`, of what is here and beyond. O(n)."""
        return self._longest(chain, most, beyond)

    def _longest(self, chain: Chain, most: int, beyond: Beyond | None) -> int:
        runs, size, step, n_parts, n_windows = self._runs, self._size, self._step, self._n_parts, len(self._windows)
        last = min(most, len(chain)) // step * step
        n = min([self._n_leading(chain, part, last, 0) for part in range(n_windows, n_parts)], default=last)
        n = n // step * step
        while beyond is not None and n < last:
            parts = range(n_windows, n_parts)
            keys = [key for part in parts for key in self._keys(chain, part, n // self._n_ids[part], n + step)]
            if not all(key in runs or beyond.has(key) for key in keys):
                break
            n += step
        n_before = -1
        while n != n_before:
            n_before = n
            for part, group in enumerate(self._windows):
                n_ids = self._n_ids[part]
                for number in range(n // n_ids - 1, group.first_kept(n * size) // (n_ids * size) - 1, -1):
                    key = chain[(number + 1) * n_ids - 1] * n_parts + part
                    if key not in runs and (beyond is None or not beyond.has(key)):
                        n = number * n_ids // step * step  # all longer hits need this block, too
                        break
        return n

    def idle_blocks_among(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Return the idle blocks of a hit of n ids that a request with n_tokens computed keeps: `pin` takes them from
        the free ones."""
        n_idle, runs = 0, self._runs
        for part, first in self._firsts(n_tokens):
            if part < len(self._windows):
                keys = self._keys(chain, part, first, n)
                n_idle += sum(key in runs and not runs[key].n_holders for key in keys)
            else:
                n_ids_idle = self._n_leading(chain, part, n, 0) - self._n_leading(chain, part, n, 1)
                n_idle += n_ids_idle // self._n_ids[part]
        return n_idle

    def idle_blocks_here(self, chain: Chain, n: int, n_tokens: int) -> int:
        """Return the idle blocks here of a hit of n ids."""
        return self.idle_blocks_among(chain, n, n_tokens)

    def n_blocks(self, n: int, n_tokens: int) -> int:
        """Return the blocks in which a request with n_tokens computed holds its first n ids."""
        return sum(max(0, n // self._n_ids[part] - first) for part, first in self._firsts(n_tokens))

    def pin(self, chain: Chain, n: int, n_tokens: int = 0) -> int:
        """Hold the first n ids, all present, as a request with n_tokens computed does. Return their blocks that were
        idle, and now are not free."""
        n_idle = 0
        for part, first in self._firsts(n_tokens):
            for key in self._keys(chain, part, first, n):
                run = self._runs.get(key)
                if run is None:
                    continue  # it is read from beyond
                if run.n_holders:
                    self.n_doubled += part < len(self._windows)
                else:
                    del self._idle[run.number]
                    n_idle += 1
                run.n_holders += 1
        self.idle_blocks -= n_idle
        self.pinned_blocks += n_idle
        return n_idle

    def insert(self, chain: Chain, start: int, end: int, copies: set[int], n_tokens: int = 0) -> None:
        """Insert the ids [start, end) that the holder of [0, start) has computed, and hold them; in windows only those
        that it keeps with n_tokens computed. See PrefixCache."""
        for part, first in self._firsts(n_tokens):
            self._hold_new(self._keys(chain, part, max(start // self._n_ids[part], first), end), copies)

    def _hold_new(self, keys: Chain, copies: set[int]) -> None:
        """Hold blocks that were computed or read."""
        for key in keys:
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = BlockRun(0, 1, [key])
            elif run.n_holders:
                copies.add(key)
                self._copies.setdefault(key, []).append(copies)
            else:
                del self._idle[run.number]
                self._rest(BlockRun(0, 1, []), first=True)
            self.pinned_blocks += not run.n_holders
            run.n_holders += 1

    def keys(self, chain: Chain, n: int, n_tokens: int) -> Chain:
        """Return the blocks in which a request with n_tokens computed holds its first n ids, the first ids first."""
        firsts = [(part, self._n_ids[part], first) for part, first in self._firsts(n_tokens)]
        return [
            chain[i] * self._n_parts + part
            for i in range(n)
            for part, n_ids, first in firsts
            if i // n_ids >= first and (i + 1) % n_ids == 0
        ]

    def n_ids(self, keys: Chain, chain: Chain, n: int) -> int:
        """Return how many of the first n ids blocks are of."""
        if self._step == 1:
            return len({key // self._n_parts for key in keys})
        numbers = {block: number for number, block in enumerate(chain[:n])}
        blocks = [(numbers[key // self._n_parts], self._n_ids[key % self._n_parts]) for key in keys]
        return len({number - i for number, n_ids in blocks for i in range(n_ids)})

    def missing(self, chain: Chain, n: int) -> Chain:
        """Return the blocks of a hit of n ids that are not here."""
        return [key for key in self.keys(chain, n, n * self._size) if key not in self._runs]

    def pin_here(self, chain: Chain, n: int, n_tokens: int) -> int:
        """Hold what is here of a hit of n ids. Return the blocks that were idle, and now are not free."""
        return self.pin(chain, n, n_tokens)

    def insert_missing(self, chain: Chain, n: int, missing: Chain, copies: set[int]) -> None:
        """Insert what a hit of n ids was missing, and hold it."""
        self._hold_new(missing, copies)

    def release(self, chain: Chain, n: int, own_blocks: int, copies: set[int], n_tokens: int = 0) -> int:
        """Release the first n ids of a request with n_tokens computed. See PrefixCache."""
        held = [(part, first, n) for part, first in self._firsts(n_tokens)]
        return self._let_go(chain, held, own_blocks, copies)

    def drop(self, chain: Chain, n: int, tokens: tuple[int, int], copies: set[int]) -> int:
        """Release what windows keep no longer of a request with n ids, as its tokens computed grow from the first
        number to the second. Return the blocks that become free."""
        left: list[tuple[int, int, int]] = []
        own_blocks = 0
        for part, group in enumerate(self._windows):
            n_ids = self._n_ids[part]
            first, end = (group.first_kept(n_tokens) // (n_ids * self._size) for n_tokens in tokens)
            own_blocks += max(0, end - max(first, n // n_ids))
            left.append((part, first, min(end * n_ids, n)))
        return self._let_go(chain, left, own_blocks, copies)

    def check(self) -> None:
        """Assert the invariant. O(ids)."""
        super().check()
        in_windows = [key for key in self._runs if key % self._n_parts < len(self._windows)]
        n_more = (self._runs[key].n_holders - 1 - len(self._copies.get(key, ())) for key in in_windows)
        n_doubled = sum(n for n in n_more if n > 0)
        assert self.n_doubled == n_doubled, (self.n_doubled, n_doubled)

    def _let_go(self, chain: Chain, held: list[tuple[int, int, int]], own_blocks: int, copies: set[int]) -> int:
        """Release blocks of some parts, from block `first` up to id `end`, and own_blocks without an id; return those
        that become free."""
        idle: list[BlockRun] = []
        for part, first, end in held:
            for key in reversed(self._keys(chain, part, first, end)):
                run = self._runs[key]
                run.n_holders -= 1
                if not run.n_holders:
                    idle.append(run)
                elif key in self._copies and self._frees_a_copy(key, run.n_holders, copies):
                    own_blocks += 1
                elif part < len(self._windows):
                    self.n_doubled -= 1
        if own_blocks:
            self._rest_unnamed(own_blocks)
        for run in idle:
            self._rest(run)
        self.pinned_blocks -= len(idle)
        self.idle_blocks += len(idle) + own_blocks
        return len(idle) + own_blocks

    def _firsts(self, n_tokens: int) -> Iterator[tuple[int, int]]:
        """Yield each part, and the number of its first block that a request with n_tokens computed keeps."""
        for part in range(self._n_parts):
            first = self._windows[part].first_kept(n_tokens) if part < len(self._windows) else 0
            yield part, first // (self._n_ids[part] * self._size)

    def _keys(self, chain: Chain, part: int, first: int, end: int) -> list[int]:
        """Return the keys of the blocks of a part, from block `first` on, that lie before id `end`."""
        n_ids = self._n_ids[part]
        return [block * self._n_parts + part for block in chain[(first + 1) * n_ids - 1 : max(0, end) : n_ids]]

    def _n_leading(self, chain: Chain, part: int, n: int, least: int) -> int:
        """Return how many of the first n ids have at least so many holders in a part without a window. O(log n)."""
        n_ids = self._n_ids[part]
        low, high = 0, n // n_ids
        while low < high:  # fast: a holder holds all earlier ids, so those with more holders come first
            middle = (low + high) // 2
            run = self._runs.get(chain[(middle + 1) * n_ids - 1] * self._n_parts + part)
            if run is not None and run.n_holders >= least:
                low = middle + 1
            else:
                high = middle
        return low * n_ids
