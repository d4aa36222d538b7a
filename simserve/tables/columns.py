"""Columns: a table in memory, equal-length numpy columns by name; from cells, and as a pandas DataFrame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from simserve.tables.fields import Field

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

Meaning = Literal["number", "text", "label", "instant", "ids", "value"]
"""Meaning of a column of a foreign file. A label is text, cut if long, and not read if it is anything else; an instant
is a number, a timestamp or a date as text; a value is whatever a scenario holds."""

Columns = dict[str, Any]
"""Name to a `(n_rows,)` numpy array, Categorical or Lists; a column without data is None and written as nulls.

Times are float seconds, NaN for a missing value (null in a file). Text is "" for none (null in a file), and integer
columns of replicas hold -1; in any column of integers or flags, masked cells are null in a file.
"""


@dataclass(frozen=True)
class Categorical:
    """A column of strings with few distinct values.

    Invariant: -1 <= codes < len(categories); -1 and the category "" mean null.
    """

    codes: NDArray[np.int32]
    categories: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> "Categorical":
        return Categorical(self.codes[rows], self.categories)

    def without_blank(self) -> "Categorical":
        """Return the same column with only -1 for null."""
        code_of = {word: code for code, word in enumerate(dict.fromkeys(filter(None, self.categories)))}
        new_code = np.array([code_of.get(word, -1) for word in self.categories] + [-1], np.int32)
        return Categorical(new_code[self.codes], tuple(code_of))  # -1 takes the last entry, which is -1

    def is_(self, category: str) -> Flags:
        """Return which rows hold a category; none if it is unknown."""
        if category not in self.categories:
            return np.zeros(len(self.codes), np.bool_)
        return np.equal(self.codes, self.categories.index(category))


@dataclass(frozen=True)
class Lists:
    """A column of lists of integers: values[offsets[i] : offsets[i + 1]] is row i's."""

    values: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> list[int]:
        ids: list[int] = self.values[self.offsets[row] : self.offsets[row + 1]].tolist()
        return ids

    def take(self, rows: Ints) -> "Lists":
        """Select rows."""
        return self.cut(self.offsets[:-1][rows], np.diff(self.offsets)[rows])

    def cut(self, starts: Ints, counts: Ints) -> "Lists":
        """Return rows that begin at some values, and have as many."""
        return Lists(self.values[counted_up(starts, counts)], np.concatenate([[0], np.cumsum(counts)]))


def bounds(groups: NDArray[Any], n: int) -> Ints:
    """Return where the rows of each of n groups begin in a sorted column, and their end, `(n + 1,)`. The numbers have
    the column's type, as numpy would convert all of it to another."""
    return np.searchsorted(groups, np.arange(n + 1, dtype=groups.dtype))


def counted_up(firsts: Any, counts: Ints) -> Ints:
    """Return first, first + 1, ... for each of firsts, as many as in counts, concatenated."""
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


def by_appearance(values: NDArray[Any]) -> Ints:
    """Number the distinct values by first appearance, so that more rows never change the first ones, `(n_rows,)`."""
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def taken(column: Any, rows: Ints) -> Any:
    """Select rows of a column: an array, or Lists."""
    return column.take(rows) if isinstance(column, Lists) else column[rows]


def joined(pieces: list[Any]) -> Any:
    """Return the pieces of a column as one: arrays, or Lists. Raises TypeError for dates and numbers."""
    if not isinstance(pieces[0], Lists):
        return np.concatenate(pieces)
    offsets = np.concatenate([[0], *(np.diff(piece.offsets) for piece in pieces)])
    return Lists(np.concatenate([piece.values for piece in pieces]), np.cumsum(offsets, out=offsets))


@dataclass(frozen=True)
class TableRows:
    """A table of a study's runs."""

    name: str
    """Name of its file."""
    fields: tuple[Field, ...]
    columns: Columns


def typed_columns(fields: Sequence[Field], rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return rows of cells as columns, `(n_rows,)` each; missing or None cells are null."""
    return {field.name: _typed(field, [row.get(field.name) for row in rows]) for field in fields}


def _typed(field: Field, cells: Sequence[Any]) -> Any:
    match field.kind:
        case "category":
            known = tuple(dict.fromkeys(cell for cell in cells if cell))
            codes = {word: place for place, word in enumerate(known)}
            return Categorical(np.array([codes[cell] if cell else -1 for cell in cells], np.int32), known)
        case "float":
            return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
        case "replica":
            return np.array([-1 if cell is None else cell for cell in cells], np.int32)
        case "int64" | "flag":
            is_null = np.array([cell is None for cell in cells], np.bool_)
            kind: Any = np.bool_ if field.kind == "flag" else np.int64
            plain: Any = np.array([0 if cell is None else cell for cell in cells], kind)
            return np.ma.MaskedArray(plain, is_null) if is_null.any() else plain
        case "text":
            if all(cell is None for cell in cells):
                return None
            assert None not in cells, f"{field.name}: text is there in every row or in none"
            return np.array(cells, np.str_)
        case kind:
            raise NotImplementedError(f"{field.name}: cells are not typed as {kind}")


def frame(fields: Sequence[Field], columns: Columns) -> "pd.DataFrame":
    """Return a DataFrame of the columns in the order of the fields; missing values are NaN or NA."""
    import pandas as pd  # late: no other step from a scenario to its files needs it

    n_rows = next((len(column) for column in columns.values() if column is not None), 0)
    return pd.DataFrame({field.name: _series(field, columns[field.name], n_rows) for field in fields}, copy=False)


def _series(field: Field, column: Any, n_rows: int) -> Any:
    import pandas as pd

    if column is None:
        dtype: Any = {"int64": "Int64", "int32": "Int64", "flag": "boolean"}.get(field.kind, object)
        return pd.Series([None] * n_rows, dtype=dtype)
    if field.kind == "category":
        known = column.without_blank()
        return pd.Categorical.from_codes(known.codes, categories=pd.Index(known.categories, dtype=object))
    if field.kind == "replica" and (column < 0).any():
        return pd.Series(column, dtype="Int32").mask(column < 0)
    if column.dtype.kind in "UO":
        return pd.Series([word or None for word in column.tolist()], dtype=object)
    if isinstance(column, np.ma.MaskedArray) and field.kind != "flag":
        return pd.Series(column.data, dtype="Int64").mask(np.ma.getmaskarray(column))
    return column.astype(field.kind if field.kind in ("int32", "int64") else column.dtype, copy=False)
