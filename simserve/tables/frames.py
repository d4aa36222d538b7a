"""Frames: columns as pandas DataFrames. No other step from a scenario to its files needs pandas."""

from typing import Any

import numpy as np
import pandas as pd

from simserve.tables.columns import Columns
from simserve.tables.schema import Field

_DTYPES = {"int32": "int32", "int64": "int64"}


def frame(fields: tuple[Field, ...], columns: Columns) -> pd.DataFrame:
    """Return a DataFrame of the columns in the order of the fields; missing values are NaN or NA."""
    n_rows = next((len(column) for column in columns.values() if column is not None), 0)
    return pd.DataFrame({field.name: _series(field, columns[field.name], n_rows) for field in fields}, copy=False)


def _series(field: Field, column: Any, n_rows: int) -> Any:
    if column is None:
        dtype: Any = {"int64": "Int64", "int32": "Int64", "flag": "boolean"}.get(field.kind, object)
        return pd.Series([None] * n_rows, dtype=dtype)
    if field.kind == "category":
        known = column.without_blank()
        return pd.Categorical.from_codes(known.codes, categories=pd.Index(known.categories, dtype=object))
    if field.kind == "replica" and (column < 0).any():
        series = pd.Series(column, dtype="Int32")
        return series.mask(column < 0)
    if column.dtype.kind in "UO":
        return pd.Series([word or None for word in column.tolist()], dtype=object)
    if isinstance(column, np.ma.MaskedArray) and field.kind != "flag":
        return pd.Series(column.data, dtype="Int64").mask(np.ma.getmaskarray(column))
    return column.astype(_DTYPES.get(field.kind, column.dtype), copy=False)
