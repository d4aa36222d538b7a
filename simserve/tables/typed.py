"""Typed columns from cells, with None for a missing value."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.tables.columns import Categorical, Columns
from simserve.tables.schema import Field


def typed_columns(fields: Sequence[Field], rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return rows as columns, `(n_rows,)` each; missing or None cells are null."""
    return {field.name: _column(field, [row.get(field.name) for row in rows]) for field in fields}


def _column(field: Field, cells: Sequence[Any]) -> Any:
    match field.kind:
        case "category":
            return _categorical(cells)
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


def _categorical(cells: Sequence[str | None]) -> Categorical:
    known = tuple(dict.fromkeys(cell for cell in cells if cell))
    codes = {word: place for place, word in enumerate(known)}
    return Categorical(np.array([codes[cell] if cell else -1 for cell in cells], np.int32), known)
