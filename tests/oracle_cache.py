"""Prefix cache of the oracle: blocks by id and their holders, in lists."""

from simserve.state.request import Request


class OracleCache:
    """Blocks by id, and their holders, in lists."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
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
        return self.cost * sum(1 for copies in self.copies.values() for users in copies if users)

    def hold(self, request: Request, block: int) -> None:
        """Share the oldest copy."""
        if not self.is_held(block):
            self.idle.remove([block, self.cost])
        self.copies[block][0].append(request)

    def add(self, request: Request, block: int) -> None:
        """Add a computed block in blocks of its own; an idle one loses its use."""
        if block in self.copies and not self.is_held(block):
            self.idle.remove([block, self.cost])
            self.idle.insert(0, [None, self.cost])
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
                named.append([block, self.cost])
            else:
                copies[:] = [each for each in copies if each is not users]
                n_own += self.cost
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
