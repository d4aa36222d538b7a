"""EvictionOrder: idle blocks of a replica in the order in which they are evicted."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Final

from simserve.state.block_runs import NEVER, BlockGroup, BlockRun

PLACE_BITS: Final = 26
MOST_PLACES: Final = (1 << PLACE_BITS) - 1
"""Limit of the blocks of a chain."""


class EvictionOrder:
    """Runs of idle blocks: what became idle first goes first, and of a run the last block.

    fast: the parts of a group share a run until eviction begins with one of them; evicted blocks lose their ids when
    these might be found (`settle`), as what becomes idle later is evicted later.

    Invariant: n_blocks = blocks of `runs`, less those that are evicted and not settled.
    """

    def __init__(self, groups: list[BlockGroup]) -> None:
        self._n_parts = sum(group.n_parts for group in groups)
        self._group = groups[0]
        self.n_blocks = 0
        """Blocks that are idle."""
        self.runs: dict[int, BlockRun] = {}
        """Idle runs by number; of a run, the last block goes first."""
        self._numbers: list[int] = []
        """A heap of these numbers, the next to evict first, and of some that are gone."""
        self._n_rests = 0
        """Last number given to blocks that became idle, without their place in the chain."""
        self._n_due = 0
        """Evicted blocks that are not gone yet: the first of the eviction order."""
        self._n_first = 0
        """Last number given to blocks to evict before all others; below 0."""
        self._unnamed: BlockRun | None = None
        """The last run of idle blocks without ids."""

    def evict(self, n_blocks: int) -> None:
        """Evict n_blocks idle blocks, the longest idle first; needs as many."""
        if n_blocks > self.n_blocks:
            raise IndexError("more blocks to evict than are idle")
        self.n_blocks -= n_blocks
        self._n_due += n_blocks

    def remove(self, run: BlockRun) -> int:
        """Take a run out, as it is used again; return its blocks."""
        del self.runs[run.number]
        n_blocks = run.n * run.n_parts - run.n_gone
        self.n_blocks -= n_blocks
        return n_blocks

    def add_first(self, n_blocks: int) -> None:
        """Add blocks that have lost their ids, to evict before all others."""
        self._n_first -= 1
        self._put(BlockRun(self._group, 0, n_blocks, 0, 0, is_named=False), self._n_first)
        self.n_blocks += n_blocks

    def add(self, runs: list[BlockRun], own_blocks: int) -> int:
        """Add runs without holders, after own_blocks without ids, as the last to evict; return the blocks of the
        runs."""
        n_blocks = 0
        if own_blocks:
            last = self._unnamed
            if last is not None and last.number >> PLACE_BITS == self._n_rests and last.number in self.runs:
                last.n += own_blocks
            else:
                self._n_rests += 1
                self._unnamed = last = BlockRun(self._group, 0, own_blocks, 0, 0, is_named=False)
                self._put(last, self._n_rests)
        if runs:
            for run in runs:  # those of one group go from the last to the first by their places
                n_blocks += run.n * run.n_parts
                self._put(run, self._n_rests + 1 + run.group.first_part)
            self._n_rests += self._n_parts
        self.n_blocks += n_blocks + own_blocks
        return n_blocks

    def settle(self) -> None:
        """Take the ids from evicted blocks."""
        runs, numbers, n_blocks = self.runs, self._numbers, self._n_due
        self._n_due = 0
        while n_blocks > 0:
            number = numbers[0]
            run = runs.get(number)
            if run is None:
                heappop(numbers)
                continue
            group, n_parts = run.group, run.n_parts
            n_left = run.n - run.n_gone
            n = min(n_blocks, n_left)
            n_blocks -= n
            if not run.is_named:
                run.n -= n
            elif n_parts == 1:
                named = group.runs if group.n_parts == 1 else group.torn
                run.n -= n
                named.put(run.first + run.n * group.n_ids, n, None)
            elif n < n_left:
                if n_parts == group.n_parts:
                    self._tear(run, n)
                else:
                    run.n_gone += n
            elif run.n * (n_parts - 1) <= n_blocks and (number >> PLACE_BITS) + n_parts <= self._next_number():
                named = group.runs if n_parts == group.n_parts else group.torn  # no other run's turn is before its end
                named.put(run.first, run.n, None)
                n_blocks -= run.n * (n_parts - 1)
                run.n = 0
            else:  # go on with the next part
                if n_parts == group.n_parts:
                    self._hide(run, run)
                run.n_gone, run.n_parts = 0, n_parts - 1
                del runs[number]
                run.number = number = (((number >> PLACE_BITS) + 1) << PLACE_BITS) + MOST_PLACES - run.high
                runs[number] = run
                heapreplace(numbers, number)
            if not run.n:
                del runs[number]

    def split(self, first: BlockRun, rest: BlockRun) -> None:
        """Keep the place of an idle run that was cut in two."""
        number = first.number
        rest.number = number
        self.runs[number] = rest
        self._put(first, number >> PLACE_BITS)
        if first.n_gone or rest.n_gone:
            n_gone, n_rest = first.n_gone + rest.n_gone, rest.n
            first.n_gone, rest.n_gone = max(0, n_gone - n_rest), min(n_gone, n_rest)
            if rest.n_gone == n_rest:
                rest.n_gone, rest.n_parts = 0, rest.n_parts - 1
                del self.runs[number]
                self._put(rest, (number >> PLACE_BITS) + 1)

    def _next_number(self) -> int:
        """Return a number, without a place in the chain, that no run but the first in the eviction order is below."""
        numbers = self._numbers
        return min(numbers[1:3], default=NEVER) >> PLACE_BITS

    def _hide(self, run: BlockRun, left: BlockRun) -> None:
        """Let no request find the ids of a run of which a part goes; another run has what is left of them."""
        run.group.runs.put(run.first, run.n, None)
        run.group.torn.put(run.first, run.n, left)

    def _tear(self, run: BlockRun, n: int) -> None:
        """Evict the first part of the last n ids of a run; the others are evicted after this one of all its ids."""
        tail, torn = run.tail, run.cut_off(n)
        if tail is not None and tail.low == torn.high and not tail.n_gone and self.runs.get(tail.number) is tail:
            tail.begin_later(-n)
        else:
            run.tail = tail = torn
            tail.n_parts = run.group.n_parts - 1
            self._put(tail, (run.number >> PLACE_BITS) + 1)
        self._hide(torn, tail)

    def _put(self, run: BlockRun, number: int) -> None:
        """Add a run by number, and those of one number from the last block to the first."""
        run.number = number = (number << PLACE_BITS) + MOST_PLACES - run.high
        self.runs[number] = run
        heappush(self._numbers, number)
        if len(self._numbers) > 2 * len(self.runs) + 64:
            self._numbers = sorted(self.runs)
