"""Parquet of any origin: columns read by their types, in batches bounded by its metadata."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simserve.errors import OutputError
from simserve.input_files import MOST_TEXT_CHARACTERS, open_file
from simserve.tables.columns import Columns, Ints, Lists, Meaning, joined

RULES: Mapping[Meaning, tuple[str, str]] = {
    "number": ("must be numbers", "write it as int64 or double"),
    "text": ("must be text", "write it as string"),
    "label": ("must be text", "write it as string"),
    "instant": ("must be numbers, timestamps or text", "write it as double or timestamp"),
    "ids": ("must be lists of whole numbers", "write it as list<int64>"),
    "value": ("must be numbers, flags, text or lists of these", "write it as one of these"),
}
"""What a column must be, and the remedy."""

BATCH_BYTES = 16 * 2**20
BATCH_ROWS = 1 << 16

GROUP_BYTES = 96 * 2**20
GROUP_VALUES = 10_000_000
"""Bytes and values of a column in any row group, whatever its rows; BYTES_PER_ROW and VALUES_PER_ROW come on top."""

FEW_GROUPS, ROWS_PER_GROUP = 1000, 1000
"""Limit on the row groups of a file, by its rows."""

MOST_VALUE_CHARACTERS = 4096
"""Limit of text that a scenario would hold, such as the path of a file."""

BYTES_PER_ROW = 4 * MOST_TEXT_CHARACTERS + 8
BYTES_PER_NUMBER = 40
VALUES_PER_ROW = 64


def read_columns(path: Path, kind_of: Callable[[str], Meaning | None], most_rows: int) -> tuple[Columns, list[str]]:
    """Return the columns that have a kind, `(n_rows,)` each, and the names of all. Raises OutputError.

    Numbers are floats, NaN for null; text is "" for null; timestamps are datetime64; ids are Lists, empty for null.
    Values keep their type, with None for null.
    """
    try:
        with open_file(path) as file:
            return _Foreign(path, file, kind_of, most_rows).columns()
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: a name that is not UTF-8
        text = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{path}: cannot be read as parquet ({text[:200]})") from None


def refuse_same_names(path: Path, names: list[str]) -> None:
    """Raise OutputError where two columns have the same name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OutputError(f"{path}: columns must have distinct names, got {twice} twice")


def refuse_many_groups(path: Path, metadata: Any) -> None:
    """Raise OutputError where row groups are small and many: each column of each of them takes its time."""
    most = FEW_GROUPS + metadata.num_rows // ROWS_PER_GROUP
    if metadata.num_row_groups > most:
        rule = f"must have at most {most:,} row groups"
        raise OutputError(f"{path}: {rule}, got {metadata.num_row_groups:,}; write larger ones")


