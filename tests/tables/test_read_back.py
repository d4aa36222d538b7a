"""Tables that other tools wrote: a lossless type is converted, every other one is refused by its column."""

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simserve import load_results
from simserve.errors import OutputError
from simserve.tables.columns import Categorical
from simserve.tables.fields import Field
from simserve.tables.read_back import read_table
from simserve.tables.schema import SCHEMA, TABLES
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

FIELD = {
    "float": Field("a", "float"),
    "int32": Field("a", "int32"),
    "int64": Field("a", "int64"),
    "replica": Field("a", "replica"),
    "flag": Field("a", "flag"),
    "category": Field("a", "category"),
    "text": Field("a", "text"),
    "id": Field("a", "id"),
}


def stored(folder: Path, column: Any, **options: Any) -> Path:
    """Write one column as a table of ours."""
    table = pa.table({"a": column}).replace_schema_metadata({"simserve.schema": SCHEMA})
    pq.write_table(table, folder / "x.parquet", **options)
    return folder / "x.parquet"


def cells(column: Any) -> list[Any] | None:
    if isinstance(column, Categorical):
        return [column.categories[code] if code >= 0 else None for code in column.codes.tolist()]
    return None if column is None else column.tolist()


LOSSLESS: list[tuple[str, Any, Any]] = [
    ("float", pa.array([1, 2], pa.uint8()), [1.0, 2.0]),
    ("float", pa.array([0.5, 2.5], pa.float16()), [0.5, 2.5]),
    ("float", pa.array([0.1], pa.float32()), [0.10000000149011612]),
    ("float", pa.array([1.5, 1.5]).dictionary_encode(), [1.5, 1.5]),
    ("int32", pa.array([1.0, 2.0]), [1, 2]),
    ("int32", pa.array([3.0], pa.float16()), [3]),
    ("int64", pa.array([Decimal("7.00")]), [7]),
    ("int64", pa.array([1, None], pa.float64()), [1, None]),
    ("int64", pa.nulls(2), None),
    ("replica", pa.array([1, None], pa.int64()), [1, -1]),
    ("replica", pa.nulls(2), [-1, -1]),
    ("flag", pa.array([True, None]), [True, None]),
    ("category", pa.array(["x", None, "x"]), ["x", None, "x"]),
    ("category", pa.array(["x", "y"], pa.large_string()), ["x", "y"]),
    ("category", pa.chunked_array([["x", "y"], ["y", "z"]]).dictionary_encode(), ["x", "y", "y", "z"]),
    ("category", pa.nulls(2), [None, None]),
    ("text", pa.array(["x", None, "y"]).dictionary_encode(), ["x", "", "y"]),
    ("text", pa.nulls(2), None),
    ("id", pa.array([1, 2], pa.int8()), [1, 2]),
    ("id", pa.array(["x", "y"], pa.large_string()), ["x", "y"]),
]


@pytest.mark.parametrize(("kind", "column", "expected"), LOSSLESS)
def test_a_lossless_type_is_converted(tmp_path: Path, kind: str, column: Any, expected: Any) -> None:
    for options in ({}, {"row_group_size": 1}):
        columns, _ = read_table(stored(tmp_path, column, **options), (FIELD[kind],))
        assert cells(columns["a"]) == expected


LOSSY: list[tuple[str, Any, str]] = [
    ("float", pa.array(["1.5"]), "must be numbers, got string"),
    ("float", pa.array([Decimal("0.1")]), r"must be numbers, got decimal128\(1, 1\)"),
    ("float", pa.array([True]), "must be numbers, got bool"),
    ("float", pa.array([[1.0], [2.0]]), "must be numbers, got list<element: double>"),
    ("float", pa.array([[[1.0]]]), "must be numbers, got list<element: list<element: double>>"),
    ("float", pa.array([{"x": 1.0}]), "must be numbers, got struct<x: double>"),
    ("float", pa.array([0], pa.timestamp("us", "UTC")), r"must be numbers, got timestamp\[us, tz=UTC\]"),
    ("float", pa.array([0], pa.duration("us")), r"must be numbers, got duration\[us\]"),
    ("float", pa.array([2**53 + 1]), "must be double, got int64 that is not"),
    ("int32", pa.array([1.5]), "must be int32, got double that is not .*1.5"),
    ("int32", pa.array([0.5], pa.float16()), "must be int32, got halffloat that is not .*0.5"),
    ("int32", pa.array([2**31]), "must be int32, got int64 that is not"),
    ("int64", pa.array([2**63], pa.uint64()), "must be int64, got uint64 that is not"),
    ("int64", pa.array([-(2**63)]), r"must be at most 1e\+18, got -9.22337e\+18"),
    ("int64", pa.array([Decimal("0.5")]), "must be int64, got decimal128"),
    ("flag", pa.array([1]), "must be true or false, got int64"),
    ("flag", pa.array(["true"]), "must be true or false, got string"),
    ("category", pa.array([1]), "must be text, got int64"),
    ("category", pa.array([b"x"]), "must be text, got binary"),
    ("category", pa.array([["x"], []]), "must be text, got list<element: string>"),
    ("text", pa.array([1]).dictionary_encode(), "must be text, got int64"),
    ("id", pa.array([[1]], pa.list_(pa.int64(), 1)), r"must be whole numbers or text, got fixed_size_list"),
    ("float", pa.array([float("inf")]), r"must be at most 1e\+18, got inf"),
]


