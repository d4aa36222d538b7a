"""Blocks and keys of the oracle by group of layers: every block and every key is listed by number."""

from functools import cache

from simserve.catalog.specs import LayerGroup
from simserve.state.layer_blocks import LayerBlocks
from simserve.tables.facts import KvSizes


def attended(group: LayerGroup, position: int) -> list[int]:
    """Return the positions that the token at a position attends."""
    size = group.window or position + 1
    if group.kind == "chunked":
        return [p for p in range(position + 1) if p // size == position // size]
    return [p for p in range(position + 1) if position - p < size]


def tokens_on_the_link(sizes: KvSizes, first: int, end: int, prompt: int) -> float:
    """Return what is sent of some tokens of a prompt, layer by layer and token by token, in tokens of all layers."""
    if not sizes.windows and not sizes.state_tokens:
        return end - first
    n_sent = sizes.state_tokens if end == prompt else 0
    for token in range(first, end):
        n_sent += sizes.n_layers
        for n_layers, size, is_chunk in sizes.windows:
            group = LayerGroup("chunked" if is_chunk else "windowed", n_layers, size)
            n_sent -= n_layers * (token not in attended(group, prompt))
    return n_sent / sizes.n_layers


@cache
def first_attended(group: LayerGroup | None, position: int) -> int:
    """Return the first position that the token at a position attends; None: in layers that keep all."""
    return min(attended(group, position)) if group else 0


class OracleLayers:
    """Groups of layers, and how many blocks each takes for the same tokens."""

    def __init__(self, block_size: int, layers: LayerBlocks | None) -> None:
        windows = [] if layers is None else list(layers.windows)
        self.size, self.windows = block_size, [group for group, _ in windows]
        self.n_states = 0 if layers is None else layers.n_states
        self.most_chunk = None if layers is None else layers.most_chunk
        n_growing = 1 if layers is None else layers.n_growing
        self.parts = [(group, n) for group, n in windows] + [(None, n_growing - sum(n for _, n in windows))]

    @property
    def n_growing(self) -> int:
        return sum(n for _, n in self.parts)

    def numbers(self, end: int) -> set[int]:
        """Return the numbers of the blocks in which the first tokens of a request lie."""
        return {token // self.size for token in range(end)}

    def blocks(self, computed: int, end: int) -> int:
        """Return the blocks that a request has in a step to `end` with `computed` tokens from steps before it."""
        n_blocks = self.n_states if end else 0
        for group, n in self.parts:
            first = first_attended(group, computed)
            n_blocks += n * sum((number + 1) * self.size > first for number in self.numbers(end))
        return n_blocks

    def most(self, n_tokens: int, found: int = 0) -> int:
        """Return the most blocks that a request of n_tokens takes beside those of its hit, in the terms of vLLM's check
        at admission."""
        n_blocks = self.n_states
        for group, n in self.parts:
            kept = len(self.numbers(n_tokens) - self.numbers(found))
            if group and group.window and self.most_chunk is not None:
                before = group.window if group.kind == "chunked" else group.window - 1
                starts_inside = group.kind != "chunked" or group.window % self.size
                most = len(self.numbers(before + self.most_chunk)) + (1 if starts_inside else 0)
                kept = min(kept, most - len(self.numbers(found) - self.left(group, found)))
            n_blocks += n * kept
        return n_blocks

    @property
    def kinds(self) -> list[LayerGroup | None]:
        """The group of each block that layers take for the same tokens."""
        return [group for group, n in self.parts for _ in range(n)]

    def left(self, group: LayerGroup | None, computed: int) -> set[int]:
        """Return the numbers of the blocks that a request with `computed` tokens does not keep in a group."""
        first = first_attended(group, computed)
        return {number for number in self.numbers(computed) if (number + 1) * self.size <= first}

    def works(self, chunks: list[tuple[int, int]], contexts: list[int]) -> tuple[tuple[int, int, int], ...]:
        """Return for each window the pairs and keys read of chunks [first, end), and the keys of the next tokens."""
        works = []
        for group in [each for each in self.windows if each.kind != "state"]:
            queries = [[attended(group, position) for position in range(*chunk)] for chunk in chunks]
            pairs = sum(len(keys) for chunk in queries for keys in chunk)
            read = sum(len({key for keys in chunk for key in keys}) for chunk in queries)
            works.append((pairs, read, sum(len(attended(group, n)) for n in contexts)))
        return tuple(works)
