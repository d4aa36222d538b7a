"""Cells become columns of their fields' kinds, and None is null in the file."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from simserve.tables.columns import typed_columns
from simserve.tables.fields import Field, Kind
from simserve.tables.parquet import write_table

FIELDS = (
    Field("text", "text"),
    Field("word", "category"),
    Field("share", "float"),
    Field("n", "int64"),
    Field("replica", "replica"),
    Field("claim", "flag"),
)
FULL = {"text": "a", "word": "b", "share": 0.5, "n": 3, "replica": 0, "claim": False}


@pytest.mark.parametrize("gap", [{"text": "a"}, {"text": "a"} | dict.fromkeys(list(FULL)[1:])])
def test_what_a_row_lacks_or_has_as_none_is_null(tmp_path: Path, gap: dict[str, object]) -> None:
    write_table(tmp_path / "t.parquet", FIELDS, typed_columns(FIELDS, [FULL, gap, FULL]))
    nothing = dict.fromkeys(FULL) | {"text": "a"}
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == [FULL, nothing, FULL]


@pytest.mark.parametrize("kind", ["text", "category", "float", "int64", "replica", "flag"])
def test_a_column_without_anything_is_all_null(tmp_path: Path, kind: Kind) -> None:
    fields = (Field("n", "int64"), Field("x", kind))
    write_table(tmp_path / "t.parquet", fields, typed_columns(fields, [{"n": 1}, {"n": 2}]))
    assert pq.read_table(tmp_path / "t.parquet").column("x").to_pylist() == [None, None]
