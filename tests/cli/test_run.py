"""`simserve run`: files, answers, and inputs that cannot be run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from simserve.errors import OutputError
from simserve.metrics.result_folder import load_results
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.cli.test_start_up import modules_after
from tests.effort import is_thorough

TABLES = {"requests.parquet", "steps.parquet", "spans.parquet", "timeseries.parquet", "members.parquet"}
OTHERS = {"summary.json", "vllm_bench.json", "scenario.yaml"}


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_run_writes_every_file_of_the_contract(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke("run", write_scenario(tmp_path), "--out", out).exit_code == 0
    assert names(out) == TABLES | OTHERS | {"report.html"}


def test_a_run_without_a_report_writes_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke("run", write_scenario(tmp_path), "--out", out, "--no-report").exit_code == 0
    assert names(out) == TABLES | OTHERS


def test_a_run_without_steps_leaves_both_tables_of_steps_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", "--steps", "none").exit_code == 0
    assert not names(out) & {"steps.parquet", "spans.parquet"}


def test_full_steps_are_a_row_a_step(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", "--steps", "full")
    assert set(pq.read_table(out / "steps.parquet")["n_steps"].to_pylist()) == {1}


def test_results_go_to_reports_and_the_scenarios_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("run", write_scenario(tmp_path), "--no-report").exit_code == 0
    assert (tmp_path / "reports" / "tiny" / "summary.json").exists()


def test_the_answer_is_a_verdict_a_table_and_where_the_files_are(tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = invoke("run", write_scenario(tmp_path), "--out", out)
    first, *rest = outcome.out.splitlines()
    assert first.endswith(".")
    assert any(re.match(r"\s+p50\s+p90\s+p95\s+p99\s+p99.9", line) for line in rest)
    assert str(out / "report.html") in rest[-1]


def test_a_short_run_is_replayed_and_says_how_far_off_it_may_be(tmp_path: Path) -> None:
    outcome = invoke("run", write_scenario(tmp_path, measure={}), "--out", tmp_path / "out", "--no-report")
    sentence = next(line for line in outcome.out.splitlines() if line.startswith("Allowing for load and cost-model"))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    result = summary["prediction"]
    assert f"({result['replays']} perturbed replays)" in sentence
    assert f"({result['confidence']:.0%} prediction interval)" in sentence
    assert f" {result['n_met']} of {result['replays']} replays meet the SLO" in sentence
    low, high = result["latencies"]["ttft_s"]["p99"]
    assert low <= summary["ttft_s"]["p99"] <= high


def test_uncalibrated_costs_are_a_warning_on_stderr(tmp_path: Path) -> None:
    outcome = invoke("run", write_scenario(tmp_path, gpu="rtx-4090"), "--out", tmp_path / "out", "--no-report")
    assert re.search(r"^simserve: warning: .*uncalibrated: scaled .* timed on l40s", outcome.err, re.MULTILINE)


def test_a_trace_that_was_sorted_is_a_warning_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "unsorted.csv").write_text("arrival_s,prompt_tokens,output_tokens\n2,8,8\n1,8,8\n3,8,8\n")
    scenario = write_scenario(tmp_path, workload={"trace": {"path": "unsorted.csv"}})
    outcome = invoke("run", scenario, "--out", tmp_path / "out", "--no-report")
    assert outcome.exit_code == 0, outcome.err
    assert re.search(r"^simserve: warning: .*sorted", outcome.err, re.MULTILINE)


def test_json_is_the_summary_and_alone_on_stdout(tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", "--json")
    assert json.loads(outcome.out) == json.loads((out / "summary.json").read_text())


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", "--no-report", "--quiet")
    assert (outcome.exit_code, outcome.out, outcome.err) == (0, "", "")


def test_quiet_with_json_prints_the_summary_alone(tmp_path: Path) -> None:
    arguments = ("--out", tmp_path / "out", "--no-report", "--quiet", "--json")
    outcome = invoke("run", write_scenario(tmp_path), *arguments)
    assert json.loads(outcome.out)
    assert outcome.err == ""


def test_replications_are_a_table_and_a_key_beside_the_files_of_the_first_run(tmp_path: Path) -> None:
    one, out = tmp_path / "one", tmp_path / "out"
    scenario = write_scenario(tmp_path)
    invoke("run", scenario, "--out", one, "--no-report")
    outcome = invoke("run", scenario, "--out", out, "--replications", 4)
    assert outcome.exit_code == 0, outcome.err
    assert names(out) == TABLES | OTHERS | {"report.html", "replications.parquet"}
    for table in TABLES:
        assert pq.read_table(out / table).equals(pq.read_table(one / table)), table
    assert pq.read_table(out / "replications.parquet")["seed"].to_pylist() == [3, 4, 5, 6]
    result = json.loads((out / "summary.json").read_text())["replications"]
    assert (result["n"], result["seeds"]) == (4, [3, 4, 5, 6])
    assert "Figures are means over 4 runs (seeds 3 to 6)" in outcome.out
    page = (out / "report.html").read_text()
    assert (
        "Figures are means over 4 runs (seeds 3 to 6); charts, replicas, classes and tenants are of the first." in page
    )


def test_a_run_with_replications_is_read_back_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", "--precision", 0.5, "--of", "e2e_s.mean")
    results = load_results(out)
    assert results.replications["e2e_s.mean"].mean() == pytest.approx(
        results.summary["replications"]["measures"]["e2e_s.mean"]["mean"]
    )
    assert results.summary["replications"]["precision"]["is_reached"]
    assert invoke("run", tmp_path / "tiny.yaml", "--out", out, "--no-report").exit_code == 0
    assert "replications.parquet" not in names(out)
    with pytest.raises(OutputError, match=r"replications: .* with --replications"):
        _ = load_results(out).replications


@pytest.mark.parametrize(
    "options",
    [
        ("--replications", 1),
        ("--precision", 0),
        ("--of", "ttft_s.p99"),
        ("--precision", 0.1, "--of", "no_such.measure"),
    ],
)
def test_replications_that_make_no_sense_are_2_before_anything_runs(
    tmp_path: Path, options: tuple[object, ...]
) -> None:
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", *options)
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: --")
    assert not (tmp_path / "out").exists()


def test_a_missed_slo_is_a_good_run(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, slo={"ttft_s": 1e-9})
    assert invoke("run", scenario, "--out", tmp_path / "out", "--no-report").exit_code == 0


def test_set_and_seed_change_the_scenario_that_is_saved(tmp_path: Path) -> None:
    out = tmp_path / "out"
    changes = ("--set", "cluster.pools.0.replicas=2", "--set", "workload.n_requests=10", "--seed", 99)
    assert invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", *changes).exit_code == 0
    saved = (out / "scenario.yaml").read_text()
    assert re.search(r"\breplicas: 2\b", saved)
    assert re.search(r"^seed: 99$", saved, re.MULTILINE)
    assert pq.read_table(out / "requests.parquet").num_rows == 10


def test_the_saved_scenario_gives_identical_tables(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    invoke("run", write_scenario(tmp_path), "--out", first, "--no-report")
    assert invoke("run", first / "scenario.yaml", "--out", second, "--no-report").exit_code == 0
    for table in TABLES:
        assert pq.read_table(first / table).equals(pq.read_table(second / table)), table


def test_all_mistakes_are_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, gpu="h100-sxn", seed="lucky", wokload={})
    outcome = invoke("run", scenario, "--out", tmp_path / "out")
    lines = outcome.err.splitlines()
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert len(lines) >= 3
    assert all(line.startswith(f"simserve: error: {scenario}:") for line in lines)
    assert "h100-sxm" in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, "schema: [", "- just\n- a list\n", "", b"\xff\xfe\x00"])
def test_what_is_not_a_scenario_is_2(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "broken.yaml"
    if isinstance(content, str):
        file.write_text(content)
    elif content is not None:
        file.write_bytes(content)
    outcome = invoke("run", file, "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"simserve: error: {file}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("assignment", ["seed", "=3", "no.such.path=1", "cluster.pools.7.replicas=1", "seed=[1"])
def test_a_bad_assignment_is_2_and_named(tmp_path: Path, assignment: str) -> None:
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", "--set", assignment)
    assert outcome.exit_code == 2
    assert "simserve: error: " in outcome.err
    assert assignment.partition("=")[0] in outcome.err


def test_a_folder_that_holds_something_else_is_refused_before_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    outcome = invoke("run", write_scenario(tmp_path), "--out", out)
    assert outcome.exit_code == 2
    assert str(out) in outcome.err
    assert names(out) == {"thesis.tex"}


@pytest.mark.parametrize("where", ["file", "file/inside"])
def test_an_output_that_cannot_be_a_folder_is_2(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("precious")
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / where)
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: ")
    assert (tmp_path / "file").read_text() == "precious"


def test_an_earlier_result_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out)
    assert invoke("run", write_scenario(tmp_path), "--out", out, "--no-report", "--steps", "none").exit_code == 0
    assert names(out) == {"requests.parquet", "timeseries.parquet", "members.parquet"} | OTHERS
    assert names(tmp_path) == {"out", "tiny.yaml"}


POLICY = """
from pydantic.dataclasses import dataclass
from simserve.schedulers.base import STRICT, Scheduler, StepPlan

