"""The tables of every shipped scenario are, to the last bit, what golden.json says.

golden.json may change only with a change that is meant to move results or adds a column to a table, and the changelog
then says so under "Changed results": `python -m tests.test_golden` writes it again.
"""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve import Results, load_scenario, simulate
from tests.agreement import assert_times_are_split
from tests.effort import is_thorough

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
TABLES = ("requests", "steps", "spans", "timeseries")
SHORT = {"duration_s": 120, "n_requests": 200}
"""By default loads end early; with --thorough the scenarios run whole."""


def made_on() -> list[str]:
    """Return what the last bit of a logarithm depends on: the libraries and the vector unit."""
    features = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    widest = next((name for name in ("AVX512_SKX", "AVX2", "ASIMD") if features.get(name)), "scalar")
    return [np.__version__, pd.__version__, " ".join(platform.libc_ver()), platform.machine(), widest]


def digest(table: pd.DataFrame) -> str:
    """Return the hash of all columns, by name and content."""
    result = hashlib.sha256()
    for name in table.columns:
        column = table[name]
        values = column.astype(str).to_numpy() if column.dtype == object else column.to_numpy()
        result.update(name.encode())
        result.update(pd.util.hash_array(values).tobytes())
    return result.hexdigest()[:16]


def run(name: str, is_short: bool) -> Results:
    """Run a shipped scenario, whole or short."""
    file = str(ROOT / "scenarios" / name)
    scenario = load_scenario(file)
    if not is_short:
        return simulate(scenario)
    workload = scenario.to_dict()["workload"]
    keys = [key for key in SHORT if workload.get(key)]
    overrides = [f"workload.{key}={min(SHORT[key], workload[key])}" for key in keys]
    return simulate(load_scenario(file, overrides=[*overrides, "measure={warmup_s: 0, replays: 0}"]))


def digests(results: Results) -> dict[str, str]:
    """Return a hash of each table."""
    return {table: digest(getattr(results, table)) for table in TABLES}


def test_all_shipped_scenarios_are_here_but_those_of_a_trace_that_is_not_shipped() -> None:
    shipped = {file.name for file in (ROOT / "scenarios").glob("*.yaml") if "azure_llm" not in file.read_text()}
    assert GOLDEN["short"].keys() == GOLDEN["whole"].keys() == shipped


@pytest.mark.law("golden")
@pytest.mark.parametrize("name", GOLDEN["short"])
def test_the_tables_of_a_shipped_scenario_are_the_same_to_the_last_bit_and_split_all_its_times(name: str) -> None:
    results = run(name, is_short=not is_thorough())
    assert_times_are_split(results.columns["requests"], results.facts)
    if made_on() != GOLDEN["made_on"]:
        pytest.skip(f"golden.json was made with {GOLDEN['made_on']}, where logarithms may end in another bit")
    assert digests(results) == GOLDEN["whole" if is_thorough() else "short"][name]


def as_text(content: dict[str, dict[str, dict[str, str]]]) -> str:
    """Return golden.json, one line a scenario."""
    lines = [f'{{\n"made_on": {json.dumps(made_on())}']
    for kind, scenarios in content.items():
        rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in scenarios.items())
        lines.append(f'"{kind}": {{\n{rows}\n}}')
    return ",\n".join(lines) + "\n}\n"


def write() -> None:
    """Write golden.json again."""
    names = sorted(file.name for file in (ROOT / "scenarios").glob("*.yaml") if "azure_llm" not in file.read_text())
    content = {
        kind: {name: digests(run(name, is_short=kind == "short")) for name in names} for kind in ("short", "whole")
    }
    FILE.write_text(as_text(content), encoding="utf-8")


if __name__ == "__main__":
    write()