class _Foreign:
    """An open file with rows, names and types that are checked."""

    def __init__(self, path: Path, file: BinaryIO, kind_of: Callable[[str], Meaning | None], most_rows: int) -> None:
        content = pq.ParquetFile(file)
        self._path = path
        self._metadata = content.metadata
        self._schema = content.schema_arrow
        if self._metadata.num_rows > most_rows:
            raise OutputError(f"{path}: must have at most {most_rows:,} rows, got {self._metadata.num_rows:,}; cut it")
        refuse_many_groups(path, self._metadata)
        self._names: list[str] = self._schema.names
        refuse_same_names(path, self._names)
        types = dict(zip(self._names, self._schema.types, strict=True))
        self._kinds = {name: kind for name in self._names if (kind := kind_of(name)) is not None}
        self._kinds = {name: kind for name, kind in self._kinds.items() if kind != "label" or _is_text(types[name])}
        for name, kind in self._kinds.items():
            if not _is_of(kind, types[name]):
                raise self._refused(name, kind, str(types[name]))
        words = [name for name in self._kinds if _is_text(types[name])]
        self._content = pq.ParquetFile(file, metadata=self._metadata, read_dictionary=words)

    def columns(self) -> tuple[Columns, list[str]]:
        """Return the columns, and the names of all."""
        pieces: dict[str, list[Any]] = {name: [] for name in self._kinds}
        numbers = {name: np.empty(self._metadata.num_rows) for name, kind in self._kinds.items() if kind == "number"}
        n_rows = 0
        for batch in self._batches() if self._kinds else ():
            end = n_rows + batch.num_rows
            for name, kind in self._kinds.items():
                piece = self._piece(name, kind, batch.column(name))
                if kind == "number":  # in place, as arrow keeps the memory of pieces
                    numbers[name][n_rows:end] = piece
                else:
                    pieces[name].append(piece)
            n_rows = end
        if self._kinds and n_rows != self._metadata.num_rows:
            raise ValueError(f"it has {n_rows:,} rows where {self._metadata.num_rows:,} are declared")
        columns = {name: numbers[name] if name in numbers else joined(pieces.pop(name)) for name in self._kinds}
        return columns, self._names

    def _batches(self) -> Iterator[Any]:
        """Yield the rows, at least one batch."""
        for group in range(self._metadata.num_row_groups):
            rows = self._batch_rows(self._metadata.row_group(group))
            yield from self._content.iter_batches(rows, [group], list(self._kinds), use_threads=False)
        if not self._metadata.num_rows:
            yield pa.RecordBatch.from_pylist([], pa.schema([self._schema.field(name) for name in self._kinds]))

    def _batch_rows(self, group: Any) -> int:
        """Return how many rows of a group to decode at once. Raises OutputError for a group that holds too much."""
        n_rows, most = max(1, int(group.num_rows)), 1
        for chunk in map(group.column, range(group.num_columns)):
            name = next((name for name in self._kinds if f"{chunk.path_in_schema}.".startswith(f"{name}.")), None)
            if name is None:
                continue
            n_bytes, n_values = int(chunk.total_uncompressed_size), int(chunk.num_values)
            per_row = BYTES_PER_NUMBER if self._kinds[name] == "number" else BYTES_PER_ROW
            if n_bytes > GROUP_BYTES + per_row * n_rows or n_values > GROUP_VALUES + VALUES_PER_ROW * n_rows:
                got = f"{n_values:,} values of {n_bytes:,} bytes in a group of {group.num_rows:,} rows"
                remedy = "write groups of fewer rows, and shorter cells"
                raise OutputError(f"{self._path}: column {name} must be in small row groups, got {got}; {remedy}")
            most = max(most, n_bytes, 8 * n_values)
        return min(BATCH_ROWS, max(1, BATCH_BYTES * n_rows // most))

    def _piece(self, name: str, kind: Meaning, array: Any) -> Any:
        """Return the rows of a batch as numpy."""
        try:
            if kind == "ids":
                return _lists(array)
            if kind == "value":
                return _values(array)
            if kind == "text" or _is_text(array.type):
                words, codes = _words(array, MOST_TEXT_CHARACTERS, is_cut=kind == "label")
                return np.array(["" if word is None else word for word in words], np.str_)[codes]
            if pa.types.is_timestamp(array.type):
                return array.cast(pa.timestamp("ns")).to_numpy(zero_copy_only=False)
            return _plain(array).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        except (pa.ArrowInvalid, _Unfit) as error:
            raise self._refused(name, kind, str(error)) from None

    def _refused(self, name: str, kind: Meaning, value: str) -> OutputError:
        rule, remedy = RULES[kind]
        return OutputError(f"{self._path}: column {name} {rule}, got {value[:MOST_TEXT_CHARACTERS]}; {remedy}")


class _Unfit(Exception):
    """A value that the type of its column allows, and its kind does not."""


def _is_of(kind: Meaning, type: Any) -> bool:
    """Return whether a column of this type is read as this kind."""
    if pa.types.is_null(type):
        return True
    if pa.types.is_dictionary(type):
        return kind != "ids" and _is_of(kind, type.value_type)
    if kind == "ids":
        return _is_list(type) and (pa.types.is_integer(type.value_type) or pa.types.is_null(type.value_type))
    if _is_list(type):
        inner = type.value_type.value_type if pa.types.is_dictionary(type.value_type) else type.value_type
        # Decimals of a list would stay Python's, which no scenario holds.
        return kind == "value" and not _is_list(inner) and not pa.types.is_decimal(inner) and _is_of("value", inner)
    also = {"instant": pa.types.is_timestamp, "value": pa.types.is_boolean}.get(kind, pa.types.is_null)
    is_number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    return bool(is_number or also(type) or (kind != "number" and _is_text(type)))


def _is_list(type: Any) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type))


def _is_text(type: Any) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(type.value_type if pa.types.is_dictionary(type) else type) for is_kind in kinds)


def _plain(array: Any) -> Any:
    """Return the array without a dictionary."""
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _words(array: Any, most_characters: int, is_cut: bool = False) -> tuple[list[str | None], Ints]:
    """Return the different texts of an array, and which of them each row has; whole numbers count as text. A long text
    is cut or refused here, before it is copied to all of its rows."""
    if not _is_text(array.type):
        array = _plain(array)
        array = array if pa.types.is_null(array.type) else array.cast(pa.int64())
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.string()).dictionary_encode()
    indices = array.indices.cast(pa.int64())
    used, codes = np.unique(indices.fill_null(-1).to_numpy(zero_copy_only=False), return_inverse=True)
    words = array.dictionary.take(pa.array(used, pa.int64(), mask=used < 0)).cast(pa.large_string())
    words = pc.utf8_slice_codeunits(words, 0, most_characters) if is_cut else words
    longest = pc.max(pc.utf8_length(words)).as_py() or 0
    if longest > most_characters:
        raise _Unfit(f"{longest:,} characters in a cell, over the limit of {most_characters:,}")
    return words.to_pylist(), codes


def _lists(array: Any) -> Lists:
    array = pa.nulls(len(array), pa.list_(pa.int64())) if pa.types.is_null(array.type) else array
    array = array.cast(pa.large_list(pa.int64()))
    values = array.flatten()
    if values.null_count:
        raise _Unfit("a list with nulls")
    counts = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return Lists(values.to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(counts)]))


def _values(array: Any) -> NDArray[Any]:
    """Return cells as Python's own values, None for null."""
    if _is_text(array.type):
        words, codes = _words(array, MOST_VALUE_CHARACTERS)
        return np.array([*words, None], np.object_)[codes]
    array = _plain(array)
    array = array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array
    cells = np.empty(len(array), np.object_)
    cells[:] = array.to_pylist()
    return cells
