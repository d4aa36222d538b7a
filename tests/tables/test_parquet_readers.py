"""pandas, pyarrow, DuckDB and Polars read the same values from a run's files, nulls included."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars
import pyarrow.parquet as pq
import pytest

from simserve import load_results
from simserve.tables.columns import Categorical
from simserve.tables.schema import SCHEMA, TABLES
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

Table = dict[str, list[Any]]
"""Values by column, None for null."""


def by_pandas(file: Path) -> Table:
    table = pd.read_parquet(file)
    return {name: [None if pd.isna(value) else value for value in table[name].tolist()] for name in table.columns}


def by_pandas_with_arrow(file: Path) -> Table:
    table = pd.read_parquet(file, dtype_backend="pyarrow")
    return {name: [None if value is pd.NA else value for value in table[name].tolist()] for name in table.columns}


def by_pyarrow(file: Path) -> Table:
    return dict(pq.read_table(file).to_pydict())


def by_duckdb(file: Path) -> Table:
    result = duckdb.read_parquet(str(file))
    rows = result.fetchall()
    return {name: [row[place] for row in rows] for place, name in enumerate(result.columns)}


def by_polars(file: Path) -> Table:
    return {column.name: column.to_list() for column in polars.read_parquet(file)}


READERS = (by_pandas, by_pandas_with_arrow, by_pyarrow, by_duckdb, by_polars)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with refused prompts, one-token outputs, timeouts and retries, classes, and a full batch."""
    folder = tmp_path_factory.mktemp("readers")
    pool = {"name": "serve", "role": "both", "replicas": 2, "max_model_len": 600, "parallel": {"tensor": 1}}
    scheduler = {"kind": "chunked", "max_num_batched_tokens": 512, "max_num_seqs": 2}
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": 60},
        "lengths": {"kind": "uniform", "prompt_tokens": [64, 700], "output_tokens": [1, 12]},
        "classes": {"=chat": {"share": 0.5}, "agents": {"share": 0.5}},
        "timeout": {"e2e_s": 0.12},
        "retries": {"max_attempts": 2},
        "n_requests": 120,
    }
    cluster = {"router": "round_robin", "pools": [pool | {"scheduler": scheduler}]}
    scenario = write_scenario(folder, cluster=cluster, workload=workload)
    outcome = invoke("run", scenario, "--out", folder / "run", "--no-report")
    assert outcome.exit_code == 0, outcome.err
    return folder / "run"


def expected(run: Path, name: str) -> Table:
    """Return the values of a run's columns in memory, by the rules of `tables/schema.py`."""
    columns = load_results(run).columns[name]
    n_rows = next(len(column) for column in columns.values() if column is not None)
    result: Table = {}
    for field in TABLES[name]:
        column = columns[field.name]
        if column is None:
            result[field.name] = [None] * n_rows
        elif isinstance(column, Categorical):
            result[field.name] = [column.categories[code] if code >= 0 else None for code in column.codes.tolist()]
        elif field.kind == "replica":
            result[field.name] = [None if value < 0 else value for value in column.tolist()]
        elif field.kind == "float":
            result[field.name] = [None if math.isnan(value) else value for value in column.tolist()]
        else:
            result[field.name] = column.tolist()
    return result


@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_every_reader_finds_the_values_of_the_run(run: Path, name: str, read: Callable[[Path], Table]) -> None:
    result = read(run / f"{name}.parquet")
    assert list(result) == [field.name for field in TABLES[name]]
    assert result == expected(run, name)


def test_the_run_that_is_read_has_what_readers_disagree_about(run: Path) -> None:
    """Floats, integers, strings and flags, with some nulls, and columns of only nulls."""
    requests, steps = expected(run, "requests"), expected(run, "steps")
    for column in ("ttft_s", "tpot_s", "gave_up_s", "status_reason", "replica"):
        assert None in requests[column] and set(requests[column]) != {None}, column
    for column in ("max_tokens", "session_id", "prefill_replica"):
        assert set(requests[column]) == {None}, column
    assert set(requests["slo_class"]) == {"=chat", "agents"}
    assert set(requests["slo_met"]) == {True, False}
    assert set(steps["blocked_by"]) >= {None, "seats"}


def test_version_and_units_are_where_arrow_readers_look(run: Path) -> None:
    for name, fields in TABLES.items():
        schema = pq.read_schema(run / f"{name}.parquet")
        assert schema.metadata[b"simserve.schema"] == SCHEMA.encode()
        units = {field.name: (schema.field(field.name).metadata or {}).get(b"unit", b"").decode() for field in fields}
        assert units == {field.name: field.unit for field in fields}
