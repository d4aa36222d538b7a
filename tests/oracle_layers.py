"""Blocks and keys of the oracle by group of layers: every block and every key is listed by number."""

from functools import cache

from simserve.catalog.layers import LayerGroup
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
    return n_sent / max(1, sizes.n_layers)  # without layers that attend, all states are as large as one token


@cache
def first_attended(group: LayerGroup | None, position: int) -> int:
    """Return the first position that the token at a position attends; None: in layers that keep all."""
    return min(attended(group, position)) if group else 0


Kind = tuple[LayerGroup | None, int]
"""The group of a block and the ids that it holds; None: layers that keep all tokens."""


class OracleLayers:
    """Groups of layers of a model and its draft, and how many blocks each takes for the same tokens.

    A block of several ids has the number of the last of them.
    """

    def __init__(self, layers: LayerBlocks) -> None:
        self.size = min(each.tokens for each in layers.groups)
        self.n_states, self.most_chunk = layers.n_states, layers.most_chunk
        windows = [(each.layers, each.n_parts, each.tokens) for each in layers.groups if each.layers.window]
        attending, states = ([each for each in windows if each[0].attends is attends] for attends in (True, False))
        self.windows = [group for group, _, _ in attending]
        whole = [(None, each.n_parts, each.tokens) for each in layers.groups if not each.layers.window]
        self.parts: list[tuple[LayerGroup | None, int, int]] = [*attending, *states, *whole]

    def numbers(self, end: int, size: int) -> set[int]:
        """Return the numbers of the blocks of a size in which the first tokens of a request lie."""
        return {token // size for token in range(end)}

    def filled(self, end: int) -> int:
        """Return the blocks in which the first tokens of a request lie."""
        return sum(n * len(self.numbers(end, size)) for _, n, size in self.parts)

    def blocks(self, computed: int, end: int) -> int:
        """Return the blocks that a request has in a step to `end` with `computed` tokens from steps before it."""
        n_blocks = self.n_states if end else 0
        for group, n, size in self.parts:
            first = first_attended(group, computed)
            n_blocks += n * sum((number + 1) * size > first for number in self.numbers(end, size))
        return n_blocks

    def most(self, n_tokens: int, found: int = 0) -> int:
        """Return the most blocks that a request of n_tokens takes beside those of its hit, in the terms of vLLM's check
        at admission."""
        n_blocks = self.n_states
        for group, n, size in self.parts:
            kept = len(self.numbers(n_tokens, size) - self.numbers(found, size))
            if group and group.window and self.most_chunk is not None:
                before = group.window if group.kind == "chunked" else group.window - 1
                starts_inside = group.kind != "chunked" or group.window % size
                most = len(self.numbers(before + self.most_chunk, size)) + (1 if starts_inside else 0)
                first = first_attended(group, found)
                behind = [number for number in self.numbers(found, size) if (number + 1) * size > first]
                kept = min(kept, most - len(behind))
            n_blocks += n * kept
        return n_blocks

    @property
    def kinds(self) -> list[Kind]:
        """The kind of each block that layers take for the same tokens."""
        return [(group, size // self.size) for group, n, size in self.parts for _ in range(n)]

    def ends(self, kind: Kind, number: int) -> bool:
        """Tell whether a block of a kind ends with the id of that number."""
        return (number + 1) % kind[1] == 0

    def ids(self, key: tuple[int, int, int]) -> list[int]:
        """Return the numbers of the ids of a block."""
        return [key[1] - i for i in range(self.kinds[key[0]][1])]

    def left(self, kind: Kind, computed: int) -> set[int]:
        """Return the numbers of the blocks of a kind that a request with `computed` tokens does not keep."""
        first = first_attended(kind[0], computed)
        numbers = self.numbers(computed, self.size)
        return {number for number in numbers if self.ends(kind, number) and (number + 1) * self.size <= first}

    def works(self, chunks: list[tuple[int, int]], contexts: list[int]) -> tuple[tuple[int, int, int], ...]:
        """Return for each window the pairs and keys read of chunks [first, end), and the keys of the next tokens."""
        works = []
        for group in self.windows:
            queries = [[attended(group, position) for position in range(*chunk)] for chunk in chunks]
            pairs = sum(len(keys) for chunk in queries for keys in chunk)
            read = sum(len({key for keys in chunk for key in keys}) for chunk in queries)
            works.append((pairs, read, sum(len(attended(group, n)) for n in contexts)))
        return tuple(works)
