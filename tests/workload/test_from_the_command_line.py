"""User errors in a workload, and files beside a scenario: exit codes and messages."""

import gzip
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from simserve.errors import ScenarioError
from simserve.scenario import load_scenario
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.workload.test_draws import profile

POISSON = {"kind": "poisson", "rate_per_s": 5}
FIXED = {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 2}
HEAD = "arrival_s,prompt_tokens,output_tokens\n"

PLUG_INS = """
import numpy as np
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.lengths.base import Drawn, Lengths

class Short(Arrivals):
    def first(self, n, stream):
        return np.arange(n - 1)

class Unsorted(Arrivals):
    def first(self, n, stream):
        return np.arange(n)[::-1]

class Empty(Lengths):
    def draw(self, n, stream):
        return Drawn(np.full(n, 10), np.zeros(n, int))

class Nameless(Lengths):
    def draw(self, n, stream):
        return Drawn(np.full(n, 10), np.full(n, 10), notes=5)
"""


def scenario(folder: Path, arrivals: Any = POISSON, lengths: Any = FIXED, **end: Any) -> Path:
    workload = {"arrivals": arrivals, "lengths": lengths, **(end or {"n_requests": 20})}
    return write_scenario(folder, engine="ideal", workload=workload)


def refused(folder: Path, file: Path) -> str:
    """Return the message of `run` for a user's error; nothing is written."""
    outcome = invoke("run", file, "--out", folder / "out", "--no-report")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert not (folder / "out").exists()
    return outcome.err


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"arrivals": "theirs:Short"}, "theirs:Short.first: must return 20 instants, got 19"),
        ({"arrivals": "theirs:Unsorted"}, "theirs:Unsorted.first: instants must never decrease, got 18.0 in row 1"),
        ({"lengths": "theirs:Empty"}, "theirs:Empty.draw: output_tokens must be whole and in [1, 10000000], got 0"),
        ({"lengths": "theirs:Nameless"}, "theirs:Nameless.draw: notes must be a tuple of texts, got 5"),
    ],
)
def test_a_plug_in_from_outside_that_draws_nonsense_is_named_with_the_rule(
    part: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(PLUG_INS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "theirs", raising=False)  # of another test's folder
    assert sentence in refused(tmp_path, scenario(tmp_path, **{key: {"kind": kind} for key, kind in part.items()}))


def test_a_damaged_trace_a_bad_profile_and_an_infinite_rate_for_a_time_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress((HEAD + "0,1,1\n" * 500).encode())[:-20])
    trace = write_scenario(tmp_path, engine="ideal", workload={"trace": {"path": "cut.csv.gz"}})
    assert "cut.csv.gz: cannot be read" in refused(tmp_path, trace)
    assert "cut.csv.gz: cannot be read" in invoke("trace", "info", tmp_path / "cut.csv.gz").err

    (tmp_path / "mine.json").write_text(profile(shares=["0", "1"]))
    sentence = refused(tmp_path, scenario(tmp_path, lengths={"kind": "profile", "name": "mine.json"}))
    assert "workload.lengths" in sentence
    assert "shares is no table of finite numbers" in sentence

    at_once = {"kind": "vllm_bench", "rate_per_s": float("inf")}
    assert "give n_requests instead" in refused(tmp_path, scenario(tmp_path, at_once, duration_s=10))


@pytest.mark.parametrize(
    ("name", "text", "lengths"),
    [
        ("mine.json", profile(), {"kind": "profile", "name": "mine.json"}),
        ("mine.csv", HEAD + "0,10,2\n1,30,5\n", {"kind": "empirical", "path": "mine.csv"}),
    ],
)
def test_a_file_beside_the_scenario_is_found_again_by_the_resolved_one_from_any_folder(
    name: str, text: str, lengths: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / name).write_text(text)
    monkeypatch.chdir(home)
    assert invoke("run", scenario(home, lengths=lengths), "--out", tmp_path / "first", "--no-report").exit_code == 0
    monkeypatch.chdir(elsewhere)
    written = tmp_path / "first" / "scenario.yaml"
    assert invoke("run", written, "--out", tmp_path / "again", "--no-report").exit_code == 0
    for table in ("requests", "steps", "spans"):
        first, again = (pq.read_table(tmp_path / run / f"{table}.parquet") for run in ("first", "again"))
        assert again.equals(first), table
    (home / name).unlink()
    with pytest.raises(ScenarioError, match="there is no such file"):
        load_scenario(written)
