"""The table of what a search ran."""

from pathlib import Path

import pyarrow.parquet as pq

from simserve.study.capacity.capacity_result import ROWS, CapacityResult
from simserve.study.capacity.point import LoadPoint
from simserve.tables.parquet import write_table
from tests.report.answers_by_hand import capacity_answer
from tests.study.served import runs_at


def test_each_load_and_seed_is_a_row_with_units(tmp_path: Path) -> None:
    run = runs_at({"ttft_s": lambda load: 0.25}, n=100)
    points = [LoadPoint.of(load, run(load, range(3, 5))) for load in (1.0, 2.0)]
    path = tmp_path / "capacity.parquet"
    result = CapacityResult(capacity_answer().answer, tuple((None, point) for point in points))
    write_table(path, ROWS, result.rows.columns)
    read = pq.read_table(path)
    assert [field.name for field in ROWS] == read.column_names
    rows = read.to_pylist()
    assert [(row["load"], row["seed"], row["offered_per_s"], row["n_met"]) for row in rows] == [
        (1.0, 3, 10.0, 74),  # odd seeds of the double miss one more
        (1.0, 4, 10.0, 75),
        (2.0, 3, 20.0, 74),
        (2.0, 4, 20.0, 75),
    ]
    assert rows[0]["ttft_met_frac"] == 0.75
    assert rows[0]["itl_met_frac"] is None
    assert rows[0]["split"] is None
    assert read.schema.metadata[b"simserve.schema"] == b"simserve/1"
    assert read.schema.field("ttft_p99_s").metadata == {b"unit": b"s"}
    assert read.schema.field("n_arrived").metadata == {b"unit": b"requests"}
