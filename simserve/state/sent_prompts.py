"""Recent ids, the oldest of which are forgotten, and by these the prompts that a router sent to each replica."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from simserve.state.id_runs import Chain, IdIndex, IdRun, run_at
from simserve.state.request import Request
from simserve.state.view import LoadView


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


class SentPrompts:
    """Ids of whole prompt blocks sent to one replica, up to a capacity; the least recently sent are forgotten first.

    It knows nothing of outputs, nor of what the replica has computed or evicted.

    Invariant: it holds a prefix of each chain, as the first block of a prompt is touched last.
    """

    def __init__(self, block_tokens: int, most_ids: int) -> None:
        self._block_tokens = block_tokens
        self._most_ids = most_ids
        self._ids = RecentIds()

    @classmethod
    def of(cls, view: LoadView, most_tokens: int | None) -> "SentPrompts":
        """Return an empty record, by default as large as the KV cache. Without a prefix cache it stays empty."""
        if view.block_tokens is None:
            return cls(1, 0)
        n_tokens = view.total_blocks * view.block_size if most_tokens is None else most_tokens
        return cls(view.block_tokens, n_tokens // view.block_tokens)

    def __len__(self) -> int:
        """Return the number of ids held."""
        return self._ids.n

    def found_tokens(self, request: Request) -> int:
        """Return the leading prompt tokens that were sent before; changes nothing."""
        n_ids = self._n_ids(request)
        return self._ids.n_leading(request.chains[self._block_tokens], 0, n_ids) * self._block_tokens if n_ids else 0

    def add(self, request: Request) -> None:
        """Record a prompt sent there."""
        ids, n_ids = self._ids, self._n_ids(request)
        if n_ids:
            ids.use(request.chains[self._block_tokens], n_ids)
        while ids.n > self._most_ids:
            ids.pop(ids.n - self._most_ids)

    def _n_ids(self, request: Request) -> int:
        """Return the number of whole prompt blocks with an id; ids may extend into the output, which no router knows. A
        prompt longer than the capacity counts only its beginning."""
        if not self._most_ids:
            return 0
        return min(request.prompt_tokens // self._block_tokens, len(request.chains[self._block_tokens]), self._most_ids)


def longest_found(
    request: Request,
    views: Sequence[LoadView],
    index: Sequence[LoadView | SentPrompts],
    least_tokens: float,
    most_imbalance: int,
) -> int:
    """Return the place of the view with the longest beginning of a prompt, by an index of each, then with the fewest
    requests, then the first. Those that exceed the least busy one by more than most_imbalance requests do not count;
    where no beginning has least_tokens, the least busy one is returned."""
    loads = [view.n_outstanding for view in views]
    least = min(loads)
    best, most_tokens = -1, 0
    for place, load in enumerate(loads):
        n_tokens = index[place].found_tokens(request) if load <= least + most_imbalance else 0
        if best < 0 or n_tokens > most_tokens or (n_tokens == most_tokens and load < loads[best]):
            best, most_tokens = place, n_tokens
    return best if most_tokens >= least_tokens else loads.index(least)


class OwnSends:
    """A record of sent prompts per member: made when a router first sees the member, dropped when it is gone."""

    def __init__(self, most_tokens: int | None) -> None:
        self._most_tokens = most_tokens
        self._ids: list[int] = []
        self._records: list[SentPrompts] = []

    def __deepcopy__(self, _: dict[int, Any]) -> "OwnSends":
        """Return an empty record: a copy of a router has sent nothing."""
        return OwnSends(self._most_tokens)

    def of(self, views: Sequence[LoadView]) -> list[SentPrompts]:
        """Return the record of each member, in the order of the views."""
        ids = [view.id for view in views]
        if ids != self._ids:
            known = dict(zip(self._ids, self._records, strict=True))
            self._records = [
                known[view.id] if view.id in known else SentPrompts.of(view, self._most_tokens) for view in views
            ]
            self._ids = ids
        return self._records
