"""Prefix cache of the oracle: blocks by id and their holders, in lists."""

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


class OracleCache:
    """Blocks by id, and their holders, in lists."""

    def __init__(self) -> None:
        self.copies: dict[int, list[list[Request]]] = {}
        """For each id present: its copies, each with its holders; an idle one has none."""
        self.idle: list[list[int | None]] = []
        """[id or None, blocks], the next to evict first."""

    def hits(self, chain: list[int], most: int) -> int:
        n = 0
        while n < min(most, len(chain)) and chain[n] in self.copies:
            n += 1
        return n

    def is_held(self, block: int) -> bool:
        return any(self.copies.get(block, []))

    def n_held(self) -> int:
        """Blocks with an id that has holders."""
        return sum(1 for copies in self.copies.values() for users in copies if users)

    def hold(self, request: Request, block: int) -> None:
        """Share the oldest copy."""
        if not self.is_held(block):
            self.idle.remove([block, 1])
        self.copies[block][0].append(request)

    def add(self, request: Request, block: int) -> None:
        """Add a computed block in blocks of its own; an idle one loses its use."""
        if block in self.copies and not self.is_held(block):
            self.idle.remove([block, 1])
            self.idle.insert(0, [None, 1])
            del self.copies[block]
        self.copies.setdefault(block, []).append([request])

    def let_go(self, request: Request, blocks: list[int], n_own: int) -> None:
        named: list[list[int | None]] = []
        for block in reversed(blocks):
            copies = self.copies[block]
            users = next(users for users in copies if request in users)
            users.remove(request)
            if users:
                continue
            if len(copies) == 1:
                named.append([block, 1])
            else:
                copies[:] = [each for each in copies if each is not users]
                n_own += 1
        if n_own:
            self.idle.append([None, n_own])
        self.idle += named

    def shrink(self, free_blocks: int) -> None:
        """Evict idle blocks beyond the free blocks."""
        while sum(n or 0 for _, n in self.idle) > free_blocks:
            block, n = self.idle[0]
            if block is None and n and n > 1:
                self.idle[0] = [None, n - 1]
            else:
                self.idle.pop(0)
                if block is not None:
                    del self.copies[block]