@pytest.mark.parametrize(("kind", "column", "rule"), LOSSY)
def test_every_other_type_is_refused_by_its_column(tmp_path: Path, kind: str, column: Any, rule: str) -> None:
    with pytest.raises(OutputError, match=rf"x.parquet: a: {rule}.*; run the command again$"):
        read_table(stored(tmp_path, column), (FIELD[kind],))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read_back")
    assert invoke("run", write_scenario(folder), "--out", folder / "out", "--no-report").exit_code == 0
    return folder / "out"


def with_column(run: Path, place: Path, table: str, name: str, column: Any) -> Path:
    """Copy a run, with another column in place of one of its own."""
    shutil.copytree(run, place)
    file = place / f"{table}.parquet"
    content = pq.read_table(file)
    at = content.column_names.index(name)
    pq.write_table(content.set_column(at, name, column), file)
    return place


def test_a_status_of_plain_strings_is_read(run: Path, tmp_path: Path) -> None:
    """Every other tool writes it so."""
    own = pq.read_table(run / "requests.parquet")["status"]
    plain = with_column(run, tmp_path / "plain", "requests", "status", own.cast(pa.string()))
    for options in ((), ("--timeline", tmp_path / "t.json")):
        outcome = invoke("report", plain, *options)
        assert outcome.exit_code == 0, outcome.err
    assert invoke("compare", plain, run).exit_code == 0
    assert load_results(plain).requests["status"].tolist() == load_results(run).requests["status"].tolist()


@pytest.mark.parametrize(
    ("table", "name"),
    [("requests", "arrival_s"), ("steps", "start_s"), ("spans", "join_s"), ("timeseries", "mfu"), ("members", "gpus")],
)
def test_text_in_a_column_of_numbers_is_refused_by_every_reader(
    run: Path, tmp_path: Path, table: str, name: str
) -> None:
    n_rows = pq.read_metadata(run / f"{table}.parquet").num_rows
    wrong = with_column(run, tmp_path / "wrong", table, name, pa.array(["x"] * n_rows))
    what = "whole numbers" if name == "gpus" else "numbers"
    message = f"{wrong / table}.parquet: {name}: must be {what}, got string; run the command again\n"
    for command in (("report", wrong), ("compare", run, wrong)):
        outcome = invoke(*command)
        assert (outcome.exit_code, outcome.err) == (2, f"simserve: error: {message}")
    if table == "timeseries":
        assert invoke("export", wrong, "--csv", tmp_path / "csv").err == f"simserve: error: {message}"


def test_spans_of_other_steps_are_refused(run: Path, tmp_path: Path) -> None:
    later = [step + 1000 for step in pq.read_table(run / "spans.parquet")["last_step"].to_pylist()]
    wrong = with_column(run, tmp_path / "wrong", "spans", "last_step", pa.array(later))
    outcome = invoke("report", wrong, "--timeline", tmp_path / "t.json")
    assert outcome.exit_code == 2
    law = "every span lies within the decode steps of its replica"
    rule = f"steps and spans must be those of one run, got others ({law}); run the command again"
    assert outcome.err == f"simserve: error: {wrong}: {rule}\n"
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("table", list(TABLES))
def test_columns_in_another_order_and_beside_others_are_read(run: Path, tmp_path: Path, table: str) -> None:
    file = tmp_path / f"{table}.parquet"
    content = pq.read_table(run / file.name)
    others = content.append_column("other", pa.array([[[1]]] * len(content)))
    pq.write_table(others.select(others.column_names[::-1]), file)
    expected, back = (read_table(folder / file.name, TABLES[table])[0] for folder in (run, tmp_path))
    for name, column in expected.items():
        np.testing.assert_array_equal(cells(back[name]), cells(column))


@pytest.mark.parametrize("column", [pa.array([1.0, None]), pa.array([1.0, float("nan")]), pa.nulls(2)])
def test_a_value_that_may_not_be_missing_is_demanded(tmp_path: Path, column: Any) -> None:
    row = 1 if pa.types.is_null(column.type) else 2
    with pytest.raises(OutputError, match=rf"a: must have a value in every row, got none in row {row}; run"):
        read_table(stored(tmp_path, column), (Field("a", "float", is_optional=False),))


def test_a_text_in_a_dictionary_is_unpacked_once(tmp_path: Path) -> None:
    column = read_table(stored(tmp_path, pa.array(["x" * 9_999] * 3_000)), (FIELD["text"],))[0]["a"]
    assert len({id(text) for text in column}) == 1


def test_what_unpacks_to_more_than_it_may_is_refused_before_it_is_read(tmp_path: Path) -> None:
    one_long = stored(tmp_path, pa.DictionaryArray.from_arrays(pa.array([0] * 3_000), pa.array(["x" * 1_000_000])))
    assert one_long.stat().st_size < 60_000
    with pytest.raises(OutputError, match="a: must be text of at most 10,000 bytes, got 1,000,000; run"):
        read_table(one_long, (FIELD["text"],))
    plain = stored(tmp_path, pa.array(["x" * 9_000] * 5_000), use_dictionary=False, compression="zstd")
    with pytest.raises(OutputError, match=r"a: must unpack to at most 36,154,432 bytes, got 45,\d\d\d,\d\d\d; run"):
        read_table(plain, (FIELD["text"],))
    many = stored(tmp_path, pa.nulls(2_000_000))
    with pytest.raises(OutputError, match=r"x.parquet: must have at most 1,\d\d\d,\d\d\d rows, got 2,000,000; run"):
        read_table(many, (FIELD["float"],))
    groups = stored(tmp_path, pa.nulls(1_100), row_group_size=1)
    with pytest.raises(
        OutputError, match=r"x.parquet: must have at most 1,001 row groups, got 1,100; write larger ones"
    ):
        read_table(groups, (FIELD["float"],))
