"""Columns of integers: `vec[i64]` where mypyc has compiled this file, lists where CPython interprets it.

This is the one file that knows which. Both index alike. A machine integer wraps where one of Python grows, so what is
summed or multiplied is bounded before. Index -1 reads the last element in silence, so NONE is tested before it is used.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

import mypy_extensions
import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

IS_COMPILED: Final = not __file__.endswith(".py")  # computed, so that mypy folds neither branch away

if IS_COMPILED:
    import librt.vecs
    from librt.vecs import append as append
    from librt.vecs import vec as vec
else:

    def _append(column: list[int], value: int) -> list[int]:
        column.append(value)
        return column

    globals().update(append=_append, vec=list)

_copied: Any = getattr(librt.vecs, "vec")[mypy_extensions.i64] if IS_COMPILED else None  # noqa: B009
"""Makes a column of a buffer. fast: it copies the whole at once, where compiled code would take number by number."""

NONE: Final = -1
"""No row, place or value."""
NEVER: Final[i64] = 9_223_372_036_854_775_807  # fast: what is computed is no constant for mypyc
"""Later than any instant or step."""


def column(cells: NDArray[np.int64]) -> vec[i64]:
    """Return a column of these cells."""
    return _copied(cells) if IS_COMPILED else cells.tolist()  # type: ignore[no-any-return]


def filled(n: i64, value: i64) -> vec[i64]:
    """Return a column of n equal numbers."""
    return column(np.full(n, value, np.int64))


def widened(old: vec[i64], n: i64) -> vec[i64]:
    """Return a column with room for n more numbers. The owner alone may widen: others keep what they have."""
    return column(np.append(np.array(old, np.int64), np.full(n, NONE)))


def total(numbers: vec[i64], start: i64, end: i64) -> i64:
    """Return the sum of a part of a column."""
    if not IS_COMPILED:
        return sum(numbers[start:end])
    result: i64 = 0
    for place in range(start, end):
        result += numbers[place]
    return result


def buffer(n: i64) -> Any:
    """Return a column of n numbers that numpy reads without a copy."""
    return filled(n, 0) if IS_COMPILED else array("q", bytes(8 * n))


def extended(old: Any, cells: NDArray[Any]) -> Any:
    """Return a `buffer` with the numbers of one, or of any sequence, and these behind them."""
    whole = np.append(np.array(old, np.int64), cells.astype(np.int64))
    return column(whole) if IS_COMPILED else array("q", whole.tobytes())


class Heap:
    """The least of some numbers, which are not negative."""

    def __init__(self) -> None:
        self.n: i64 = 0
        self._keys: vec[i64] = filled(16, 0)
        self._heap: list[int] = []

    def least(self) -> i64:
        """Return the least number, NEVER if there is none."""
        if not self.n:
            return NEVER
        if IS_COMPILED:  # fast: what may be one or the other would be boxed
            return self._keys[0]
        return self._heap[0]

    def push(self, key: i64) -> None:
        """Add a number."""
        at = self.n
        self.n = at + 1
        if not IS_COMPILED:
            heappush(self._heap, key)
            return
        if at == len(self._keys):
            self._keys = widened(self._keys, at)
        keys = self._keys
        while at:
            above = (at - 1) >> 1
            if keys[above] <= key:
                break
            keys[at] = keys[above]
            at = above
        keys[at] = key

    def pop(self) -> i64:
        """Remove and return the least number. Needs one."""
        n = self.n - 1
        self.n = n
        if not IS_COMPILED:
            return heappop(self._heap)
        least = self._keys[0]
        self._sink(self._keys[n])
        return least

    def replace(self, key: i64) -> None:
        """Replace the least number. Needs one."""
        if IS_COMPILED:
            self._sink(key)
        else:
            heapreplace(self._heap, key)

    def _sink(self, key: i64) -> None:
        """Put a number in the place of the least."""
        keys, n = self._keys, self.n
        at: i64 = 0
        below: i64 = 1
        while below < n:
            if below + 1 < n and keys[below + 1] < keys[below]:
                below += 1
            if keys[below] >= key:
                break
            keys[at] = keys[below]
            at = below
            below = 2 * at + 1
        keys[at] = key


class Tournament:
    """Numbers at n places, and the first place with the least: a tree in which each node has the lesser of its two."""

    def __init__(self, n: i64) -> None:
        self._first_leaf, self._tree = i64(1), filled(2, NEVER)
        self.widen(n)

    def widen(self, n: i64) -> None:
        """Make room for n places; there is NEVER at new ones."""
        old, first = self._tree, self._first_leaf
        while self._first_leaf < n:
            self._first_leaf *= 2
        self._tree = filled(2 * self._first_leaf, NEVER)
        for place in range(first):
            self.set(place, old[first + place])

    def set(self, place: i64, value: i64) -> None:
        """Change the number at a place."""
        tree, at = self._tree, self._first_leaf + place
        tree[at] = value
        while at > 1:
            other = tree[at ^ 1]
            lesser = value if value < other else other
            at >>= 1
            if tree[at] == lesser:
                return
            tree[at] = value = lesser

    def least(self) -> i64:
        """Return the least number."""
        return self._tree[1]

    def first(self) -> i64:
        """Return the first place with the least number."""
        tree, n_leaves, least = self._tree, self._first_leaf, self._tree[1]
        at: i64 = 1
        while at < n_leaves:
            at *= 2
            if tree[at] != least:
                at += 1
        return at - n_leaves