@dataclass(config=STRICT)
class Mine(Scheduler):
    def plan(self, view):
        BODY
"""


@pytest.mark.parametrize("body", ["raise ValueError('no idea')", "return 42", "return StepPlan(prefill=[(None, 1)])"])
def test_a_policy_that_misbehaves_is_2_and_named_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"mine_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(POLICY.replace("BODY", body))
    pool = "cluster.pools.0.scheduler"
    outcome = invoke("run", write_scenario(tmp_path), "--out", "out", "--set", f"{pool}={module}:Mine")
    assert outcome.exit_code == 2, outcome.err
    assert "Traceback" not in outcome.err
    assert re.search(r"simserve: error: .*Mine.* s\b", outcome.err)
    assert not (tmp_path / "out").exists()


def test_a_policy_that_is_missing_is_2(tmp_path: Path) -> None:
    assignment = "cluster.pools.0.scheduler=no_such_module:Mine"
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", "--set", assignment)
    assert outcome.exit_code == 2
    assert "no_such_module" in outcome.err


def test_a_full_disk_is_2_and_leaves_the_earlier_result_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # writes past it fail, as on a full disk\n"
        "from simserve.cli.main import main; sys.exit(main())"
    )
    options = ["--set", "workload.n_requests=2000", "--no-report", "--out", str(out)]
    command = [sys.executable, "-c", program, "run", str(tmp_path / "tiny.yaml"), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"simserve: error: {out}: ")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert names(tmp_path) == {"out", "tiny.yaml"}


def test_a_disk_that_fills_during_the_run_is_2_and_says_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    program = (
        "import resource, sys\n"
        "from simserve.engine import recorder; from simserve.tables import scratch\n"
        "recorder.SPILL_BYTES = scratch.LARGE_BYTES = 8_000  # as in a run of millions of requests\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))  # writes past it fail, as on a full disk\n"
        "from simserve.cli.main import main; sys.exit(main())"
    )
    options = ["--set", "workload.n_requests=2000", "--set", "measure.replays=0", "--no-report", "--out", str(out)]
    command = [sys.executable, "-c", program, "run", str(tmp_path / "tiny.yaml"), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"simserve: error: {out}: must have room for the rows of a long run, got ")
    assert "0.00 GB of temporary rows were written, and are removed; no result was written" in run.stderr
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert names(tmp_path) == {"out", "tiny.yaml"}


@pytest.mark.parametrize("delay_s", [0.05, 0.2, 0.5, 1.0, 1.8] if is_thorough() else [0.2, 1.0])
def test_ctrl_c_at_any_moment_is_130_and_leaves_the_earlier_result_whole(tmp_path: Path, delay_s: float) -> None:
    out = tmp_path / "out"
    invoke("run", write_scenario(tmp_path), "--out", out, "--no-report")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    run = _start_long_run(tmp_path / "tiny.yaml", out)
    time.sleep(delay_s)
    run.send_signal(signal.SIGINT)
    printed, sentence = run.communicate(timeout=60)
    assert (run.returncode, printed, sentence) == (130, "", "simserve: interrupted\n")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert names(tmp_path) == {"out", "tiny.yaml"}


def _start_long_run(scenario: Path, out: Path) -> "subprocess.Popen[str]":
    """A run of a million requests in a process of its own, returned when it is about to start."""
    program = "import sys; from simserve.cli.main import main; print('up', flush=True); sys.exit(main())"
    options = ["--set", "workload.n_requests=1000000", "--out", str(out)]
    command = [sys.executable, "-c", program, "run", str(scenario), *options]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    return run


def test_a_run_without_a_report_loads_neither_pandas_nor_plotly_nor_scipy(tmp_path: Path) -> None:
    command = ["run", str(write_scenario(tmp_path)), "--out", str(tmp_path / "out"), "--no-report", "--quiet"]
    loaded = modules_after(f"from simserve.cli.main import execute\nassert execute({command!r}) == 0")
    assert not loaded & {"pandas", "plotly", "rich", "scipy"}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_2(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    outcome = invoke("run", write_scenario(tmp_path), "--out", locked / "out")
    assert outcome.exit_code == 2
    assert str(locked) in outcome.err


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--budget-runs", "7", "--budget-runs: must be from 8 to 1024, got 7; 32 are the default"),
        ("--budget-runs", "1025", "--budget-runs: must be from 8 to 1024, got 1025; 32 are the default"),
        ("--confidence", "0.75", "--confidence: must be above 0.75 and below 1, got 0.75; 0.95 is the default"),
        ("--confidence", "1", "--confidence: must be above 0.75 and below 1, got 1.0; 0.95 is the default"),
    ],
)
def test_a_decision_that_cannot_be_made_so_is_refused_before_the_run(
    tmp_path: Path, option: str, value: str, text: str
) -> None:
    outcome = invoke("run", write_scenario(tmp_path), "--out", tmp_path / "out", option, value)
    assert (outcome.exit_code, text in outcome.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_load_that_a_model_never_has_room_for_runs_and_says_so(tmp_path: Path) -> None:
    pools = {"pools": [{"max_model_len": 16}]}
    result = invoke("run", write_scenario(tmp_path, cluster=pools, measure=...), "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert result.out.startswith("Nothing finished: none of ")
    assert "perturbed replays" not in result.out
