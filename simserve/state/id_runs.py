"""Ids of blocks in runs of consecutive ones: chains of requests, and what a cache has of them."""

from __future__ import annotations

from bisect import bisect_right
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
        self._firsts, self._starts = list[int](), [0]
        following = -1
        for first, n in zip(firsts, lengths, strict=True):
            end = self._starts[-1] + n
            if self._firsts and first == following:
                self._starts[-1] = end
            else:
                self._firsts.append(first)
                self._starts.append(end)
            following = first + n

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return self._between(start, stop) if step == 1 else list(self)[at]
        place = range(len(self))[at]
        start, _, first = self.run_at(place)
        return first + place - start

    def __iter__(self) -> Iterator[int]:
        return iter(self._between(0, len(self)))

    def run_at(self, place: i64) -> tuple[i64, i64, i64]:
        """Return the places [start, end) of the run with the id at a place, and its first id."""
        run = bisect_right(self._starts, place) - 1
        return self._starts[run], self._starts[run + 1], self._firsts[run]

    def _between(self, at: int, stop: int) -> list[int]:
        """Return the ids [at, stop)."""
        ids: list[int] = []
        while at < stop:
            start, end, first = self.run_at(at)
            ids += range(first + at - start, first + min(stop, end) - start)
            at = end
        return ids


def run_at(chain: Chain, place: i64) -> tuple[i64, i64, i64]:
    """Return the places [start, end) of ids that follow each other, one of them at a place, and the first of them. Ids
    in a list may follow each other unnoticed."""
    if type(chain) is not IdRuns:
        return place, place + 1, chain[place]
    return chain.run_at(place)


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

    def __init__(self, stride: int = 1) -> None:
        """stride: distance of the ids of a run."""
        self._stride: i64 = stride
        self._pages: dict[int, list[IdRun | None]] = {}

    def __bool__(self) -> bool:
        return len(self._pages) > 0

    def __contains__(self, block: object) -> bool:
        return self.get(cast(int, block)) is not None

    def get(self, block: i64) -> IdRun | None:
        """Return the run of an id, None if it is not present."""
        page = self._pages.get(block >> PAGE_BITS)
        return None if page is None else page[block & (PAGE - 1)]

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
            else:
                page[place : place + (n_here - 1) * stride + 1 : stride] = [run] * n_here
            if run is None and page.count(None) == PAGE:
                del pages[number]
            first += n_here * stride
            n -= n_here

    def present_to(self, of: Chain, at: i64, end: i64) -> i64:
        """Return the place of the first id of a chain that is not present, from one on and before `end`, else `end`."""
        stride = self._stride
        while at < end:
            low, high, block = run_at(of, at)
            block += at - low
            high = min(high, end)
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
