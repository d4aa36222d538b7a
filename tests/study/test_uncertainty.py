"""Prediction intervals: wide as costs are unknown, the same each time, and they reach the answer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, simulate
from simserve.metrics.decision import Effort
from simserve.report.percentiles import prediction
from simserve.report.run_view import RunView
from simserve.scenario.server_errors import server_errors
from simserve.scenario.setup import Distortion
from simserve.study import processes, uncertainty
from simserve.study.cost_draws import RESIDUAL_SD, Draw, draws_of, residual_of, spread_of
from simserve.study.prediction import prediction_interval
from simserve.study.progress import StudyProgress, shown_by
from simserve.study.uncertainty import predict, run_with_replays
from simserve.workload.load import Load, offered_load
from tests.summaries import summary_of

FITTED: dict[str, Any] = {"model": "qwen3-32b", "engine": {"name": "vllm", "version": "0.12"}}
"""A server that host constants were fitted to, on an H100."""


def scenario(**changes: Any) -> Scenario:
    data: dict[str, Any] = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 8},
            "lengths": {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 32},
            "n_requests": 60,
        },
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
    }
    return Scenario.from_dict(data | changes)


def predicted(**changes: Any) -> dict[str, Any]:
    requested = scenario(**changes)
    results = simulate(requested)
    predict(requested, results)
    result = results.summary["prediction"]
    assert result is not None
    return dict(result) | {"summary": results.summary}


def test_a_percentile_lies_between_its_ends_and_every_replay_counts() -> None:
    result = predicted(measure={"replays": 5})
    assert result["replays"] == 5
    for key, levels in result["latencies"].items():
        for level, (low, high) in levels.items():
            assert 0 < low <= result["summary"][key][level] <= high
    assert (result["n_met"], result["slo_probability"]) == (5, None)  # none missed, so that is all there is to say
    text = prediction(RunView(summary_of(result["summary"])))
    assert text is not None
    assert text.startswith("Allowing for load and cost-model error (5 perturbed replays), p99 TTFT is ")
    assert text.endswith(" (90% prediction interval). 5 of 5 replays meet the SLO.")


def test_the_same_scenario_has_the_same_prediction() -> None:
    assert predicted(measure={"replays": 3})["latencies"] == predicted(measure={"replays": 3})["latencies"]


def test_a_card_that_nobody_timed_is_known_less_well() -> None:
    timed, scaled = spread_of(scenario().setups), spread_of(scenario(gpu="rtx-4090").setups)
    assumed = spread_of(scenario(engine={"name": "vllm", "launch_s": 4e-6}).setups)
    assert timed.compute < scaled.compute < assumed.compute
    assert timed.host < scaled.host
    counted = scenario(cluster={"pools": [{"num_gpu_blocks": 20_000}]}).setups
    assert spread_of(counted).kv_blocks == 0 < timed.kv_blocks
    ideal = spread_of(scenario(engine="ideal").setups)
    assert (ideal.compute, ideal.host) == (0, 0)


def test_costs_that_were_fitted_to_runs_are_known_as_well_as_runs_that_were_left_out() -> None:
    pools = {"pools": [{"parallel": {"tensor": 8}}]}
    fitted = scenario(gpu="mi300x", engine="sglang", model="deepseek-v3", cluster=pools).setups
    runs = fitted[0].calibration.runs  # type: ignore[union-attr]
    assert runs is not None
    residual, like_a_fitted_one = residual_of(fitted), residual_of(scenario(**FITTED).setups)
    assert dict(like_a_fitted_one) == dict(RESIDUAL_SD)
    assert residual["tpot_s"] == residual["itl_s"] == residual["e2e_s"] == runs.spreads["tpot_s"] > 0.1
    assert residual["ttft_s"] == residual["queue_s"] == runs.spreads["ttft_s"] > 0.2
    one, other = (spread_of(scenario(gpu=gpu, engine="sglang").setups) for gpu in ("mi300x", "h100-sxm"))
    assert (one.compute, one.host) > (other.compute, other.host)
    drawn = draws_of(one, 8, 0, residual)
    logs = np.log([each["tpot_s"] for _, each in drawn])
    assert logs.std() == pytest.approx(runs.spreads["tpot_s"], rel=0.15)


@pytest.mark.parametrize("latency", ["tpot_s", "ttft_s", "e2e_s"])
def test_where_nothing_was_fitted_errors_between_servers_are_added(
    latency: str,
) -> None:
    """Variances add up; draws of all else stay the same to the bit, and those of servers are as many times as wide."""
    (plain, wide) = (scenario(**FITTED), scenario(model="qwen3-30b-a3b"))
    between = server_errors().of(wide.setups)[latency]
    assert between > 0.04
    assert residual_of(plain.setups)[latency] == RESIDUAL_SD[latency]
    total = residual_of(wide.setups)[latency]
    assert total == pytest.approx((RESIDUAL_SD[latency] ** 2 + between**2) ** 0.5)
    spread = spread_of(wide.setups)
    before, after = draws_of(spread, 8, 3), draws_of(spread, 8, 3, residual_of(wide.setups))
    assert [distortion for distortion, _ in before] == [distortion for distortion, _ in after]
    narrow, broad = (np.log([factors[latency] for _, factors in draws]) for draws in (before, after))
    np.testing.assert_allclose(broad, narrow * total / RESIDUAL_SD[latency])


def test_the_prediction_of_a_run_is_as_wide_as_servers_differ() -> None:
    dense, experts = (predicted(**what, measure={"replays": 40}) for what in (FITTED, {"model": "qwen3-30b-a3b"}))
    ends = [result["latencies"]["tpot_s"]["mean"] for result in (dense, experts)]
    widths = [np.log(high / low) / 2 for low, high in ends]
    assert widths[1] > 1.895 * 0.95 * server_errors().of(scenario(model="qwen3-30b-a3b").setups)["tpot_s"]
    assert widths[0] < widths[1]
    assert not any("prediction intervals" in note for note in dense["summary"]["notes"])
    (note,) = (note for note in experts["summary"]["notes"] if "prediction intervals" in note)
    assert note.endswith("no run of qwen3-30b-a3b, with experts, was fitted")


def test_without_replays_there_is_no_prediction() -> None:
    requested = scenario(measure={"replays": 0})
    results = simulate(requested)
    predict(requested, results)
    assert results.summary["prediction"] is None
    assert prediction(RunView(results.figures)) == ""


CLOSED = {
    "client": {"concurrency": 5},
    "lengths": {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 32},
}
SESSIONS = {
    "arrivals": {"kind": "poisson", "rate_per_s": 2},
    "lengths": {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 32},
    "prefixes": {"kind": "conversations", "turns": {"median": 4, "sigma": 0.3, "max": 8}, "think_s": 1},
}


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay runs of more than 200 requests in segments of 100."""
    monkeypatch.setattr(uncertainty, "MOST_WHOLE", 200)
    monkeypatch.setattr(uncertainty, "SEGMENT", 100)


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize(
    ("workload", "least", "most"),
    [
        ({**scenario().workload.model_dump(exclude_none=True), "n_requests": 400}, 80, 80),
        (CLOSED | {"n_requests": 400}, 80, 80),
        (CLOSED | {"duration_s": 40}, 60, 120),
        (SESSIONS | {"duration_s": 120}, 20, 90),
    ],
    ids=["open", "closed", "closed for a time", "sessions"],
)
def test_a_long_run_is_replayed_in_segments(workload: dict[str, Any], least: int, most: int) -> None:
    """least, most: requests in the measured window of a segment."""
    requested = scenario(workload=workload, measure={"replays": 4}, seed=2)
    results = run_with_replays(requested)
    alone, decision, result = simulate(requested), results.summary["decision"], results.summary["prediction"]
    n = alone.summary["requests"]["arrived"]
    assert n > 200
    assert results.summary["ttft_s"] == alone.summary["ttft_s"]
    assert (result["replays"], decision["n_draws"]) == (4, 4)
    assert decision["n_runs"] == 5  # the run is too short for sections of its own
    assert 4 * least <= decision["n_requests"] - n <= 4 * most
    for key, levels in result["latencies"].items():
        for level, (low, high) in levels.items():
            assert 0 < low < results.summary[key][level] < high
    predict(requested, alone)
    assert (alone.summary["prediction"], alone.summary["decision"]) == (result, decision)


