"""Subjects that hold tables: traces, logs and points as parquet, result folders, and answers of studies."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.fuzz.arrow_types import retyped, write_drawn
from tests.fuzz.mutants import spoilt, typed, write_json
from tests.fuzz.rules import BrokenRule, checked, checked_reading
from tests.report.answers_by_hand import (
    as_json,
    capacity_answer,
    check_answer,
    comparison_answer,
    plan_answer,
    replicas_answer,
    sweep_answer,
)

TRACE = {
    "arrival_s": [0.0, 1.5, 2.5, 2.5],
    "prompt_tokens": [5, 6, 7, 8],
    "output_tokens": [3, 3, 4, 1],
    "request_id": ["a", "b", "c", "d"],
    "max_tokens": [9, 9, 9, 9],
    "session_id": ["a", "b", "a", "b"],
    "turn": [1, 1, 2, 2],
    "e2e_s": [0.5, 0.5, 0.5, 0.5],
    "priority": [0, 1, 0, 1],
    "slo_class": ["x", "y", "x", "y"],
    "tenant": ["x", "y", "x", "y"],
}
PREFIXES: tuple[dict[str, Any], ...] = (
    {"hash_ids": [[1], [2, 3], [1], []], "hash_block_tokens": [4] * 4},
    {"prefix_id": ["a", "b", "a", "b"], "prefix_tokens": [4, 4, 4, 4], "hash_block_tokens": [4] * 4},
    {},
)
LOG = {
    **{name: TRACE[name] for name in ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens")},
    "ttft_s": [0.1, 0.2, 0.1, 0.1],
    "tpot_ms": [10.0, 11.0, 12.0, 0.0],
    "e2e_s": [0.5, 0.6, 0.5, 0.5],
    "status": ["finished"] * 4,
}
POINTS = {
    "gpu": ["h100-sxm", "h200-sxm"],
    "cluster.pools.0.replicas": [1, 2],
    "workload.arrivals.rate_per_s": [1.5, 2.0],
    "cluster.pools.0.scheduler.enable_chunked_prefill": [True, False],
}

STUDIES: dict[str, Callable[[], Any]] = {
    "capacity.json": capacity_answer,
    "replicas": replicas_answer,
    "check.json": check_answer,
    "comparison.json": comparison_answer,
    "plan.json": plan_answer,
    "sweep.json": sweep_answer,
}
"""Answers by their file; that of replicas is capacity.json, too."""


def parquet(random: Random, folder: Path) -> None:
    """Read a parquet trace with columns of drawn types, or with spoilt bytes."""
    file, n_rows = _drawn(TRACE | random.choice(PREFIXES), folder / "trace.parquet", random)
    checked_reading(n_rows, "trace", "info", file)
    checked("trace", "convert", file, folder / random.choice(("out.csv", "out.parquet")))


def log(random: Random, folder: Path) -> None:
    """Read a parquet log with columns of drawn types, or with spoilt bytes."""
    file, n_rows = _drawn(LOG | random.choice(PREFIXES), folder / "log.parquet", random)
    checked_reading(n_rows, "validate", file, "--scenario", write_scenario(folder))


def points_table(random: Random, folder: Path) -> None:
    """Read points of a sweep with columns of drawn types; the scenario has no file, so none runs."""
    file, n_rows = _drawn(POINTS, folder / "points.parquet", random)
    checked_reading(n_rows, "sweep", folder / "none.yaml", "--points", file, "--out", folder / "sweep")


def result(random: Random, folder: Path) -> None:
    """Read back a folder of a run with one spoilt file."""
    out = _result(folder / "result")
    file = random.choice(sorted(out.iterdir()))
    if file.suffix == ".json" and random.random() < 0.8:
        write_json(file, json.loads(file.read_text()), random)
    else:
        file.write_bytes(spoilt(file.read_bytes(), random))
    _read_back(out, folder, random)


def tables(random: Random, folder: Path) -> None:
    """Read back a folder of a run with a table of drawn types."""
    out = _result(folder / "result")
    file = random.choice(sorted(out.glob("*.parquet")))
    write_drawn(retyped(pq.read_table(file), random), file, random)
    _read_back(out, folder, random)


def facts(random: Random, folder: Path) -> None:
    """Read back a folder of a run with other facts in the metadata of its requests."""
    out = _result(folder / "result")
    file = out / "requests.parquet"
    content = pq.read_table(file)
    text = json.dumps(typed(json.loads(content.schema.metadata[b"simserve.facts"]), random))
    pq.write_table(content.replace_schema_metadata(content.schema.metadata | {b"simserve.facts": text.encode()}), file)
    _read_back(out, folder, random)


def answer(random: Random, folder: Path) -> None:
    """Export a mutant of the answer of a study."""
    name = random.choice(list(STUDIES))
    out = folder / "study"
    out.mkdir()
    write_json(out / (name if name.endswith(".json") else "capacity.json"), as_json(STUDIES[name]()), random)
    if name == "sweep.json":
        (out / "sweep.parquet").touch()
    with _numeric_warnings_off():
        checked_reading(0, "export", out, "--xlsx", folder / "book.xlsx", "--csv", folder / "csv")


def _drawn(columns: dict[str, Any], file: Path, random: Random) -> tuple[Path, int]:
    """Write columns with drawn faults; return the file and its rows."""
    table = retyped(pa.table(columns), random)
    write_drawn(table, file, random)
    if random.random() < 0.2:
        file.write_bytes(spoilt(file.read_bytes(), random))
    return file, len(table)


def _read_back(out: Path, folder: Path, random: Random) -> None:
    """Read the folder by two commands, since all of them take their time."""
    n_rows = 0
    for file in out.glob("*.parquet"):
        try:
            n_rows += pq.read_metadata(file).num_rows
        except (pa.ArrowException, OSError, ValueError):
            continue
    with _numeric_warnings_off():
        checked_reading(n_rows, "report", out, *random.choice(((), ("--timeline", folder / "timeline.json"))))
        if random.random() < 0.5:
            checked_reading(n_rows, "export", out, "--xlsx", folder / "book.xlsx")
        else:
            checked_reading(n_rows, "compare", out, _result(folder / "other"))


def _numeric_warnings_off() -> Any:
    """Return a context in which numbers that are not those of a run may overflow, as at the command line."""
    return warnings.catch_warnings(action="ignore", category=RuntimeWarning)


@cache
def _whole_result() -> Path:
    """Return the folder of a run, made once for all cases."""
    folder = Path(tempfile.mkdtemp())
    if invoke("run", write_scenario(folder), "--out", folder / "out").exit_code:
        raise BrokenRule("the run of the tests must succeed")
    return folder / "out"


def _result(folder: Path) -> Path:
    return Path(shutil.copytree(_whole_result(), folder))
