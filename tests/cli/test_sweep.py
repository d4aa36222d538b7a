"""`simserve sweep` tries every point, ranks them, and goes on where it was stopped."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from simserve.metrics.answers.sweep_runs import read_run
from simserve.tables.folder import SWEEP, is_older_answer
from simserve.tables.journal import open_journal
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

ROOT = Path(__file__).resolve().parents[2]
REPLICAS = "cluster.pools.0.replicas"
N_POINTS = 12


def test_it_names_the_best_points_and_writes_table_answer_and_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    scenario = write_scenario(tmp_path)
    outcome = invoke("sweep", scenario, "--vary", f"{REPLICAS}=1,2", "--vary", "gpu=h100-sxm,l40s", "--out", out)
    assert outcome.exit_code == 0
    assert outcome.out.startswith("Cheapest that meets the SLO: point ")
    assert "4 points of tiny, 1 seed each, up to " in outcome.out
    assert "p99 TTFT" in outcome.out
    assert outcome.out.splitlines()[-1] == f"{out / 'report.html'} (all files: {out}/)"
    assert outcome.err == ""
    assert {file.name for file in out.iterdir()} == {"sweep.jsonl", "sweep.json", "sweep.parquet", "report.html"}
    points = json.loads((out / "sweep.json").read_text())["points"]
    rows = pq.read_table(out / "sweep.parquet").to_pylist()
    assert [row["point"] for row in rows if row["seed"] == 3] == [0, 1, 2, 3]
    assert len(rows) == sum(point["n_seeds"] for point in points)


def test_json_is_what_the_file_holds_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    requested = ("--vary", f"{REPLICAS}=1,2", "--replications", 2, "--seed", 5, "--set", "slo.ttft_s=1", "--goal", 0.5)
    outcome = invoke("sweep", write_scenario(tmp_path), *requested, "--out", out, "--json")
    result = json.loads(outcome.out)
    assert result == json.loads((out / "sweep.json").read_text())
    assert (result["seeds"], result["goal_frac"], result["slo"]["ttft_s"]) == ([5, 6], 0.5, 1)
    assert outcome.err == ""


def test_points_come_from_a_file_and_failed_ones_are_told(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("cluster.pools.0.parallel.tensor\n1\n3\n")
    outcome = invoke("sweep", write_scenario(tmp_path), "--points", points, "--out", tmp_path / "out")
    assert outcome.exit_code == 0
    assert "Not ranked: 1 point failed." in outcome.out
    assert "must divide the model&#39;s 32 attention heads" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "a sweep needs keys to vary"),
        (("--vary", "cluster.pools.0.replica=1,2"), "did you mean replicas?"),
        (("--vary", f"{REPLICAS}=1,2", "--vary", f"{REPLICAS}=3"), "each key is varied once"),
        (("--vary", "seed=1,2"), "use --replications R"),
        (("--vary", "cluster.pools.0.parallel.tensor=3,5"), "must divide the model's 32 attention heads"),
        (("--points", "gone.csv"), "there is no such file"),
        (("--vary", f"{REPLICAS}=1,2", "--set", "gpu=h101-sxm"), "no such GPU in the catalog"),
        (("--vary", f"{REPLICAS}=1,2", "--replications", "0"), "--replications"),
        (("--vary", f"{REPLICAS}=1,2", "--dask", "nowhere"), "missing port number"),
        (("--vary", f"{REPLICAS}=1,2", "--budget-runs", "4"), "--budget-runs: must be from 8 to 1024, got 4"),
        (("--vary", f"{REPLICAS}=1,2", "--confidence", "0.5"), "--confidence: must be above 0.75"),
    ],
)
def test_bad_input_is_said_before_anything_runs(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = invoke("sweep", write_scenario(tmp_path), *arguments, "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert sentence in outcome.err
    assert outcome.out == ""
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    outcome = invoke("sweep", write_scenario(tmp_path), "--vary", f"{REPLICAS}=1,2", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "got mine.txt; choose another --out" in outcome.err
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"mine.txt"}


def test_a_folder_that_another_sweep_writes_into_is_refused(tmp_path: Path) -> None:
    half = tmp_path / "out" / ".sweep.parquet.123.partial"
    requested = ("sweep", write_scenario(tmp_path), "--vary", f"{REPLICAS}=1,2", "--out", tmp_path / "out")
    with open_journal(tmp_path / "out", SWEEP, read_run):
        half.touch()
        outcome = invoke(*requested)
    assert outcome.exit_code == 2
    assert "another sweep is writing there now" in outcome.err
    assert half.exists()
    assert invoke(*requested).exit_code == 0  # that one was killed: what it left is taken away
    assert not half.exists()


def test_runs_of_another_scenario_are_kept_and_said(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, slo={})
    requested = (scenario, "--vary", f"{REPLICAS}=1,2", "--out", tmp_path / "out", "--json")
    assert invoke("sweep", *requested).exit_code == 0
    outcome = invoke("sweep", *requested, "--set", "kv_dtype=fp8")
    assert "also holds 2 finished runs of other points, another scenario or another version" in outcome.err
    assert len((tmp_path / "out" / "sweep.jsonl").read_text().splitlines()) == 4
    assert len(json.loads(outcome.out)["points"]) == 2


def answer_of(out: Path) -> dict[str, bytes]:
    """The files of an answer, without its journal."""
    return {file.name: file.read_bytes() for file in out.iterdir() if file.name != "sweep.jsonl"}


def test_a_disk_that_is_full_says_so_and_what_is_kept_and_keeps_the_earlier_answer_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    requested = (write_scenario(tmp_path, slo={}), "--out", out, "--vary")
    kept = f"2 of 2 runs are kept in {out}{{}}; rerun the same command to resume"
    full = f"error: {out}: must be writable, got No space left on device; free space there or choose another --out "
    full += "(nothing was written; an earlier result is unchanged)"
    with monkeypatch.context() as disk:
        disk.setattr("simserve.tables.parquet.write_table", refuse)
        outcome = invoke("sweep", *requested, f"{REPLICAS}=1,2")
    assert outcome.exit_code == 2
    assert outcome.err.splitlines() == [f"simserve: {kept.format('')}", f"simserve: {full}"]
    assert {file.name for file in out.iterdir()} == {"sweep.jsonl"}
    assert invoke("sweep", *requested, f"{REPLICAS}=1,2").exit_code == 0
    before = answer_of(out)
    with monkeypatch.context() as disk:
        disk.setattr("simserve.tables.parquet.write_table", refuse)
        outcome = invoke("sweep", *requested, f"{REPLICAS}=3,4")
    assert outcome.err.splitlines()[1] == f"simserve: {kept.format(', beside the answer of an earlier sweep')}"
    assert answer_of(out) == before
    old = [f"simserve: {out}: holds the answer of an earlier sweep; rerun the interrupted one to replace it"]
    assert invoke("export", out, "--csv", tmp_path / "sheets").exit_code == 0
    assert [record.getMessage() for record in caplog.records] == old
    assert invoke("sweep", *requested, f"{REPLICAS}=3,4").exit_code == 0
    assert [point["values"][REPLICAS] for point in json.loads((out / "sweep.json").read_text())["points"]] == [3, 4]
    assert invoke("export", out, "--csv", tmp_path / "sheets").exit_code == 0
    assert [record.getMessage() for record in caplog.records] == old


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
@pytest.mark.parametrize("before", ["nothing", "an answer"])
def test_a_disk_that_is_full_from_the_start_leaves_no_empty_journal(tmp_path: Path, before: str) -> None:
    scenario, out = write_scenario(tmp_path, slo={}), tmp_path / "a" / "out"
    if before == "an answer":
        assert invoke("sweep", scenario, "--vary", "kv_dtype=fp8,bf16", "--out", out).exit_code == 0
    files = {file.name: file.read_bytes() for file in out.iterdir()} if out.exists() else {}
    done = subprocess.run(
        [sys.executable, "-m", "simserve", "sweep", scenario, "--vary", f"{REPLICAS}=1,2", "--jobs", "1", "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"simserve: error: {out / 'sweep.jsonl'}: must be writable, got ")
    assert ({file.name: file.read_bytes() for file in out.iterdir()} if out.exists() else {}) == files
    assert out.parent.exists() == bool(files)


def test_where_every_run_fails_the_reason_is_the_answer(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,-3,5\n")
    scenario = write_scenario(tmp_path, workload={"trace": {"path": str(trace)}})
    outcome = invoke("sweep", scenario, "--vary", f"{REPLICAS}=1,2", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert outcome.err.splitlines()[0] == "simserve: error: all 2 runs failed"
    assert "trace.csv" in outcome.err.splitlines()[1]
    assert not (tmp_path / "out" / "sweep.parquet").exists()


class Stoppable:
    """A sweep over prompt lengths in a process of its own, which can be stopped in the middle."""

    def __init__(self, folder: Path) -> None:
        self.out, self.log = folder / "out", folder / "log"
        lengths = {"kind": "tests.study.counted:Counted", "prompt_tokens": 1, "log": str(self.log), "lasts_s": 0.15}
        workload: dict[str, Any] = {
            "arrivals": {"kind": "poisson", "rate_per_s": 8},
            "lengths": lengths,
            "n_requests": 20,
        }
        scenario = write_scenario(folder, workload=workload, slo={})  # no edge that is given more seeds
        vary = f"workload.lengths.prompt_tokens=1..{N_POINTS}"
        self._command = [
            sys.executable,
            "-m",
            "simserve",
            "sweep",
            str(scenario),
            "--vary",
            vary,
            "--out",
            str(self.out),
            "--allow-plugin",
            "tests.study.counted",
        ]

    def start(self) -> "subprocess.Popen[str]":
        env = os.environ | {"PYTHONPATH": str(ROOT), "LOKY_MAX_CPU_COUNT": str(os.cpu_count())}
        # a session of its own, so that a signal can be sent to all of it as a terminal does
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finished(self) -> list[str]:
        """The whole lines of finished runs in the journal."""
        file = self.out / "sweep.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line for line in lines if line.startswith('{"key"') and line.endswith("\n")]

    def began(self) -> Counter[int]:
        """How often each prompt length was run."""
        return Counter(int(line.split()[0]) for line in self.log.read_text().splitlines())

    def wait_for(self, n: int) -> None:
        """Until so many runs are finished."""
        until_s = time.monotonic() + 120
        while len(self.finished()) < n:
            assert time.monotonic() < until_s, "too slow"
            time.sleep(0.01)


def test_a_kill_in_the_middle_leaves_the_earlier_answer_and_no_finished_run_is_lost_or_run_twice(
    tmp_path: Path,
) -> None:
    sweep = Stoppable(tmp_path)
    (tmp_path / "earlier").mkdir()
    earlier = write_scenario(tmp_path / "earlier", slo={})
    assert invoke("sweep", earlier, "--vary", f"{REPLICAS}=1,2", "--out", sweep.out).exit_code == 0
    before, n_earlier = answer_of(sweep.out), len(sweep.finished())
    with sweep.start() as process:
        sweep.wait_for(n_earlier + 3)
        process.send_signal(signal.SIGKILL)
    kept = sweep.finished()
    n_kept = len(kept) - n_earlier
    assert 3 <= n_kept < N_POINTS
    assert answer_of(sweep.out) == before
    assert is_older_answer(sweep.out, SWEEP)
    time.sleep(1)  # its workers end the runs that they are at
    assert sweep.finished() == kept
    began = sweep.began()
    with sweep.start() as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert f"{N_POINTS} points of tiny, 1 seed each." in out
    lines = sweep.finished()
    assert lines[: len(kept)] == kept
    assert len({json.loads(line)["key"] for line in lines}) == len(lines) == n_earlier + N_POINTS
    again = sweep.began() - began
    assert sorted(again.values()) == [1] * (N_POINTS - n_kept)
    assert not is_older_answer(sweep.out, SWEEP)
    table = pq.read_table(sweep.out / "sweep.parquet").to_pylist()
    assert [row["workload.lengths.prompt_tokens"] for row in table] == list(range(1, N_POINTS + 1))


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path: Path) -> None:
    sweep = Stoppable(tmp_path)
    with sweep.start() as process:
        sweep.wait_for(2)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = len(sweep.finished())
    assert err.splitlines() == [
        f"simserve: {kept} of {N_POINTS} runs are kept in {sweep.out}; rerun the same command to resume",
        "simserve: interrupted",
    ]
    assert {file.name for file in sweep.out.iterdir()} == {"sweep.jsonl"}


def test_a_line_of_the_journal_with_other_types_is_no_run_and_its_run_is_repeated(tmp_path: Path) -> None:
    out = tmp_path / "out"
    requested = ("sweep", write_scenario(tmp_path, slo={}), "--vary", f"{REPLICAS}=1,2", "--out", out)
    assert invoke(*requested).exit_code == 0
    good = (out / "sweep.jsonl").read_text()
    for key, value in (("status", 1), ("goodput.per_s", "x"), ("outcomes", 3), ("n_gpus", [1]), ("load", None)):
        lines = [json.loads(line) for line in good.splitlines()]
        lines[0]["row"][key] = value
        (out / "sweep.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcome = invoke(*requested)
        note = (
            f"simserve: {out} also holds 1 run in the form of another version of simserve; it is not in this answer, "
        )
        assert (outcome.exit_code, outcome.err) == (0, f"{note}and is run again where it is needed\n"), key
        assert len((out / "sweep.jsonl").read_text().splitlines()) == 3


def test_costs_are_drawn_unless_noise_is_to_decide(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, measure={"replays": 3})
    words = ("sweep", scenario, "--vary", "cluster.pools.0.max_model_len=8192,9216", "--json", "--out")
    by_noise = json.loads(invoke(*words, tmp_path / "noise", "--by", "noise").out)["points"]
    drawn = json.loads(invoke(*words, tmp_path / "drawn").out)["points"]
    assert [point["judged"]["n_draws"] for point in (*by_noise, *drawn)] == [0, 0, 3, 3]
    assert [point["judged"]["r"] for point in by_noise] == [point["judged"]["r"] for point in drawn]
    assert drawn[0]["judged"]["r_total"][1] > by_noise[0]["judged"]["r_total"][1]
    n_lines = [len((tmp_path / name / "sweep.jsonl").read_text().splitlines()) for name in ("noise", "drawn")]
    assert n_lines[1] == n_lines[0] + 2 * (3 + 1)
