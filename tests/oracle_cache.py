"""Prefix cache of the oracle: blocks by id and their holders, in lists."""

from typing import Any

from simserve.state.request import Request
from simserve.workload.trace import Trace

NAMES: dict[tuple[int, ...], int] = {}
"""A number for each content of a block that any test has seen."""


def blocks_by_name(trace: Trace, row: int, block_size: int) -> list[int]:
    """Return the whole blocks of a request whose tokens are known to be shared: equal if all tokens up to there are.

    A token is the id of its block in the trace and its place in there.
    """
    assert trace.prefixes is not None
    size = trace.prefixes.block_tokens
    tokens = [size * block + place for block in trace.prefixes.of(row) for place in range(size)]
    ends = range(block_size, len(tokens) + 1, block_size)
    return [NAMES.setdefault(tuple(tokens[:end]), len(NAMES)) for end in ends]


Key = tuple[int, int, int]
"""A block with an id: which of those that layers take for the same tokens, its number in the request, and its id."""


class OracleCache:
    """Blocks by key, and their holders, in lists."""

    def __init__(self) -> None:
        self.copies: dict[Key, list[list[Request]]] = {}
        """For each key present: its copies, each with its holders; an idle one has none."""
        self.idle: list[list[Any]] = []
        """[key or None, blocks], the next to evict first."""

    def is_held(self, key: Key) -> bool:
        return any(self.copies.get(key, []))

    def n_held(self) -> int:
        """Blocks with a key that has holders."""
        return sum(1 for copies in self.copies.values() for users in copies if users)

    def hold(self, request: Request, key: Key) -> None:
        """Share the oldest copy."""
        if not self.is_held(key):
            self.idle.remove([key, 1])
        self.copies[key][0].append(request)

    def add(self, request: Request, key: Key) -> None:
        """Add a computed block in blocks of its own; an idle one loses its use."""
        if key in self.copies and not self.is_held(key):
            self.idle.remove([key, 1])
            self.idle.insert(0, [None, 1])
            del self.copies[key]
        self.copies.setdefault(key, []).append([request])

    def let_go(self, request: Request, keys: list[Key], n_own: int) -> None:
        """Release blocks: first those without a key, then by kind of layers, the last of each first."""
        named: list[list[Any]] = []
        for key in sorted(keys, key=lambda key: (key[0], -key[1])):
            copies = self.copies[key]
            users = next(users for users in copies if request in users)
            users.remove(request)
            if users:
                continue
            if len(copies) == 1:
                named.append([key, 1])
            else:
                copies[:] = [each for each in copies if each is not users]
                n_own += 1
        if n_own:
            self.idle.append([None, n_own])
        self.idle += named

    def shrink(self, free_blocks: int) -> None:
        """Evict idle blocks beyond the free blocks."""
        while sum(n or 0 for _, n in self.idle) > free_blocks:
            key, n = self.idle[0]
            if key is None and n and n > 1:
                self.idle[0] = [None, n - 1]
            else:
                self.idle.pop(0)
                if key is not None:
                    del self.copies[key]
