"""RecentIds: ids of blocks in the order of their last use."""

from collections import OrderedDict
from collections.abc import Iterator

from simserve.state.id_runs import Chain, IdIndex, IdRun, run_at


class RecentIds:
    """Ids in the order of their last use. To use an id of a chain is to use all before it, the first one last.

    fast: ids that are used together, and follow each other, are one run.
    """

    def __init__(self) -> None:
        self.n = 0
        """Ids present."""
        self._index = IdIndex()
        self._order: OrderedDict[IdRun, None] = OrderedDict()
        """Runs, the longest unused first; of each, the last id comes first."""

    def __contains__(self, block: object) -> bool:
        return block in self._index

    def __iter__(self) -> Iterator[int]:
        """Return the ids, the longest unused first."""
        return (block for run in self._order for block in reversed(range(run.first, run.first + run.n)))

    def n_leading(self, chain: Chain, start: int, end: int) -> int:
        """Return the place of the first id of a chain, from one on and before `end`, that is not here, else `end`."""
        return self._index.present_to(chain, start, end)

    def use(self, chain: Chain, n: int) -> int:
        """Use the first n ids of a chain; return how many of them were not here."""
        return sum(self.add(first, n_ids) for first, n_ids in _in_runs(chain, n))

    def forget(self, chain: Chain, n: int) -> None:
        """Forget the first n ids of a chain."""
        for first, n_ids in _in_runs(chain, n) if self.n else ():
            self.remove(first, n_ids)

    def add(self, first: int, n: int) -> int:
        """Use ids in a row, all that there may be before them in their run included; return how many were not here."""
        run = self._index.get(first)
        if run is not None and run.n == n:
            self._order.move_to_end(run)
            return 0
        n_new = n - self.remove(first, n)
        run = IdRun(first, n)
        self._index.put(first, n, run)
        self._order[run] = None
        self.n += n
        return n_new

    def remove(self, first: int, n: int) -> int:
        """Forget ids in a row, all that there may be before them in their run included; return how many were here."""
        index, end, n_removed = self._index, first + n, 0
        while first < end:
            run = index.get(first)
            if run is None:
                first += 1
                continue
            assert run.first == first, "what comes before it in its run is used as well"
            n_here = min(run.n, end - first)
            index.put(first, n_here, None)
            run.first += n_here
            run.n -= n_here
            if not run.n:
                del self._order[run]
            n_removed += n_here
            first += n_here
        self.n -= n_removed
        return n_removed

    def pop(self, most: int) -> tuple[int, int]:
        """Forget some of the longest unused ids, in a row and at most `most`; return the first and how many. Needs
        one."""
        run = next(iter(self._order))
        n = min(most, run.n)
        run.n -= n
        first = run.first + run.n
        self._index.put(first, n, None)
        if not run.n:
            del self._order[run]
        self.n -= n
        return first, n


def _in_runs(chain: Chain, n: int) -> list[tuple[int, int]]:
    """Return the first ids and lengths of the runs of the first n ids of a chain, the last run first."""
    runs, end = list[tuple[int, int]](), n
    while end:
        start, _, first = run_at(chain, end - 1)
        runs.append((first, end - start))
        end = start
    return runs
