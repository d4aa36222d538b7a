"""Tables read back: each column of a result by its type, whatever tool wrote it last, in bounded memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import fstat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_type

from simserve.errors import OutputError
from simserve.input_files import open_file
from simserve.tables.columns import Categorical, Columns, Flags
from simserve.tables.fields import Field
from simserve.tables.foreign import refuse_many_groups, refuse_same_names
from simserve.tables.parquet import SCHEMA_KEY
from simserve.tables.schema import MOST, SCHEMA
from simserve.tables.scratch import Scratch

REMEDY = "run the command again"

BATCH_ROWS = 1 << 20
"""Rows of a column that are converted at a time."""

FEW_ROWS, ROWS_PER_BYTE = 1_000_000, 10
"""Limit on the rows of a file by its size: no table that a run writes is longer, but a crafted file may be."""

COLUMN_BYTES, NUMBER_BYTES, TEXT_BYTES = 32 * 2**20, 64, 520
"""Limit on the bytes of a column, unpacked, and for each of its rows; ids of a load have at most 128 characters."""

LONGEST_TEXT_BYTES = 10_000
"""Limit of one text: names and ids, which pages repeat."""

_WORDS = {
    "float": "numbers",
    "flag": "true or false",
    "category": "text",
    "text": "text",
    "id": "whole numbers or text",
}
"""Values of the kinds; those of all others are whole numbers."""

_NUMBERS = {
    "float": (pa.float64(), np.float64),
    "int64": (pa.int64(), np.int64),
    "int32": (pa.int32(), np.int32),
    "replica": (pa.int32(), np.int32),
    "flag": (pa.bool_(), np.bool_),
}
"""Types of the kinds that are no text, in Arrow and in numpy."""


def read_table(path: Path, fields: tuple[Field, ...]) -> tuple[Columns, dict[str, str]]:
    """Read the columns of a table by `write_table`, and its extra metadata; other columns are left alone. A type that
    another tool wrote instead is converted where no value changes. Raises OutputError otherwise."""
    with _opened(path) as content:
        metadata = content.schema_arrow.metadata or {}
        _check(path, content, fields)
        columns: Columns = {}
        scratch = Scratch()
        for field in fields:
            columns[field.name] = _StoredColumn(path, content, field, scratch).values()
            scratch.release()
    ours = {key: value for key, value in metadata.items() if key.startswith(b"simserve.") and key != SCHEMA_KEY}
    try:
        return columns, {key.decode().removeprefix("simserve."): value.decode() for key, value in ours.items()}
    except UnicodeDecodeError:
        raise OutputError(f"{path}: its metadata must be UTF-8 text; {REMEDY}") from None


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a parquet file with all text as dictionaries: each text is unpacked once. Raises OutputError."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        raise OutputError(f"{path}: no such file; name the folder of a finished run") from None
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from None
    with file:
        try:
            metadata = pq.read_metadata(file)
            leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.path == leaf.name]
            content = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts)
        except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: a name that is not UTF-8
            raise _unreadable(path, error) from None
        most = FEW_ROWS + ROWS_PER_BYTE * fstat(file.fileno()).st_size
        if metadata.num_rows > most:
            raise OutputError(f"{path}: must have at most {most:,} rows, got {metadata.num_rows:,}; {REMEDY}")
        refuse_many_groups(path, metadata)
        yield content


def _unreadable(path: Path, error: object) -> OutputError:
    return OutputError(f"{path}: cannot be read as parquet ({error}); {REMEDY}")


def _check(path: Path, content: pq.ParquetFile, fields: tuple[Field, ...]) -> None:
    """Raise OutputError unless the table has our version and all columns once."""
    schema = content.schema_arrow
    version = (schema.metadata or {}).get(SCHEMA_KEY, b"none").decode(errors="replace")
    if version != SCHEMA:
        raise OutputError(f"{path}: must have schema {SCHEMA}, got {version}; {REMEDY}")
    missing = [field.name for field in fields if field.name not in schema.names]
    if missing:
        raise OutputError(f"{path}: columns {', '.join(missing)} are missing; {REMEDY}")
    refuse_same_names(path, schema.names)


@dataclass(frozen=True)
class _StoredColumn:
    """A column of a file, and the field that it is read as."""

    path: Path
    content: pq.ParquetFile
    field: Field
    scratch: Scratch

    def values(self) -> Any:
        """Return the column; None where it has rows but no value, and its kind has no null of its own."""
        stored = self.content.schema_arrow.field(self.field.name).type
        given = stored.value_type if is_type.is_dictionary(stored) else stored
        if not (_fits(self.field.kind, given) or is_type.is_null(given)):
            raise self._refused(f"must be {_WORDS.get(self.field.kind, 'whole numbers')}", str(given))
        self._check_size(TEXT_BYTES if _is_text(given) else NUMBER_BYTES)
        if self.field.kind in ("category", "text") or _is_text(given):
            return self._texts()
        return self._numbers("int64" if self.field.kind == "id" else self.field.kind)

    def _numbers(self, kind: str) -> Any:
        arrow, dtype = _NUMBERS[kind]
        null: Any = {"float": np.nan, "replica": -1, "flag": False}.get(kind, 0)
        parts, nulls = [], []
        for array in self._arrays():
            numbers = self._cast(array, arrow)
            part = numbers.fill_null(null).to_numpy(zero_copy_only=False)
            is_null = np.isnan(part) if kind == "float" else numbers.is_null().to_numpy(zero_copy_only=False)
            wrong = part[~is_null & ~((part >= -MOST) & (part <= MOST))]  # larger than any number of a run
            if len(wrong):
                raise self._refused(f"must be at most {MOST:g}", f"{wrong[0]:g}")
            parts.append(part)
            nulls.append(is_null)
        joined = self.scratch.joined(parts, sum(map(len, parts)), dtype)
        return self._with_nulls(joined, nulls, has_own=kind in ("float", "replica"))

    def _cast(self, array: Any, arrow: pa.DataType) -> Any:
        """Return numbers as another type. Raises OutputError where a value would change."""
        try:
            # Arrow's own check of half floats looks at their bits.
            return (array.cast(pa.float32()) if is_type.is_float16(array.type) else array).cast(arrow)
        except pa.ArrowException as error:
            raise self._refused(f"must be {arrow}", f"{array.type} that is not ({error})") from None

    def _texts(self) -> Any:
        code_of: dict[str, int] = {}
        parts = []
        for array in self._arrays():
            encoded = array.cast(pa.string()).dictionary_encode() if is_type.is_null(array.type) else array
            longest = pc.max(pc.binary_length(encoded.dictionary)).as_py() or 0
            if longest > LONGEST_TEXT_BYTES:
                raise self._refused(f"must be text of at most {LONGEST_TEXT_BYTES:,} bytes", f"{longest:,}")
            words = encoded.dictionary.to_pylist()
            codes = np.array([*(code_of.setdefault(word, len(code_of)) for word in words), -1], np.int32)
            parts.append(codes[encoded.indices.fill_null(-1).to_numpy()])
        codes = self.scratch.joined(parts, sum(map(len, parts)), np.int32)
        nulls = [codes < 0]
        if self.field.kind == "category":
            return self._with_nulls(Categorical(codes, tuple(code_of)), nulls, has_own=True)
        texts = self._with_nulls(np.array([*code_of, ""], object)[codes], nulls, has_own=True)  # rows share texts
        return texts if len(code_of) or not len(codes) else None

    def _with_nulls(self, column: Any, nulls: Sequence[Flags], *, has_own: bool) -> Any:
        """Return the column, masked where its kind has no null of its own."""
        n_rows, is_null = self.content.metadata.num_rows, np.concatenate([np.zeros(0, np.bool_), *nulls])
        if len(is_null) != n_rows:
            raise self._refused(f"must have the {n_rows:,} rows of its file", f"{len(is_null):,}")
        if not is_null.any() or (has_own and self.field.is_optional):
            return column
        if not self.field.is_optional:
            raise self._refused("must have a value in every row", f"none in row {int(is_null.argmax()) + 1:,}")
        return None if is_null.all() else np.ma.MaskedArray(column, is_null)

    def _arrays(self) -> Iterator[Any]:
        """Yield the column in pieces of valid values. Raises OutputError."""
        try:
            for batch in self.content.iter_batches(BATCH_ROWS, columns=[self.field.name]):
                batch.validate(full=True)
                yield batch.column(0)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self.path, error) from None

    def _check_size(self, bytes_per_row: int) -> None:
        """Raise OutputError where the column unpacks to more than its rows explain."""
        file = self.content.metadata
        leaf = [file.schema.column(number).path for number in range(file.num_columns)].index(self.field.name)
        n_bytes = sum(file.row_group(n).column(leaf).total_uncompressed_size for n in range(file.num_row_groups))
        most = COLUMN_BYTES + bytes_per_row * file.num_rows
        if n_bytes > most:
            raise self._refused(f"must unpack to at most {most:,} bytes", f"{n_bytes:,}")

    def _refused(self, rule: str, value: str) -> OutputError:
        return OutputError(f"{self.path}: {self.field.name}: {rule}, got {value}; {REMEDY}")


def _fits(kind: str, given: pa.DataType) -> bool:
    """Return whether a type may hold the values of a kind."""
    if kind == "flag":
        return bool(is_type.is_boolean(given))
    if kind in ("category", "text"):
        return _is_text(given)
    if kind == "id" and _is_text(given):
        return True
    # Of decimals, only whole ones are the same numbers in binary.
    return bool(
        is_type.is_integer(given) or is_type.is_floating(given) or (kind != "float" and is_type.is_decimal(given))
    )


def _is_text(given: pa.DataType) -> bool:
    return bool(is_type.is_string(given) or is_type.is_large_string(given))
