"""`simserve compare` decides which side carries more load, or compares measures only."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simserve.scenario.server_errors import METRICS, REASONS, ServerErrors
from simserve.study import cost_draws
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.cli.test_check import SLO, WORKLOAD


def two(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A scenario, and one whose host is slower; without an SLO, so that only measures are compared."""
    a, b = folder / "a", folder / "b"
    a.mkdir()
    b.mkdir()
    slower = {"name": "slower", "engine": {"name": "vllm", "exposed_step_s": 0.004}}
    return write_scenario(a, **{"slo": {}} | changes), write_scenario(b, **{"slo": {}} | changes | slower)


def test_it_says_which_side_carries_more_load_and_prints_every_measure(tmp_path: Path) -> None:
    a, b = two(tmp_path, workload=WORKLOAD | {"n_requests": 60}, slo=SLO)
    outcome = invoke("compare", a, b, "--replications", 3)
    assert outcome.exit_code == 0
    assert re.match(r"slower carries \S+% less load \(95% CI \S+%\): \S+ req/s against \S+ at 99% SLO", outcome.out)
    assert "\n\nMeasures (3 pairs of runs, the same seed in each pair): slower is worse at" in outcome.out
    assert "p99 TPOT" in outcome.out


def test_an_error_that_both_sides_share_does_not_widen_their_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between servers that nobody fitted, a prediction may be far off, but for both sides alike."""
    a, b = two(tmp_path, model="qwen3-30b-a3b", measure={"replays": 8})

    def answers() -> tuple[object, object]:
        run = json.loads(invoke("run", a, "--no-report", "--out", tmp_path / "out", "--json").out)
        compared = json.loads(invoke("compare", a, b, "--replications", 3, "--jobs", 1, "--json").out)
        return run["prediction"], compared

    prediction, compared = answers()
    sds = {name: dict.fromkeys(REASONS, 0.5) for name in METRICS}
    monkeypatch.setattr(cost_draws, "server_errors", lambda: ServerErrors((), sds))
    wider_prediction, compared_again = answers()
    assert wider_prediction != prediction
    assert compared_again == compared


def test_without_an_slo_it_compares_measures_and_says_so(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    outcome = invoke("compare", a, b, "--replications", 3)
    assert outcome.out.startswith("Compares measures only: without an SLO on both sides, no load is too much.\n")


def test_json_has_the_interval_of_each_measure(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    result = json.loads(invoke("compare", a, b, "--replications", 3, "--json").out)
    tpot = next(each for each in result["measures"] if each["key"] == "tpot_s.mean")
    assert 0 < tpot["low"] <= tpot["difference"] <= tpot["high"]
    assert tpot["verdict"] == "worse"


def test_folders_of_results_are_compared_without_running_anything(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    for scenario, name in ((a, "run-a"), (b, "run-b")):
        assert invoke("run", scenario, "--out", tmp_path / name, "--no-report", "--quiet").exit_code == 0
    outcome = invoke("compare", tmp_path / "run-a", tmp_path / "run-b")
    assert outcome.exit_code == 0
    assert outcome.out.startswith("Compares measures only: results and benchmarks cannot be run at other loads.\n")


def test_one_replication_is_refused(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    outcome = invoke("compare", a, b, "--replications", 1)
    assert outcome.exit_code == 2
    assert "--replications" in outcome.err


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    outcome = invoke("compare", a, tmp_path / "gone.yaml")
    assert outcome.exit_code == 2
    assert "gone.yaml: there is no such file" in outcome.err


def test_a_measured_benchmark_is_held_against_a_prediction(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    assert invoke("run", a, "--out", tmp_path / "run", "--no-report", "--quiet").exit_code == 0
    measured = json.loads((tmp_path / "run" / "vllm_bench.json").read_text())
    (tmp_path / "measured.json").write_text(json.dumps(measured | {"mean_ttft_ms": 2 * measured["mean_ttft_ms"]}))
    result = json.loads(invoke("compare", tmp_path / "measured.json", a, "--json").out)
    by_key = {each["key"]: each for each in result["measures"]}
    assert by_key["mean_ttft_ms"]["change_frac"] == -0.5
    assert by_key["mean_tpot_ms"]["verdict"] == "same"


def test_a_folder_that_is_half_written_is_refused(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    assert invoke("run", a, "--out", tmp_path / "run", "--no-report", "--quiet").exit_code == 0
    (tmp_path / "run" / "requests.parquet").unlink()
    outcome = invoke("compare", tmp_path / "run", a)
    assert outcome.exit_code == 2
    assert "run/requests.parquet: no such file; name the folder of a finished run" in outcome.err


def test_out_writes_the_answer_and_a_page_and_such_a_folder_is_no_run(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    outcome = invoke("compare", a, b, "--replications", 2, "--out", tmp_path / "out", "--json")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"comparison.json", "report.html"}
    assert (tmp_path / "out" / "comparison.json").read_text() == outcome.out
    refused = invoke("compare", tmp_path / "out", a)
    assert refused.exit_code == 2
    assert "out: must be the folder of a run, got that of `simserve compare`" in refused.err
