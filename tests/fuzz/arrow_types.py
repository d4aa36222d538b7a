"""Arrow types: tables with columns of types drawn from Arrow's own type system, as other tools may write them."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

UNITS = ("s", "ms", "us", "ns")

WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
TEXT = (pa.string(), pa.large_string())
PLAIN = (
    *WHOLE,
    *TEXT,
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.decimal128(5, 2), pa.decimal128(38, 0), pa.decimal256(60, 10)),
    *(pa.binary(), pa.large_binary(), pa.binary(2), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC", "Europe/Berlin")),
    *map(pa.duration, UNITS),
)

NESTINGS: tuple[Callable[[pa.DataType], pa.DataType], ...] = (
    pa.list_,
    pa.large_list,
    lambda inner: pa.list_(inner, 2),
    lambda inner: pa.struct({"x": inner, "arrival_s": pa.int64()}),
    lambda inner: pa.map_(pa.string(), inner),
)

FLOATS = (0.0, 0.5, 1.0, -1.0, 3.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "0", "1.5", "nan", "é\u2028", "=1+1", "2024-01-01", "finished", "x" * 300)
MOMENT = datetime(2024, 2, 29, 23, 59, 59)

LONG_TEXT = "x" * 1_000_000
MANY_ZEROS = 1_000_000

MOST_GROUPS = 2000

VERSIONS: tuple[Any, ...] = ("1.0", "2.6")
"""Versions of parquet, whose types differ."""

FEW_ROWS = 100
"""Rows up to which a text may be written in each of them."""


def drawn_type(random: Random, levels: int = 2) -> pa.DataType:
    """Draw a type: plain ones, dictionaries of them, and these inside each other."""
    if levels and random.random() < 0.35:
        return random.choice(NESTINGS)(drawn_type(random, levels - 1))
    if random.random() < 0.15:
        return pa.dictionary(random.choice(WHOLE), random.choice((*TEXT, pa.int64(), pa.float64(), pa.binary())))
    return random.choice(PLAIN)


def drawn_cells(kind: pa.DataType, n: int, random: Random) -> pa.Array:
    """Draw cells of a type, some of them null."""
    nulls = random.choice((0.0, 0.0, 0.2, 1.0))
    if pa.types.is_dictionary(kind):
        return drawn_cells(kind.value_type, n, random).dictionary_encode()
    return pa.array([None if random.random() < nulls else _cell(kind, random) for _ in range(n)], kind)


def _cell(kind: pa.DataType, random: Random) -> Any:
    if pa.types.is_dictionary(kind):
        return _cell(kind.value_type, random)
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return random.choice((0, 1, 2, 3, 7, 100, low, low + 2**kind.bit_width - 1))
    if pa.types.is_decimal(kind):
        return random.choice((Decimal(0), Decimal(3), Decimal(-1), Decimal("1.5") if kind.scale else Decimal(999)))
    if pa.types.is_fixed_size_list(kind):
        return [_cell(kind.value_type, random) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_cell(kind.value_type, random) for _ in range(random.choice((0, 0, 1, 2, 5)))]
    if pa.types.is_struct(kind):
        return {field.name: _cell(field.type, random) for field in kind}
    if pa.types.is_map(kind):
        return [(random.choice("xyz"), _cell(kind.item_type, random)) for _ in range(random.choice((0, 1)))]
    return _plain_cell(kind, random)


def _plain_cell(kind: pa.DataType, random: Random) -> Any:
    if pa.types.is_floating(kind):
        return random.choice(FLOATS)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return random.choice(TEXTS)
    if pa.types.is_boolean(kind):
        return random.random() < 0.5
    if pa.types.is_timestamp(kind):
        return random.choice((MOMENT, MOMENT + timedelta(seconds=1))).replace(tzinfo=UTC if kind.tz else None)
    if pa.types.is_duration(kind):
        return timedelta(seconds=random.choice((-1, 0, 1, 86_400)))
    if pa.types.is_date(kind):
        return date(1970, 1, random.choice((1, 2)))
    if pa.types.is_time(kind):
        return time(random.choice((0, 23)), 59)
    return None if pa.types.is_null(kind) else random.choice((b"ab", b"\xff\x00"))


def retyped(table: pa.Table, random: Random) -> pa.Table:
    """Return a table with up to three faults: columns of other types or values, missing, extra or in another order."""
    if random.random() < 0.15:
        table = random.choice((table.slice(0, 0), *(pa.concat_tables([table] * n) for n in (2, 50, 750))))
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        if len(set(table.column_names)) < table.num_columns:
            break  # columns are found by their names
        table = random.choice((_cast, _cast, _drawn, _drawn, _drawn, _changed, _heavy, _other_columns))(table, random)
    return table


def write_drawn(table: pa.Table, file: Path, random: Random) -> None:
    """Write a table as some tool may: in several row groups, packed or not, with or without Arrow's own schema."""
    options: dict[str, Any] = {
        "row_group_size": max(random.choice((1, 2, 1000, 1_000_000)), len(table) // MOST_GROUPS),
        "compression": random.choice(("none", "snappy", "zstd", "gzip")),
        "use_dictionary": len(table) > FEW_ROWS or random.random() < 0.5,
        "store_schema": bool(table.schema.metadata) or random.random() < 0.5,  # metadata is part of it
        "version": random.choice(VERSIONS),
    }
    try:
        pq.write_table(table, file, **options)
    except pa.ArrowException:  # arrow cannot split some types into row groups
        pq.write_table(table, file)


def _replaced(table: pa.Table, name: str, column: Any) -> pa.Table:
    """Return the table with another column in a place, or unchanged where parquet has no such type."""
    result = table.set_column(table.column_names.index(name), name, column)
    try:
        for version in VERSIONS:
            pq.write_table(result.select([name]), pa.BufferOutputStream(), version=version)
    except pa.ArrowException:
        return table
    return result


def _name(table: pa.Table, random: Random) -> str:
    return str(random.choice(table.column_names))


def _cast(table: pa.Table, random: Random) -> pa.Table:
    """Keep the values, as far as another type holds them."""
    name, kind = _name(table, random), random.choice((*PLAIN, *TEXT, pa.dictionary(pa.int8(), pa.string())))
    try:
        return _replaced(table, name, table[name].cast(kind, safe=random.random() < 0.5))
    except pa.ArrowException:
        return table


def _drawn(table: pa.Table, random: Random) -> pa.Table:
    try:
        return _replaced(table, _name(table, random), drawn_cells(drawn_type(random), len(table), random))
    except pa.ArrowException:  # values that only some versions convert
        return table


def _changed(table: pa.Table, random: Random) -> pa.Table:
    """Keep the type, with other values in some rows."""
    name = _name(table, random)
    kind, cells = table.schema.field(name).type, table[name].to_pylist()
    for row in random.sample(range(len(cells)), min(len(cells), random.choice((1, 1, len(cells))))):
        cells[row] = random.choice((None, _cell(kind, random), _cell(kind, random)))
    column = pa.array(cells, kind.value_type if pa.types.is_dictionary(kind) else kind)
    return _replaced(table, name, column.dictionary_encode() if pa.types.is_dictionary(kind) else column)


def _heavy(table: pa.Table, random: Random) -> pa.Table:
    """Put little that unpacks to much into a column."""
    name, n = _name(table, random), len(table)
    if random.random() < 0.5:
        return _replaced(table, name, pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int32()), [LONG_TEXT]))
    zeros = pa.array([[0] * MANY_ZEROS], pa.list_(random.choice((pa.int64(), pa.int8()))))
    return _replaced(table, name, zeros.take(pa.array([0] + [None] * (n - 1), pa.int64()))) if n else table


def _other_columns(table: pa.Table, random: Random) -> pa.Table:
    name = _name(table, random)
    if random.random() < 0.4 and table.num_columns > 1:
        return table.drop_columns([name])
    if random.random() < 0.5:
        return table.select(random.sample(table.column_names, table.num_columns))
    cells = drawn_cells(random.choice(PLAIN), len(table), random)
    return table.append_column(random.choice((name, "other", "", "a.b", name.upper())), cells)
