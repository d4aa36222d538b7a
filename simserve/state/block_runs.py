"""BlockRun: blocks of a replica that the same requests hold; BlockGroup: those of layers that keep the same tokens."""

from __future__ import annotations

from itertools import groupby
from typing import Final, cast

from simserve.state.id_runs import Chain, IdIndex, IdRun
from simserve.state.layer_blocks import KvGroup, LayerBlocks

NEVER: Final = 1 << 62
"""More tokens, and steps, than any request has."""


class BlockRun(IdRun):
    """Consecutive blocks of a chain that the same requests hold; or idle ones without ids."""

    __slots__ = ("group", "is_named", "low", "n_gone", "n_holders", "n_parts", "number", "tail")

    def __init__(self, group: BlockGroup, low: int, n: int, first: int, n_holders: int, is_named: bool = True) -> None:
        super().__init__(first, n)
        self.group = group
        self.low = low
        """Place of its first block in its chain."""
        self.is_named = is_named
        """Its blocks have ids."""
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

    @property
    def high(self) -> int:
        """The place behind its last block."""
        return self.low + self.n

    @property
    def ids(self) -> range:
        """The ids of its blocks."""
        stride = self.group.n_ids
        return range(self.first, self.first + self.n * stride, stride)

    def begin_later(self, n: int) -> None:
        """Lose the first n blocks."""
        self.low += n
        self.first += n * self.group.n_ids
        self.n -= n

    def cut_off(self, n: int) -> BlockRun:
        """Return the last n blocks as a run of their own, not indexed yet."""
        self.n -= n
        return BlockRun(self.group, self.high, n, self.first + self.n * self.group.n_ids, self.n_holders)


class BlockGroup:
    """Layers that keep the same tokens, and the runs of their blocks with an id."""

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
        self.runs = IdIndex(n_ids)
        """The run of each id present in all parts."""
        self.torn = IdIndex(n_ids)
        """The run of each id of which some parts are evicted: idle ones, which no request can find."""
        self.copies: dict[int, list[set[int]]] = {}
        """For ids present more than once: the `copies` of the requests that have one, the oldest first."""

    def of(self, chain: Chain) -> Chain:
        """Return the ids that its blocks go by."""
        return chain if self.n_ids == 1 else chain[self.n_ids - 1 :: self.n_ids]

    def run(self, block: int) -> BlockRun | None:
        """Return the run of an id that is present in all parts, else None."""
        return cast("BlockRun | None", self.runs.get(block))

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
