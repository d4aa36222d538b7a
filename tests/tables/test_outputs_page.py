"""docs/outputs.md documents every column of every table with its type, its unit and when it is null."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simserve import load_results
from simserve.tables.schema import SCHEMA, TABLES
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

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


def section(title: str) -> str:
    """Return the text under a heading."""
    result = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert result, title
    return result[1]


def rows(name: str) -> dict[str, tuple[str, str, str]]:
    """Return type, unit and meaning of each column of a table."""
    result: dict[str, tuple[str, str, str]] = {}
    for line in section(f"{name}.parquet").splitlines():
        if line.startswith("| `"):
            names, kind, unit, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            for column in re.findall(r"`(\w+)`", names):
                assert column not in result, f"{name}: {column} is told twice"
                result[column] = kind, unit, meaning
    return result


@pytest.mark.parametrize("name", list(TABLES))
def test_every_column_is_told_with_its_type_and_unit(name: str) -> None:
    sentence = {column: (kind, unit) for column, (kind, unit, _) in rows(name).items()}
    assert sentence == {field.name: (TYPES[field.kind], field.unit.removesuffix(" 0..1")) for field in TABLES[name]}


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
            assert "null" in rows(name)[column][2], f"{name}: when is {column} null?"
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
