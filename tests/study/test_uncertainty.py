"""Prediction intervals: wide as costs are unknown, the same each time, and they reach the answer."""

from dataclasses import replace
from typing import Any

import pytest

from simserve import Scenario, simulate
from simserve.report.headline import prediction
from simserve.scenario.distortion import Distortion, distorted
from simserve.study.uncertainty import MOST_REQUESTS, REPLAYS, _interval, predict, replays_of, spread_of


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
    text = prediction(result["summary"])
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


def test_long_runs_are_replayed_only_where_they_ask_for_it() -> None:
    assert replays_of(scenario(), MOST_REQUESTS) == REPLAYS
    assert replays_of(scenario(), MOST_REQUESTS + 1) == 0
    assert replays_of(scenario(measure={"replays": 3}), 10**6) == 3
    requested = scenario(measure={"replays": 0})
    results = simulate(requested)
    predict(requested, results)
    assert results.summary["prediction"] is None
    assert prediction(results.summary) is None


def test_a_distortion_makes_steps_longer_by_its_factors() -> None:
    (setup,) = scenario().setups
    slow = distorted(setup, Distortion(compute=2.0, memory=2.0, host=2.0, kv_blocks=0.5))
    before, after = setup.step_cost(), slow.step_cost()
    assert 1.5 < after.tokens_ps(4000) / before.tokens_ps(4000) < 2.0
    assert after.decode_line(8)[1] == pytest.approx(2 * before.decode_line(8)[1], rel=1e-3)
    assert slow.ledger.n_blocks == round(setup.ledger.n_blocks / 2)
    counted = replace(setup, ledger=replace(setup.ledger, verified=True))
    assert distorted(counted, Distortion(kv_blocks=0.5)).ledger.n_blocks == setup.ledger.n_blocks


def test_an_interval_is_students_in_logs() -> None:
    result = _interval(1.0, [0.8, 1.25])
    assert result is not None
    assert result[0] == pytest.approx(1 / result[1])
    assert _interval(1.0, [1.1, 1.2, 1.3])[0] <= 1.0  # type: ignore[index]
    assert _interval(0.0, [1.0, 2.0]) is None
