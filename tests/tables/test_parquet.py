"""Columns to parquet and back."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import OutputError
from simserve.tables import parquet
from simserve.tables.columns import Categorical, Columns, Lists, frame
from simserve.tables.fields import Field
from simserve.tables.foreign import read_columns
from simserve.tables.parquet import write_columns, write_table
from simserve.tables.read_back import read_table
from simserve.tables.schema import MOST
from tests.effort import examples

FIELDS = (
    Field("at_s", "float", "s"),
    Field("n", "int64"),
    Field("small", "int32", "tokens"),
    Field("replica", "replica"),
    Field("is_good", "flag"),
    Field("word", "category"),
    Field("name", "text"),
)


def columns() -> Columns:
    return {
        "at_s": np.array([0.5, np.nan, -0.0]),
        "n": np.array([2**40, 0, -5]),
        "small": np.array([1, 2, 3], np.int32),
        "replica": np.array([-1, 0, 7], np.int32),
        "is_good": np.array([True, False, True]),
        "word": Categorical(np.array([2, 0, -1], np.int32), ("", "unused", "seats")),
        "name": np.array(["ä", "", "long one"]),
    }


def test_null_is_what_never_came(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", FIELDS, columns())
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {
        "at_s": [0.5, None, 0.0],
        "n": [2**40, 0, -5],
        "small": [1, 2, 3],
        "replica": [None, 0, 7],
        "is_good": [True, False, True],
        "word": ["seats", None, None],
        "name": ["ä", None, "long one"],
    }


def test_types_units_and_version_are_in_the_file(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", FIELDS, columns(), {"facts": "{}"})
    schema = pq.read_schema(tmp_path / "x.parquet")
    assert schema.field("replica").type == pa.int32()
    assert schema.field("word").type == pa.dictionary(pa.int32(), pa.string())
    assert schema.field("small").metadata == {b"unit": b"tokens"}
    assert schema.metadata == {b"simserve.schema": b"simserve/1", b"simserve.facts": b"{}"}


def test_columns_come_back_as_they_were(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", FIELDS, columns(), {"facts": "42"})
    back, extra = read_table(tmp_path / "x.parquet", FIELDS)
    assert extra == {"facts": "42"}
    for name, column in columns().items():
        if isinstance(column, np.ndarray):
            np.testing.assert_array_equal(back[name], column)
            assert back[name].dtype.kind == ("O" if name == "name" else column.dtype.kind)  # rows share their texts
    assert [back["word"].categories[code] if code >= 0 else None for code in back["word"].codes] == [
        "seats",
        None,
        None,
    ]


def test_integers_and_text_that_some_rows_lack_come_back_as_they_were(tmp_path: Path) -> None:
    number = np.ma.MaskedArray(np.array([2**59 + 1, 0, 3]), [False, True, False])
    some: Columns = {"n": number, "name": np.array(["a", "", ""])}
    write_table(tmp_path / "x.parquet", FIELDS, columns() | some)
    stored, (back, _) = pq.read_table(tmp_path / "x.parquet"), read_table(tmp_path / "x.parquet", FIELDS)
    assert stored["n"].to_pylist() == back["n"].tolist() == [2**59 + 1, None, 3]
    assert frame(FIELDS, back)["n"].fillna(-1).tolist() == [2**59 + 1, -1, 3]
    assert stored["name"].to_pylist() == frame(FIELDS, back)["name"].tolist() == ["a", None, None]
    assert back["name"].tolist() == ["a", "", ""]


def test_a_column_that_nobody_gave_is_all_null_and_comes_back_as_none(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", FIELDS, columns() | {"n": None, "name": None, "is_good": None})
    back, _ = read_table(tmp_path / "x.parquet", FIELDS)
    assert (back["n"], back["name"], back["is_good"]) == (None, None, None)
    assert pq.read_table(tmp_path / "x.parquet")["n"].null_count == 3


def test_no_rows_are_a_table_too(tmp_path: Path) -> None:
    empty: Columns = {name: column[:0] for name, column in columns().items() if isinstance(column, np.ndarray)}
    empty["word"] = Categorical(np.empty(0, np.int32), ("a",))
    write_table(tmp_path / "x.parquet", FIELDS, empty)
    back, _ = read_table(tmp_path / "x.parquet", FIELDS)
    assert [len(column) for column in back.values()] == [0] * len(FIELDS)


def test_a_view_of_every_second_value_is_written_right(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", FIELDS[:1], {"at_s": np.arange(10.0)[::2]})
    assert pq.read_table(tmp_path / "x.parquet")["at_s"].to_pylist() == [0.0, 2.0, 4.0, 6.0, 8.0]


@settings(max_examples=examples(25))
@given(st.lists(st.one_of(st.floats(-MOST, MOST), st.just(float("nan"))), max_size=70))
def test_every_float_comes_back_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("floats") / "x.parquet"
    write_table(path, FIELDS[:1], {"at_s": np.array(values)})
    np.testing.assert_array_equal(read_table(path, FIELDS[:1])[0]["at_s"], np.array(values))


def test_another_schema_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at_s": [1.0]}), tmp_path / "x.parquet")
    with pytest.raises(OutputError, match=r"x.parquet: must have schema simserve/1, got none"):
        read_table(tmp_path / "x.parquet", FIELDS)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", FIELDS[:1], {"at_s": np.zeros(1)})
    with pytest.raises(OutputError, match="columns n, small, replica, is_good, word, name are missing"):
        read_table(tmp_path / "x.parquet", FIELDS)


def test_columns_beyond_ours_are_left_alone(tmp_path: Path) -> None:
    """A later version may add columns."""
    write_table(tmp_path / "x.parquet", FIELDS, columns())
    assert list(read_table(tmp_path / "x.parquet", FIELDS[:2])[0]) == ["at_s", "n"]


def test_any_numbers_and_text_make_a_file(tmp_path: Path) -> None:
    given_columns = {"arrival_s": np.array([0.0, 1.5]), "n": np.array([1, 2]), "id": np.array(["a", "b"])}
    write_columns(tmp_path / "x.parquet", given_columns)
    back, _ = read_columns(tmp_path / "x.parquet", lambda _: "value", most_rows=2)
    assert {name: column.tolist() for name, column in back.items()} == {
        "arrival_s": [0.0, 1.5],
        "n": [1, 2],
        "id": ["a", "b"],
    }
    (tmp_path / "y.parquet").write_text("no parquet")
    with pytest.raises(OutputError, match=r"y.parquet: cannot be read as parquet"):
        read_columns(tmp_path / "y.parquet", lambda _: "value", most_rows=2)


def test_lists_are_written_in_groups_that_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_IDS", 10)
    lists = Lists(np.arange(40), np.arange(0, 41, 4))  # ten rows of four: two of them, and half a row, are ten ids
    write_columns(tmp_path / "x.parquet", {"hash_ids": lists})
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups == 5
    back = read_columns(tmp_path / "x.parquet", lambda _: "ids", most_rows=10)[0]["hash_ids"]
    assert (back.values.tolist(), back.offsets.tolist()) == (lists.values.tolist(), lists.offsets.tolist())


def test_a_frame_has_na_where_the_file_has_null() -> None:
    result = frame(FIELDS, columns() | {"n": None, "name": None})
    assert result["at_s"].isna().tolist() == [False, True, False]
    assert result["replica"].isna().tolist() == [True, False, False]
    assert result["n"].isna().all()
    assert result["name"].isna().all()
    assert result["word"].tolist()[0] == "seats"
    assert result["word"].isna().tolist() == [False, True, True]
    assert str(result["small"].dtype) == "int32"


def test_a_category_that_nobody_has_is_read_as_nothing(tmp_path: Path) -> None:
    fields = (Field("status_reason", "category"), Field("arrival_s", "float"))
    nobody = Categorical(np.full(2, -1, np.int32), ())
    write_table(tmp_path / "t.parquet", fields, {"status_reason": nobody, "arrival_s": np.arange(2.0)})
    result, _ = read_columns(
        tmp_path / "t.parquet", lambda name: "text" if name == "status_reason" else "number", most_rows=2
    )
    assert result["status_reason"].tolist() == ["", ""]
    assert result["arrival_s"].tolist() == [0.0, 1.0]
