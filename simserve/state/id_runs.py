"""Ids of blocks in runs of consecutive ones: chains of requests, and what a cache has of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast, overload

from mypy_extensions import i64

Chain = Sequence[int]
"""Chained block ids of a request, first block first: equal ids mean that all tokens up to there are equal."""

PAGE_BITS: Final = 6
PAGE: Final = 1 << PAGE_BITS
"""Ids of a page."""


class IdRuns(Sequence[int]):
    """Ids in runs of consecutive ones, each as long as can be; slices are lists.

    fast: a prompt has hundreds of ids in a few runs, and few of them are looked at.
    """

    def __init__(self, firsts: list[int], lengths: list[int]) -> None:
        """Join runs with these first ids and lengths."""
        self._firsts, self._ends = list[int](), list[int]()
        n, following = 0, -1
        for first, length in zip(firsts, lengths, strict=True):
            if self._ends and first == following:
                self._ends.pop()
            else:
                self._firsts.append(first)
            n += length
            following = first + length
            self._ends.append(n)
        self._n = n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._n)
            return self._between(start, stop) if step == 1 else self._between(0, self._n)[at]
        if at < 0:
            at += self._n
        if not 0 <= at < self._n:
            raise IndexError(at)
        return self.at(at)

    def at(self, place: int) -> int:
        """Return the id at a place."""
        run = self._run_of(place)
        return self._firsts[run] + place - self._start(run)

    def ends(self, place: int) -> tuple[int, int]:
        """Return the places [start, end) of the run with the id at a place."""
        run = self._run_of(place)
        return self._start(run), self._ends[run]

    def leading(self, n: int) -> IdRuns:
        """Return the first n ids."""
        ends = [min(end, n) for run, end in enumerate(self._ends) if self._start(run) < n]
        return IdRuns(self._firsts[: len(ends)], [end - self._start(run) for run, end in enumerate(ends)])

    def followed_by(self, first: int, n: int) -> IdRuns:
        """Return these ids with n consecutive ones behind them."""
        lengths = [end - self._start(run) for run, end in enumerate(self._ends)]
        return IdRuns([*self._firsts, first], [*lengths, n])

    def __iter__(self) -> Iterator[int]:
        return iter(self._between(0, self._n))

    def _start(self, run: int) -> int:
        return self._ends[run - 1] if run else 0

    def _run_of(self, at: int) -> int:
        """Return the run with the id at a place."""
        ends = self._ends
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) >> 1
            if at < ends[middle]:
                high = middle
            else:
                low = middle + 1
        return low

    def _between(self, start: int, stop: int) -> list[int]:
        """Return the ids [start, stop)."""
        ids: list[int] = []
        while start < stop:
            run = self._run_of(start)
            end = min(stop, self._ends[run])
            first = self.at(start)
            ids += range(first, first + end - start)
            start = end
        return ids


def leading(chain: Chain, n: int) -> Chain:
    """Return the first n ids of a chain."""
    if type(chain) is IdRuns:
        return chain.leading(n) if n < len(chain) else chain
    return chain[:n]


def followed_by(chain: Chain, first: int, n: int) -> Chain:
    """Return a chain with n consecutive ids behind it."""
    if type(chain) is IdRuns:
        return chain.followed_by(first, n) if n else chain
    return [*chain, *range(first, first + n)]


def stretch(of: Chain, at: int, end: int, stride: int) -> int:
    """Return how many ids of a chain, from a place on and before `end`, follow each other at a distance."""
    if type(of) is IdRuns:
        return min(of.ends(at)[1], end) - at
    first, n = of[at], 1
    while at + n < end and of[at + n] == first + n * stride:
        n += 1
    return n


class IdRun:
    """Ids at equal distances that a cache has, in the order of a chain."""

    __slots__ = ("first", "n")

    def __init__(self, first: int, n: int) -> None:
        self.first = first
        self.n = n


class IdIndex:
    """The run of each id that is present.

    fast: pages of consecutive ids, so that a run comes and goes by slices, and is found without a search.
    """

    __slots__ = ("_pages", "_stride")

    def __init__(self, stride: int = 1) -> None:
        """stride: distance of the ids of a run."""
        self._stride: i64 = stride
        self._pages: dict[int, list[IdRun | None]] = {}

    def __len__(self) -> int:
        """Return the number of ids present. O(pages)."""
        return sum(PAGE - page.count(None) for page in self._pages.values())

    def __bool__(self) -> bool:
        return len(self._pages) > 0

    def __contains__(self, block: object) -> bool:
        return self.get(cast(int, block)) is not None

    def items(self) -> list[tuple[int, IdRun]]:
        """Return the ids present and their runs."""
        return [
            ((number << PAGE_BITS) + place, run)
            for number, page in self._pages.items()
            for place, run in enumerate(page)
            if run is not None
        ]

    def get(self, block: i64) -> IdRun | None:
        """Return the run of an id, None if it is not present."""
        page = self._pages.get(block >> PAGE_BITS)
        return None if page is None else page[block & (PAGE - 1)]

    def add(self, run: IdRun) -> None:
        """Put all ids of a run into it."""
        self.put(run.first, run.n, run)

    def put(self, first: i64, n: i64, run: IdRun | None) -> None:
        """Put n ids into a run, or take them away."""
        pages, stride = self._pages, self._stride
        while n > 0:
            number, place = first >> PAGE_BITS, first & (PAGE - 1)
            page = pages.get(number)
            if page is None:
                page = pages[number] = [None] * PAGE
            n_here = min(n, (PAGE - 1 - place) // stride + 1)
            if n_here == 1:
                page[place] = run
            elif stride == 1:
                page[place : place + n_here] = [run] * n_here
            else:
                page[place : place + (n_here - 1) * stride + 1 : stride] = [run] * n_here
            if run is None and page.count(None) == PAGE:
                del pages[number]
            first += n_here * stride
            n -= n_here

    def n_absent(self, first: i64, n: i64) -> i64:
        """Return how many ids, of n from one on, come before the first that is present."""
        pages, stride = self._pages, self._stride
        done: i64 = 0
        while done < n:
            block = first + done * stride
            place = block & (PAGE - 1)
            page = pages.get(block >> PAGE_BITS)
            n_here = min(n - done, (PAGE - 1 - place) // stride + 1)
            if page is not None:
                for i in range(n_here):
                    if page[place + i * stride] is not None:
                        return done + i
            done += n_here
        return n

    def has_all(self, of: Chain, start: int, end: int) -> bool:
        """Return whether the ids of a chain between two places are present."""
        pages, stride = self._pages, self._stride
        while start < end:
            block: i64 = of[start]
            n: i64 = stretch(of, start, end, stride)
            start += n
            while n > 0:
                place = block & (PAGE - 1)
                page = pages.get(block >> PAGE_BITS)
                if page is None:
                    return False
                n_here = min(n, (PAGE - 1 - place) // stride + 1)
                if None in page[place : place + (n_here - 1) * stride + 1 : stride]:
                    return False
                block += n_here * stride
                n -= n_here
        return True

    def present_to(self, of: Chain, at: i64, end: i64) -> i64:
        """Return the place of the first id of a chain that is not present, from one on and before `end`, else `end`."""
        stride = self._stride
        while at < end:
            block: i64 = of[at]
            high = at + stretch(of, at, end, stride)
            while at < high:
                run = self.get(block)
                if run is None:
                    return at
                last: i64 = run.first
                n = (last - block) // stride + run.n  # from this id to the last of its run
                at += n
                block += n * stride
            at = min(at, high)
        return at
