"""Pieces: formulas of rows, applied to tables that need not fit in memory.

A formula takes the columns of some rows and returns columns of the same rows. Here it is applied to a table piece by
piece, and between pieces the pages of all arrays of the run are released. Arrays know where their run keeps them, so
columns are all that formulas and metrics hand on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simserve.tables.columns import Columns, Flags, Ints
from simserve.tables.scratch import Scratch

Thing = TypeVar("Thing")

Formula = Callable[..., Mapping[str, NDArray[Any]]]
"""Columns of some rows from columns of the same rows; where these look beside them, also from those of other rows."""


def pieces(columns: Columns, n_rows: int | None = None, *, run: Columns | None = None) -> Iterator[Columns]:
    """Yield a table piece by piece: some rows of all columns. run: columns of its run, where its own are in memory."""
    for piece in scratch_of(run or columns).pieces(n_rows_of(columns), n_rows):
        yield cut(columns, piece)


def beside_pieces(columns: Columns, beside: int) -> Iterator[tuple[Columns, ...]]:
    """Yield a table piece by piece, as a formula gets it.

    beside: 1 also gives the columns of the rows after those of the piece, of which the last has none, and -1 of those
    before, of which the first has none.
    """
    n = n_rows_of(columns)
    for piece in scratch_of(columns).pieces(n):
        yield _tables(columns, piece, n, beside)


def computed(formula: Formula, columns: Columns, beside: int = 0) -> Columns:
    """Return the columns that a formula computes of all rows; beside: as of `beside_pieces`."""
    n = n_rows_of(columns)
    return scratch_of(columns).built_all(n, lambda piece: formula(*_tables(columns, piece, n, beside)))


def column(formula: Callable[..., NDArray[Any]], columns: Columns, beside: int = 0) -> NDArray[Any]:
    """Return the one column that a formula computes of all rows."""
    return computed(lambda *tables: {"": formula(*tables)}, columns, beside)[""]  # type: ignore[no-any-return]


def cumulated(formula: Callable[..., NDArray[Any]], columns: Columns, beside: int = 0) -> NDArray[Any]:
    """Return the sums of a column up to and with each row, to the last bit as `numpy.cumsum` adds them."""
    so_far: NDArray[Any] | None = None

    def sums(*tables: Columns) -> NDArray[Any]:
        nonlocal so_far
        upto = running_sums(formula(*tables), so_far)
        so_far = upto[-1:].copy()
        return upto

    return column(sums, columns, beside)


def running_sums(values: NDArray[Any], before: NDArray[Any] | None) -> NDArray[Any]:
    """Return cumulative sums that go on from `before`, `(1,)`; None: from zero."""
    return np.cumsum(values) if before is None or not len(before) else np.cumsum(np.append(before, values))[1:]


def rows_where(formula: Callable[[Columns], Flags], columns: Columns) -> Ints:
    """Return the numbers of the rows that a formula marks."""
    return scratch_of(columns).flatnonzero(n_rows_of(columns), lambda piece: formula(cut(columns, piece)))


def joined(parts: Iterable[NDArray[Any]], most: int, beside: Columns, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return parts of unknown length one after the other: at most so many items, kept where the columns are."""
    return scratch_of(beside).joined(parts, most, dtype)


def full(n: int, value: float, beside: Columns, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return n equal items, kept where the columns are."""
    return scratch_of(beside).full(n, value, dtype)


def in_turn(things: Iterable[Thing], columns: Columns) -> Iterator[Thing]:
    """Yield things that take memory one by one; between them, release the pages of the run that has these columns."""
    for thing in things:
        yield thing
        release(columns)


def cut(columns: Columns, rows: slice) -> Columns:
    """Select consecutive rows, without a copy."""
    return {name: None if values is None else values[rows] for name, values in columns.items()}


def n_rows_of(columns: Columns) -> int:
    """Return the number of rows of a table."""
    return next((len(values) for values in columns.values() if values is not None), 0)


def release(columns: Columns) -> None:
    """Release the pages of all arrays of the run that has these columns."""
    scratch_of(columns).release()


def scratch_of(columns: Columns) -> Scratch:
    """Return where the run of some columns keeps its arrays; one of its own for columns in memory."""
    for values in columns.values():
        array = getattr(values, "codes", values)
        while (base := getattr(array, "base", None)) is not None:
            array = base
        scratch: Scratch | None = getattr(getattr(array, "obj", array), "scratch", None)
        if scratch is not None:
            return scratch
    return Scratch()


def _tables(columns: Columns, piece: slice, n: int, beside: int) -> tuple[Columns, ...]:
    if not beside:
        return (cut(columns, piece),)
    return cut(columns, piece), cut(columns, slice(max(piece.start + beside, 0), min(piece.stop + beside, n)))
