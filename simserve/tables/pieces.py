"""Pieces: formulas of rows, applied to tables that need not fit in memory.

A formula takes the columns of some rows and returns columns of the same rows. Here it is applied to a table piece by
piece, and between pieces the pages of all arrays of the run are released. Arrays know where their run keeps them, so
columns are all that formulas and metrics hand on.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simserve.tables import scratch
from simserve.tables.columns import Columns, Flags, Ints
from simserve.tables.scratch import Scratch

Thing = TypeVar("Thing")

Derived = dict[str, NDArray[Any]]
"""Columns that a formula computes."""


class Rows(dict[str, Any]):
    """Columns of some rows of a table: what a formula is given."""


def pieces(columns: Columns, n_rows: int | None = None, *, run: Columns | None = None) -> Iterator[Rows]:
    """Yield a table piece by piece: some rows of all columns. run: columns of its run, where its own are in memory."""
    n = n_rows_of(columns)
    for piece in _files(n, run or columns).pieces(n, n_rows):
        yield _piece(columns, piece, n)


def with_neighbors(columns: Columns, neighbor: int) -> Iterator[tuple[Rows, ...]]:
    """Yield a table piece by piece, as a formula gets it.

    neighbor: 1 also gives the columns of the rows after those of the piece, of which the last has none, and -1 of those
    before, of which the first has none.
    """
    n = n_rows_of(columns)
    for piece in _files(n, columns).pieces(n):
        yield _tables(columns, piece, n, neighbor)


def computed(formula: Callable[..., Derived], columns: Columns, neighbor: int = 0) -> Derived:
    """Return the columns that a formula computes of all rows; neighbor: as of `with_neighbors`."""
    n = n_rows_of(columns)
    return _files(n, columns).built_all(n, lambda piece: formula(*_tables(columns, piece, n, neighbor)))


def column(formula: Callable[..., NDArray[Any]], columns: Columns, neighbor: int = 0) -> NDArray[Any]:
    """Return the one column that a formula computes of all rows."""
    return computed(lambda *tables: {"": formula(*tables)}, columns, neighbor)[""]


def cumulated(formula: Callable[..., NDArray[Any]], columns: Columns, neighbor: int = 0) -> NDArray[Any]:
    """Return the sums of a column up to and with each row, to the last bit as `numpy.cumsum` adds them."""
    so_far: NDArray[Any] | None = None

    def sums(*tables: Rows) -> NDArray[Any]:
        nonlocal so_far
        upto = running_sums(formula(*tables), so_far)
        so_far = upto[-1:].copy()
        return upto

    return column(sums, columns, neighbor)


def running_sums(values: NDArray[Any], before: NDArray[Any] | None) -> NDArray[Any]:
    """Return cumulative sums that go on from `before`, `(1,)`; None: from zero."""
    return np.cumsum(values) if before is None or not len(before) else np.cumsum(np.append(before, values))[1:]


def rows_where(formula: Callable[[Rows], Flags], columns: Columns) -> Ints:
    """Return the numbers of the rows that a formula marks."""
    n = n_rows_of(columns)
    files = _files(n, columns)
    return files.joined(
        (piece.start + np.flatnonzero(formula(_piece(columns, piece, n))) for piece in files.pieces(n)), n
    )


def joined(parts: Iterable[NDArray[Any]], most: int, like: Columns, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return parts of unknown length one after the other: at most so many items, kept where the columns are."""
    return _files(most, like).joined(parts, most, dtype)


def full(n: int, value: float, like: Columns, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return n equal items, kept where the columns are."""
    return _files(n, like).full(n, value, dtype)


def in_turn(things: Iterable[Thing], columns: Columns) -> Iterator[Thing]:
    """Yield things that take memory one by one; release the pages of the run that has these columns before each."""
    files = _files(n_rows_of(columns), columns)
    for thing in things:
        files.release()
        yield thing


def cut(columns: Columns, rows: slice | Ints) -> Rows:
    """Select rows; consecutive ones without a copy."""
    return Rows((name, None if values is None else values[rows]) for name, values in columns.items())


def _piece(columns: Columns, piece: slice, n: int) -> Rows:
    """fast: most tables are one piece, which needs no views."""
    return Rows(columns) if piece.stop - piece.start == n else cut(columns, piece)


def n_rows_of(columns: Columns) -> int:
    """Return the number of rows of a table."""
    return next((len(values) for values in columns.values() if values is not None), 0)


def release(columns: Columns) -> None:
    """Release the pages of all arrays of the run that has these columns, where they are more than one piece."""
    _files(n_rows_of(columns), columns).release()


def scratch_of(columns: Columns) -> Scratch:
    """Return where the run of some columns keeps its arrays; one of its own for columns in memory."""
    for values in columns.values():
        array = getattr(values, "codes", values)
        while (base := getattr(array, "base", None)) is not None:
            array = base
        files: Scratch | None = getattr(getattr(array, "obj", array), "scratch", None)
        if files is not None:
            return files
    return Scratch()


def _files(n_rows: int, columns: Columns) -> Scratch:
    """fast: a table of one piece needs no look at its columns: what is computed of so few rows fits in memory."""
    return scratch_of(columns) if n_rows > scratch.PIECE_ROWS else Scratch()


def _tables(columns: Columns, piece: slice, n: int, neighbor: int) -> tuple[Rows, ...]:
    if not neighbor:
        return (_piece(columns, piece, n),)
    return cut(columns, piece), cut(columns, slice(max(piece.start + neighbor, 0), min(piece.stop + neighbor, n)))
