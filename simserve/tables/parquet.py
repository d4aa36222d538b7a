"""Parquet: columns to a file, with schema version and units in its metadata; `read_back.py` reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simserve.errors import OutputError
from simserve.tables.columns import Categorical, Columns, Flags, Lists
from simserve.tables.fields import Field
from simserve.tables.pieces import n_rows_of, pieces, release
from simserve.tables.schema import SCHEMA

SCHEMA_KEY = b"simserve.schema"

GROUP_ROWS = 1 << 20
"""Rows of a row group; as many are converted at a time."""

GROUP_IDS = 5_000_000
"""Values of lists in a row group, about: half of what `foreign.py` reads at a time."""

_TYPES = {
    "float": pa.float64(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "replica": pa.int32(),
    "flag": pa.bool_(),
    "category": pa.dictionary(pa.int32(), pa.string()),
    "text": pa.string(),
}

# Byte streams split by significance, and differences, halve the work of zstd (measured on 3e6 rows).
_ENCODINGS = {"float": "BYTE_STREAM_SPLIT"} | dict.fromkeys(("int32", "int64", "replica", "id"), "DELTA_BINARY_PACKED")


def write_table(
    path: Path, fields: tuple[Field, ...], columns: Columns, extra: Mapping[str, str] | None = None
) -> None:
    """Write columns as one file; `extra` goes into its metadata under the names `simserve.<key>`. The same columns
    always give the same bytes. Raises OSError if the disk refuses."""
    release(columns)
    n_rows = n_rows_of(columns)
    lists = [column for column in columns.values() if isinstance(column, Lists)]
    n_ids = max((len(column.values) for column in lists), default=0)
    group_rows = min(GROUP_ROWS, max(1, GROUP_IDS * n_rows // max(1, n_ids)))
    parts = iter((columns,)) if lists or not n_rows else pieces(columns, GROUP_ROWS)
    arrays = _arrays(fields, next(parts))
    own = {f"simserve.{key}".encode(): value.encode() for key, value in (extra or {}).items()}
    schema = pa.schema(
        [
            pa.field(f.name, a.type, metadata={"unit": f.unit} if f.unit else None)
            for f, a in zip(fields, arrays, strict=True)
        ],
        metadata={SCHEMA_KEY: SCHEMA.encode()} | own,
    )
    words = [field.name for field, array in zip(fields, arrays, strict=True) if not _is_number(array)]
    numbers = {f.name: _ENCODINGS[f.kind] for f in fields if f.name not in words and f.kind in _ENCODINGS}
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "write_statistics": False}
    with pq.ParquetWriter(path, schema, use_dictionary=words, column_encoding=numbers, **options) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema), group_rows)
        del arrays
        for part in parts:
            writer.write_table(pa.Table.from_arrays(_arrays(fields, part), schema=schema), group_rows)


def _arrays(fields: tuple[Field, ...], columns: Columns) -> list[Any]:
    """Return columns as arrow arrays."""
    return [_array(field, columns[field.name], n_rows_of(columns)) for field in fields]


def write_columns(path: Path, columns: Columns) -> None:
    """Write numbers, strings and lists, `(n,)` each, as a parquet file; the arrays' types give the kinds."""
    kinds = {"f": "float", "i": "int64", "U": "text", "b": "flag"}
    fields = tuple(
        Field(name, "lists" if isinstance(column, Lists) else kinds[column.dtype.kind])  # type: ignore[arg-type]
        for name, column in columns.items()
    )
    write_table(path, fields, columns)


def _is_number(array: Any) -> bool:
    kinds = (pa.types.is_string, pa.types.is_dictionary, pa.types.is_large_list)
    return not any(is_kind(array.type) for is_kind in kinds)


def _array(field: Field, column: Any, n_rows: int) -> Any:
    """Return an arrow array that shares the column's memory.

    fast: from buffers, as `pa.array` checks for a pandas object and so imports pandas (0.4 s).
    """
    if column is None:
        return pa.nulls(n_rows, _TYPES["int64" if field.kind == "id" else field.kind])
    if field.kind == "category":
        return _dictionary(column)
    if field.kind == "lists":
        values: NDArray[Any] = np.ascontiguousarray(column.values, np.int64)
        buffers = [None, pa.py_buffer(np.ascontiguousarray(column.offsets, np.int64))]
        inner = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
        return pa.Array.from_buffers(pa.large_list(pa.int64()), n_rows, buffers, children=[inner])
    if field.kind == "text" or column.dtype.kind in "UO":
        return _strings(column.tolist(), column == "")
    kind = "int64" if field.kind == "id" else field.kind
    masked: Flags | None = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    if kind == "flag":
        return pa.Array.from_buffers(pa.bool_(), n_rows, [_validity(masked), _bits(np.asarray(column))])
    dtype: Any = {"float": np.float64, "int64": np.int64}.get(kind, np.int32)
    values = np.ascontiguousarray(column, dtype)
    is_null = np.isnan(values) if kind == "float" else values < 0 if kind == "replica" else masked
    return pa.Array.from_buffers(_TYPES[kind], n_rows, [_validity(is_null), pa.py_buffer(values)])


def _validity(is_null: Flags | None) -> Any:
    return None if is_null is None or not is_null.any() else _bits(~is_null)


def _bits(flags: Flags) -> Any:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _strings(values: list[str], is_null: Flags | None = None) -> Any:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if ends[-1] >= 2**31:
        raise OutputError("a column of text must stay below 2 GiB; give the load shorter ids")
    buffers = [_validity(is_null), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _dictionary(column: Categorical) -> Any:
    column = column.without_blank()
    codes = column.codes
    indices = pa.Array.from_buffers(pa.int32(), len(codes), [_validity(codes < 0), pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, _strings(list(column.categories)))
