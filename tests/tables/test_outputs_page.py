"""The reference has every column of every table with its type, its unit and when it is null; a page has the rest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simserve import load_results
from simserve.metrics.answers.autoscale import ScaledFleet
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.resilience import SpareOption
from simserve.metrics.answers.struct import Struct, fields_of
from simserve.metrics.answers.sweep_runs import FinishedRun
from simserve.metrics.answers.tune import TriedPoint
from simserve.metrics.answers.twin import ServerSetting
from simserve.plugins.docstrings import source_fields
from simserve.study.capacity.capacity_result import ROWS
from simserve.tables.fields import Field
from simserve.tables.schema import MORE_TABLES, SCHEMA, TABLES
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.test_outputs_reference import items

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "outputs.md").read_text(encoding="utf-8")
TYPES = {
    "float": "double",
    "int32": "int32",
    "int64": "int64",
    "replica": "int32",
    "flag": "bool",
    "category": "dictionary",
    "text": "string",
    "id": "int64 or string",
}

SAME_UNITS = {"requests/s": ["/s"], "1/s": ["/s", "tokens/s"], "requests/$": ["/USD"], "$/h": ["USD/h"]}
"""Units of columns as docstrings of keys have them."""


def section(title: str) -> str:
    """Return the text under a heading."""
    result = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert result, title
    return result[1]


@pytest.mark.parametrize(("name", "fields"), [*(TABLES | MORE_TABLES).items(), ("capacity", ROWS)])
def test_every_column_is_told_with_its_type_and_unit(name: str, fields: tuple[Field, ...]) -> None:
    sentence = [(column, kind, unit) for column, (kind, unit, _) in items(f"{name}.parquet").items()]
    assert sentence == [(field.name, TYPES[field.kind], field.unit.removesuffix(" 0..1")) for field in fields]


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("plan", PlanOption),
        ("sweep", FinishedRun),
        ("twin", ServerSetting),
        ("tune", TriedPoint),
        ("autoscale", ScaledFleet),
        ("resilience", SpareOption),
    ],
)
def test_every_column_of_a_struct_is_told_in_the_unit_of_its_key(name: str, struct: type[Struct]) -> None:
    rows, aliases = items(f"{name}.parquet"), {each.alias or key: key for key, each in struct.model_fields.items()}
    columns = {column: row for column, row in rows.items() if name != "sweep" or column not in ("point", "KEY")}
    assert [(column, kind, unit) for column, (kind, unit, _) in columns.items()] == [
        (field.name, TYPES[field.kind], field.unit.removesuffix(" 0..1")) for field in fields_of(struct)
    ]
    for column, (_, unit, _) in columns.items():
        written = re.match(r"\[(.*?)\] ", source_fields(struct)[aliases[column]].meaning)
        assert (written[1] if written else "") in SAME_UNITS.get(unit, [unit]), column


def test_the_version_is_told() -> None:
    assert f"`{SCHEMA}`" in PAGE


def test_a_column_that_is_ever_null_says_when(tmp_path: Path) -> None:
    pool = {"name": "serve", "role": "both", "replicas": 1, "max_model_len": 100, "parallel": {"tensor": 1}}
    lengths = {"kind": "uniform", "prompt_tokens": [50, 120], "output_tokens": [1, 4]}
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": 8}, "lengths": lengths, "n_requests": 40}
    scenario = write_scenario(tmp_path, cluster={"router": "round_robin", "pools": [pool]}, workload=workload, slo={})
    assert invoke("run", scenario, "--out", tmp_path / "run", "--no-report").exit_code == 0
    results = load_results(tmp_path / "run")
    n_null = 0
    for name in TABLES:
        table = getattr(results, name)
        for column in table.columns[table.isna().any()]:
            n_null += 1
            assert "null" in items(f"{name}.parquet")[column][2], f"{name}: when is {column} null?"
    assert n_null > 15


def test_the_ways_to_read_them_run_as_written(tmp_path: Path) -> None:
    assert invoke("run", write_scenario(tmp_path), "--out", tmp_path / "run", "--no-report").exit_code == 0
    programs = re.findall(r"^```python\n(.*?)^```", section("Reading the tables elsewhere"), re.MULTILINE | re.DOTALL)
    assert len(programs) == 4
    for program in programs:
        assert len(program.splitlines()) <= 4
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path / "run", capture_output=True, text=True, check=True
        )
        assert done.stdout
