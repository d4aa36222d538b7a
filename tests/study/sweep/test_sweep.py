"""A sweep runs what is not finished, all points with the same seeds, and says what came of each."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from simserve.cli.terminal import write_study
from simserve.errors import (
    InvariantError,
    OutputError,
    Problem,
    ScenarioError,
    SimserveError,
    TraceError,
    UnreadableTrace,
)
from simserve.metrics.answers.sweep_runs import SweepRun, read_run
from simserve.report.sweep.page import tell
from simserve.scenario import load_scenario
from simserve.scenario.template import Template
from simserve.simulation import simulate
from simserve.study.processes import Answers, Lost, Task, Work
from simserve.study.progress import StudyProgress, shown_by
from simserve.study.run_figures import MEASURES
from simserve.study.sweep import run as sweep_run
from simserve.study.sweep.facts import sweep_facts
from simserve.study.sweep.points import grid, parse_axis, resolved
from simserve.study.sweep.question import SweepQuestion
from simserve.study.sweep.run import key_of, run_row, task_of
from simserve.study.sweep.sweep import Sweep, check_any, n_foreign, n_left, n_runs, run_sweep
from simserve.tables.folder import SWEEP
from simserve.tables.journal import open_journal
from tests.cli.scenarios import write_scenario

REPLICAS = "cluster.pools.0.replicas"
TENSOR = "cluster.pools.0.parallel.tensor"


def question(folder: Path, *axes: str, n_seeds: int = 1, **changes: Any) -> SweepQuestion:
    """Without an SLO, whose edges would be given more seeds, unless there is one among the changes."""
    template = Template.of(write_scenario(folder, **({"slo": {}} | changes)))
    return SweepQuestion(resolved(template, grid([parse_axis(text) for text in axes], [], n_seeds)), n_seeds)


class Here:
    """A runner that works in this process, and remembers what it ran."""

    def __init__(self, lose: Sequence[int] = (), stop_after: float = math.inf) -> None:
        self.ran: list[tuple[int, int]] = []
        self._lose = lose
        self._stop_after = stop_after

    def __call__(self, work: Work, tasks: Sequence[Task]) -> Answers:
        return self._reader(work, tasks)

    def _reader(self, work: Work, tasks: Sequence[Task]) -> Answers:
        for place, task in reversed(list(enumerate(tasks))):  # in no order that anybody may count on
            if len(self.ran) >= self._stop_after:
                raise KeyboardInterrupt
            self.ran.append((json.loads(task[0])[0]["cluster"]["pools"][0]["replicas"], task[1]))
            yield place, Lost("gone") if place in self._lose else work(task)


def swept(folder: Path, requested: SweepQuestion, runner: Here) -> Sweep:
    with open_journal(folder / "out", SWEEP, read_run) as journal:
        return run_sweep(requested, journal, runner)


def write(folder: Path, result: Sweep) -> None:
    """Write the folder of a sweep, as its command does."""
    answer = sweep_facts(result)
    write_study(folder, SWEEP, answer, tell(answer))


def test_all_points_have_the_scenarios_seed_and_those_after_it(tmp_path: Path) -> None:
    runner = Here()
    result = swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2", n_seeds=2), runner)
    assert sorted(runner.ran) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert [[row.seed for row in rows] for rows in result.rows] == [[3, 4], [3, 4]]


def test_a_row_has_what_a_run_by_itself_has(tmp_path: Path) -> None:
    requested = question(tmp_path, f"{REPLICAS}=1,2", n_seeds=2, slo={"ttft_s": 0.5})
    run = swept(tmp_path, requested, Here()).rows[1][1]
    row = run.facts()
    scenario = requested.points[1].scenario
    assert scenario is not None
    summary = simulate(scenario.model_copy(update={"seed": 4})).figures
    assert [row[measure.key] for measure in MEASURES] == [measure.of(summary) for measure in MEASURES]
    assert (row["n_gpus"], row["usd_per_hour"], row["kw"], row["saturated"]) == (2, 8.0, 1.4, False)
    assert row["goodput.per_gpu_s"] == row["goodput.per_s"] / 2
    assert row["busy_frac"] == summary.busy_frac


def test_nothing_that_is_finished_is_run_again_and_nothing_is_left_out(tmp_path: Path) -> None:
    requested = question(tmp_path, f"{REPLICAS}=1..3", n_seeds=2)
    first = Here(stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, requested, first)
    second = Here()
    result = swept(tmp_path, requested, second)
    assert len(first.ran) == 4
    assert sorted(first.ran + second.ran) == [(n, seed) for n in (1, 2, 3) for seed in (3, 4)]
    assert _but_for_times(result) == _but_for_times(swept(tmp_path / "afresh", requested, Here()))


def _but_for_times(result: Sweep) -> list[list[SweepRun]]:
    return [[row.model_copy(update={"wall_s": 0.0}) for row in rows] for rows in result.rows]


def test_seeds_are_added_to_an_edge_kept_and_not_run_again(tmp_path: Path) -> None:
    """40 requests without a miss are too few to tell; those of eight seeds are far enough from their limits."""
    requested = question(tmp_path, f"{REPLICAS}=1,2", slo={"ttft_s": 0.03})
    first, second = Here(stop_after=9), Here()
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, requested, first)
    with open_journal(tmp_path / "out", SWEEP, read_run) as journal:
        assert (n_left(requested, journal), n_foreign(requested, journal)) == (0, 0)
        progress: list[str] = []
        with shown_by(StudyProgress(progress.append, lambda: 0.0)):
            result = run_sweep(requested, journal, second)
        assert n_foreign(requested, journal) == 0
    n_seeds = [len(rows) for rows in result.rows]
    assert min(n_seeds) == 8
    assert len({*first.ran, *second.ran}) == len(first.ran) + len(second.ran) == sum(n_seeds)
    assert progress[-1] == f"{len(second.ran)} of {len(second.ran)} runs"
    assert sweep_facts(result).seeds == [3]


def test_draws_of_costs_that_are_finished_are_not_run_again(tmp_path: Path) -> None:
    """Two points of one run: the first, on the edge, has eight and three draws of costs, and the second follows it."""
    requested = question(tmp_path, f"{REPLICAS}=1,2", slo={"ttft_s": 0.5}, measure={"replays": 3})
    first, second = Here(stop_after=5), Here()
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, requested, first)
    result = swept(tmp_path, requested, second)
    afresh = Here()
    assert sweep_facts(swept(tmp_path / "afresh", requested, afresh)) == sweep_facts(result)
    assert Counter(first.ran + second.ran) == Counter(afresh.ran)
    assert [point.judged and point.judged.n_draws for point in sweep_facts(result).points] == [3, 0]
    third = Here()
    with open_journal(tmp_path / "out", SWEEP, read_run) as journal:
        assert len(journal.rows) == len(afresh.ran)
        assert n_foreign(requested, journal) == 0
        run_sweep(requested, journal, third)
    assert third.ran == []


def test_a_draw_of_costs_that_fails_leaves_a_point_on_the_edge_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    requested = question(tmp_path, f"{REPLICAS}=1", slo={"ttft_s": 0.5}, measure={"replays": 3})
    assert sweep_facts(swept(tmp_path, requested, Here())).points[0].decision == "met"
    monkeypatch.setattr(sweep_run.WithDraw, "row", fail)
    (point,) = sweep_facts(swept(tmp_path / "failed", requested, Here())).points
    assert (point.decision, point.word, point.meets_goal) == ("edge", "edge", False)
    assert point.reason is not None and "out of memory" in point.reason


def test_points_are_added_to_a_sweep_and_its_runs_are_kept(tmp_path: Path) -> None:
    swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2"), Here())
    runner = Here()
    swept(tmp_path, question(tmp_path, f"{REPLICAS}=1..3", n_seeds=2), runner)
    assert sorted(runner.ran) == [(1, 4), (2, 4), (3, 3), (3, 4)]


def test_runs_of_another_scenario_are_counted_and_left_alone(tmp_path: Path) -> None:
    swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2"), Here())
    other = question(tmp_path, f"{REPLICAS}=1,2", kv_dtype="fp8")
    with open_journal(tmp_path / "out", SWEEP, read_run) as journal:
        assert (n_runs(other), n_left(other, journal), n_foreign(other, journal)) == (2, 2, 2)
        run_sweep(other, journal, Here())
        assert (n_left(other, journal), n_foreign(other, journal)) == (0, 2)


def test_points_that_come_to_the_same_are_run_once(tmp_path: Path) -> None:
    runner = Here()
    result = swept(tmp_path, question(tmp_path, "name=a,b"), runner)
    assert len(runner.ran) == 1
    assert result.rows[0] == result.rows[1]


def test_progress_is_of_the_runs_that_are_left(tmp_path: Path) -> None:
    swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2"), Here())
    progress: list[str] = []
    with (
        open_journal(tmp_path / "out", SWEEP, read_run) as journal,
        shown_by(StudyProgress(progress.append, lambda: 0.0)),
    ):
        run_sweep(question(tmp_path, f"{REPLICAS}=1..4"), journal, Here())
    assert progress == ["0 of 2 runs", "1 of 2 runs, 0 s left", "2 of 2 runs"]


def test_a_run_that_is_lost_is_a_row_and_tried_again_the_next_time(tmp_path: Path) -> None:
    requested = question(tmp_path, f"{REPLICAS}=1,2")
    result = swept(tmp_path, requested, Here(lose=[1]))
    assert [rows[0].status for rows in result.rows] == ["finished", "failed"]
    assert result.rows[1][0].reason == "gone"
    runner = Here()
    assert [rows[0].status for rows in swept(tmp_path, requested, runner).rows] == ["finished", "finished"]
    assert runner.ran == [(2, 3)]


@pytest.mark.parametrize(
    ("error", "sentence", "is_final"),
    [
        (TraceError("a.csv: row 3:\n  nonsense"), "a.csv: row 3: nonsense", True),
        (ScenarioError([Problem("workload", "is too much")]), "workload: is too much", True),
        (UnreadableTrace("a.csv: no such file"), "a.csv: no such file", False),
        (OutputError("a.parquet: cannot be read"), "a.parquet: cannot be read", False),
        (MemoryError(), "out of memory", False),
        (
            InvariantError("blocks", 3, 4, 1.5),
            "a bug in simserve, please report it: InvariantError: blocks: 3 != 4",
            False,
        ),
    ],
)
def test_whatever_goes_wrong_in_a_run_is_said_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str, is_final: bool
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(sweep_run, "simulate", fail)
    row = run_row(task_of(question(tmp_path, f"{REPLICAS}=1").first, 0))
    assert str(row.reason).startswith(sentence)
    assert (row.status, row.is_final) == ("failed", is_final)


@pytest.mark.parametrize("change", ["missing", "another"])
def test_a_trace_that_is_missing_or_another_where_a_run_starts_is_tried_again(tmp_path: Path, change: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    requested = question(tmp_path, f"{REPLICAS}=1,2", workload={"trace": {"path": str(trace)}})
    trace.unlink()
    if change == "another":
        trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,11,5\n")
    assert {rows[0].status for rows in swept(tmp_path, requested, Here()).rows} == {"failed"}
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    assert {rows[0].status for rows in swept(tmp_path, requested, Here()).rows} == {"finished"}


def test_where_every_run_fails_there_is_no_answer_but_the_reasons(tmp_path: Path) -> None:
    result = swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2"), Here(lose=[0, 1]))
    with pytest.raises(SimserveError, match=r"all 2 runs failed\ngone"):
        check_any(result)


def test_the_table_has_a_row_a_point_and_seed_with_keys_as_columns_and_nulls_where_a_point_failed(
    tmp_path: Path,
) -> None:
    requested = question(tmp_path, f"{TENSOR}=1,3", "cluster.router=random,{kind: round_robin}", n_seeds=2)
    result = swept(tmp_path, requested, Here())
    write(tmp_path / "out", result)
    table = pq.read_table(tmp_path / "out" / "sweep.parquet")
    rows = table.to_pylist()
    assert [(row["point"], row[TENSOR], row["seed"]) for row in rows] == [
        (point, 1 if point < 2 else 3, seed) for point in range(4) for seed in (3, 4)
    ]
    assert [row["cluster.router"] for row in rows[:4]] == [
        "random",
        "random",
        "{kind: round_robin}",
        "{kind: round_robin}",
    ]
    assert [row["status"] for row in rows] == ["finished"] * 4 + ["failed"] * 4
    assert rows[0]["reason"] is None
    assert "32 attention heads" in rows[-1]["reason"]
    assert {rows[-1][name] for name in ("ttft_s.p99", "saturated", "n_gpus", "usd_per_hour", "wall_s")} == {None}
    assert (rows[0]["saturated"], rows[0]["n_gpus"], rows[0]["usd_per_hour"]) == (False, 1, 4.0)
    assert table.schema.metadata[b"simserve.schema"] == b"simserve/1"
    assert table.schema.field("ttft_s.p99").metadata == {b"unit": b"s"}
    assert {measure.key for measure in MEASURES} <= set(table.column_names)


def test_nothing_looks_complete_until_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2"), Here())
    assert {file.name for file in out.iterdir()} == {"sweep.jsonl"}
    write(out, result)
    assert {file.name for file in out.iterdir()} == {"sweep.jsonl", "sweep.json", "sweep.parquet", "report.html"}


def test_a_disk_that_is_full_at_the_end_leaves_no_answer_and_keeps_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = swept(tmp_path, question(tmp_path, f"{REPLICAS}=1,2"), Here())

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simserve.tables.parquet.write_table", refuse)
    with pytest.raises(SimserveError, match="No space left on device; free space there"):
        write(tmp_path / "out", result)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"sweep.jsonl"}
    assert len((tmp_path / "out" / "sweep.jsonl").read_text().splitlines()) == 2


def test_a_run_is_known_by_scenario_seed_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    other = load_scenario(write_scenario(tmp_path), overrides=["cluster.pools.0.replicas=2"])
    keys = {key_of(scenario, 0), key_of(scenario, 1), key_of(other, 0)}
    monkeypatch.setattr(sweep_run, "__version__", "9.9.9")
    keys.add(key_of(scenario, 0))
    assert len(keys) == 4
    renamed = load_scenario(write_scenario(tmp_path), overrides=["name=other"])
    assert key_of(renamed, 0) in keys


def test_rows_survive_the_way_through_the_journal_to_the_bit(tmp_path: Path) -> None:
    requested = question(tmp_path, f"{REPLICAS}=1,2")
    first = swept(tmp_path, requested, Here())
    assert swept(tmp_path, requested, Here()).rows == first.rows
    assert all(isinstance(row.facts()["ttft_s.p99"], float) for (row,) in first.rows)
