"""`simserve tune`: better flags are found, confirmed on fresh draws, and a search goes on where it ended."""

import json
import sys
from pathlib import Path

import pytest

import simserve
from simserve.errors import SimserveError
from simserve.tables.folder import TUNE
from tests.cli.invoke import Outcome, invoke

pytest.importorskip("optuna")

NARROW = """schema: simserve/1
name: narrow
model: llama-3.1-8b
gpu: h100-sxm
engine: vllm
cluster: {pools: [{scheduler: {max_num_seqs: 8, max_num_batched_tokens: 1024}}]}
workload:
  client: {kind: closed_loop, concurrency: 24}
  lengths: {kind: uniform, prompt_tokens: [100, 900], output_tokens: [40, 80]}
  n_requests: 120
measure: {replays: 0}
slo: {ttft_s: 0.5, tpot_s: 0.05}
"""
SLOTS = "cluster.pools.0.scheduler.max_num_seqs"


def written(folder: Path, text: str = NARROW) -> Path:
    path = folder / "narrow.yaml"
    folder.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def tune(folder: Path, *arguments: object, text: str = NARROW) -> Outcome:
    return invoke("tune", written(folder, text), "--out", folder / "out", *arguments)


def test_more_slots_are_found_for_clients_that_wait_for_one(tmp_path: Path) -> None:
    outcome = tune(tmp_path, "--vary", f"{SLOTS}=8,16,32,64", "--points", 8)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("Better flags found: r at the load of the scenario falls by ")
    answer = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert (answer["word"], answer["n_tried"], answer["n_possible"]) == ("better", 4, 4)
    [change] = answer["changes"]
    assert (change["flag"], change["key"], change["before"]) == ("--max-num-seqs", SLOTS, "8")
    assert int(change["after"]) >= 32
    assert 0 < answer["gain"][0] < answer["gain_frac"] < answer["gain"][1] < 1
    assert answer["r_after"] < answer["r_before"] / 2
    assert "number of GPUs" in answer["not_varied"]
    tuned = simserve.load_scenario(tmp_path / "out" / "scenario.yaml")
    scheduler = tuned.cluster.pools[0].scheduler
    assert scheduler is not None and scheduler["max_num_seqs"] == int(change["after"])


def test_a_search_goes_on_where_it_ended(tmp_path: Path) -> None:
    arguments = ("--vary", f"{SLOTS}=8,16,32,64", "--vary", "cluster.pools.0.scheduler.max_num_batched_tokens=512,2048")
    first = tune(tmp_path, *arguments, "--points", 4)
    assert first.exit_code == 0, first.err
    lines = (tmp_path / "out" / TUNE.journal).read_text().splitlines()  # type: ignore[operator]
    assert len(lines) == 4
    second = tune(tmp_path, *arguments, "--points", 6)
    assert second.exit_code == 0, second.err
    again = (tmp_path / "out" / TUNE.journal).read_text().splitlines()  # type: ignore[operator]
    assert again[:4] == lines
    assert len(again) == 6


def test_points_of_one_objective_are_no_points_of_another(tmp_path: Path) -> None:
    for objective in ("r", "throughput"):
        outcome = tune(tmp_path, "--vary", f"{SLOTS}=8,64", "--objective", objective)
        assert outcome.exit_code == 0, outcome.err
        answer = json.loads((tmp_path / "out" / "tune.json").read_text())
        fresh = tune(tmp_path / objective, "--vary", f"{SLOTS}=8,64", "--objective", objective)
        assert fresh.exit_code == 0, fresh.err
        again = json.loads((tmp_path / objective / "out" / "tune.json").read_text())
        assert answer["points"] == again["points"]


def test_a_scenario_that_is_best_already_says_so(tmp_path: Path) -> None:
    text = NARROW.replace("max_num_seqs: 8", "max_num_seqs: 64")
    outcome = tune(tmp_path, "--vary", f"{SLOTS}=4,64", text=text)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith(
        "No better flags found: None of 2 points beats the scenario: the p99 of latency/limit is 0."
    )


def test_points_that_cannot_run_are_kept_with_their_reason(tmp_path: Path) -> None:
    vary = {SLOTS: [8, 64], "cluster.pools.0.parallel.tensor": [1, 3]}
    answer = simserve.tune(written(tmp_path), vary=vary, points=4)
    failed = [point for point in answer.points if point.reason]
    assert [point.values["cluster.pools.0.parallel.tensor"] for point in failed] == [3, 3]
    assert "must divide the model's 32 attention heads" in str(failed[0].reason)
    assert answer.decision == "better"
    assert len(answer.to_frame()) == 4


def test_scheduler_layout_and_router_are_varied_by_default(tmp_path: Path) -> None:
    text = NARROW.replace("pools: [{", "pools: [{replicas: 2, ").replace("concurrency: 24", "concurrency: 48")
    answer = simserve.tune(written(tmp_path, text), points=8)
    assert set(answer.varied) == {
        SLOTS,
        "cluster.pools.0.scheduler.max_num_batched_tokens",
        "cluster.pools.0.scheduler.long_prefill_token_threshold",
        "cluster.pools.0.parallel.tensor",
        "cluster.router",
    }
    assert answer.varied["cluster.pools.0.parallel.tensor"] == [1, 2]
    assert answer.n_tried == 8


@pytest.mark.parametrize(
    ("arguments", "text", "sentence"),
    [
        ((), NARROW.replace("slo:", "# slo:"), "narrow: needs an SLO, got none; give one"),
        (("--points", 1), NARROW, "--points: must be from 2 to 10000, got 1"),
        (("--vary", "a.b=1"), NARROW, "a.b"),
        (
            (),
            NARROW.replace("{scheduler: {max_num_seqs: 8, max_num_batched_tokens: 1024}}", "{scheduler: static}"),
            "static",
        ),
        (
            (),
            NARROW.replace("[{scheduler: {max_num_seqs: 8, max_num_batched_tokens: 1024}}]", "[{}, {name: b}]"),
            "narrow: has 2 pools, so say what to vary; for example --vary cluster.pools.0.scheduler.max_num_seqs=64",
        ),
    ],
)
def test_bad_input_is_refused(arguments: tuple[object, ...], text: str, sentence: str, tmp_path: Path) -> None:
    outcome = tune(tmp_path, *arguments, text=text)
    assert outcome.exit_code == 2, outcome.out
    assert sentence in outcome.err
    assert not (tmp_path / "out").exists()


def test_throughput_counts_requests_within_the_slo(tmp_path: Path) -> None:
    answer = simserve.tune(written(tmp_path), vary={SLOTS: [8, 16, 32]}, objective="throughput", points=3)
    within = {point.values[SLOTS]: point.objective for point in answer.points}
    assert within[8] is None  # it misses the SLO
    assert within[32] is not None
    assert [change.after for change in answer.changes] == ["32"]


def test_without_optuna_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SimserveError, match=r"tune: needs Optuna, which is not installed; pip install"):
        simserve.tune(written(tmp_path), points=2)