@pytest.mark.usefixtures("short_segments")
def test_each_segment_is_of_another_load_and_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {**scenario().workload.model_dump(exclude_none=True), "n_requests": 400}
    requested = scenario(workload=workload, measure={"replays": 3}, seed=5)
    seeds: list[int] = []

    def drawn(spec: Any, seed: int, base_dir: Path) -> Load:
        seeds.append(seed)
        return offered_load(spec, seed, base_dir)

    monkeypatch.setattr(uncertainty, "offered_load", drawn)
    run_with_replays(requested)
    assert seeds == [5, 6, 6, 7, 7, 8, 8]


@pytest.mark.usefixtures("short_segments")
def test_segments_of_a_trace_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{i * 0.1},{512 + 7 * (i % 50)},16" for i in range(300)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    results = run_with_replays(scenario(workload={"trace": {"path": str(path), "format": "simserve"}}))
    assert results.summary["answer"]["n_requests"] == 300
    low, high = results.summary["prediction"]["latencies"]["tpot_s"]["p50"]
    assert 1.01 < high / low < 1.5


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("n_requests", [60, 300])
def test_who_computes_makes_no_difference(n_requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {**scenario().workload.model_dump(exclude_none=True), "n_requests": n_requests}
    requested = scenario(workload=workload, measure={"replays": 3})
    alone = run_with_replays(requested).summary
    monkeypatch.setattr(processes, "cpu_count", lambda: 3)
    monkeypatch.setattr(processes, "can_fork", lambda: True)
    done: list[str] = []
    with shown_by(StudyProgress(done.append, lambda: 0.0)):
        result = run_with_replays(requested).summary
    keys = ("prediction", "answer", "decision")
    assert [result[key] for key in keys] == [alone[key] for key in keys]
    n_runs = 3 * 2 if n_requests > 200 else 3 + result["decision"]["n_runs"] - 1
    assert done[-1] == f"{n_runs} of {n_runs} runs"


@pytest.mark.usefixtures("short_segments")
def test_the_two_rules_agree_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A steady load tells much the same from a run of 400 requests, whole or in segments."""
    workload = {**scenario().workload.model_dump(exclude_none=True), "n_requests": 400}
    in_segments = predicted(workload=workload, measure={"replays": 4})["latencies"]
    monkeypatch.setattr(uncertainty, "MOST_WHOLE", 400)
    whole = predicted(workload=workload, measure={"replays": 4})["latencies"]
    for key, level in (("tpot_s", "p50"), ("e2e_s", "mean"), ("ttft_s", "p50")):
        assert in_segments[key][level] == pytest.approx(whole[key][level], rel=0.1)


def test_a_distortion_makes_steps_longer_by_its_factors() -> None:
    (setup,) = scenario().setups
    slow = setup.distorted(Distortion(compute=2.0, memory=2.0, host=2.0, kv_blocks=0.5))
    before, after = setup.step_cost(), slow.step_cost()
    assert 1.5 < after.tokens_ps(4000) / before.tokens_ps(4000) < 2.0
    assert 1.8 < after.decode_line(8)[1] / before.decode_line(8)[1] < 2.0  # the last SM reads at a rate of its own
    assert slow.ledger.n_blocks == round(setup.ledger.n_blocks / 2)
    counted = replace(setup, ledger=replace(setup.ledger, verified=True))
    assert counted.distorted(Distortion(kv_blocks=0.5)).ledger.n_blocks == setup.ledger.n_blocks


def test_an_interval_is_students_in_logs() -> None:
    result = prediction_interval(1.0, [0.8, 1.25])
    assert result is not None
    assert result[0] == pytest.approx(1 / result[1])
    assert prediction_interval(1.0, [1.1, 1.2, 1.3])[0] <= 1.0  # type: ignore[index]
    assert prediction_interval(0.0, [1.0, 2.0]) is None


def test_the_confidence_counts_without_replays_too() -> None:
    requested = scenario(measure={"replays": 0})
    alone = run_with_replays(requested, effort=Effort(confidence=0.8))
    assert alone.basis is not None
    assert alone.basis.confidence == 0.8


def test_two_scenarios_share_draws_just_where_they_share_the_error() -> None:
    """One fit stands behind TP 1 and TP 2, but for their links; another card has other kernels, and the same engine."""
    one, two, other = (
        draws_of(spread_of(scenario(**changes).setups), 8, 3)
        for changes in ({}, {"cluster": {"pools": [{"parallel": {"tensor": 2}}]}}, {"gpu": "h200-sxm"})
    )

    def ranks(draws: Sequence[Draw], name: str) -> list[int]:
        return sorted(range(len(draws)), key=lambda place: getattr(draws[place][0], name))

    for name in ("compute", "memory", "host", "front_end", "kv_blocks"):
        assert ranks(one, name) == ranks(two, name)
    assert ranks(one, "link") != ranks(two, "link")
    assert ranks(one, "compute") != ranks(other, "compute")
    assert ranks(one, "front_end") == ranks(other, "front_end")
    assert [residual for _, residual in one] == [residual for _, residual in other]
    assert ranks(one, "compute") != ranks(one, "memory")
