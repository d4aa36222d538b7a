"""Near capacity: the probability that a load is beyond capacity, which a run of minutes does not show by itself."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, simulate
from simserve.metrics.decision import beyond_warning
from simserve.report.headline import headline
from simserve.study import capacity_probe
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study_rate
from simserve.study.capacity_probe import NearCapacity, near_capacity
from simserve.study.cost_draws import draws_for
from simserve.study.uncertainty import run_with_replays
from simserve.workload.load import offered_load

PROMPT, OUTPUT = 512, 32


def scenario(rate_per_s: float, n_requests: int = 400, slots: int = 4, **changes: Any) -> Scenario:
    """Return a server with few slots; with engine ideal its costs are known exactly."""
    data: dict[str, Any] = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "ideal",
        "cluster": {
            "pools": [{"scheduler": {"kind": "chunked", "max_num_seqs": slots}, "num_gpu_blocks": 20_000}],
        },
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
            "lengths": {"kind": "fixed", "prompt_tokens": PROMPT, "output_tokens": OUTPUT},
            "n_requests": n_requests,
        },
        "slo": {"e2e_s": 60},
    }
    return Scenario.from_dict(data | changes)


def near(requested: Scenario) -> NearCapacity | None:
    """Return the comparison for a run of the scenario."""
    run = simulate(requested).figures
    load = offered_load(requested.workload, requested.seed, requested.base_dir)
    return near_capacity(requested, load, run.load.nominal_per_s, run.service_s, draws_for(requested))


def capacity_per_s(requested: Scenario) -> float:
    """Return the geometric mean over draws of costs."""
    result = near(requested)
    assert result is not None
    return math.exp(float(result.logs.mean()))


ALONE_PER_S = 1 / float(simulate(scenario(0.1, n_requests=4, slots=1)).summary["e2e_s"]["mean"])
"""Capacity of a server with one slot: one over the time of an answer."""


def test_capacity_of_one_slot_is_one_over_the_time_of_an_answer() -> None:
    requested = scenario(0.9 * ALONE_PER_S, slots=1)
    assert capacity_per_s(requested) == pytest.approx(ALONE_PER_S, rel=0.01)
    result = near(requested)
    assert result is not None
    assert 0.015 < result.logs.std() < 0.03  # the residual error of a token's time, with costs known


@pytest.mark.parametrize(("of_capacity", "decision"), [(0.9, "met"), (1.1, "missed")])
def test_a_run_of_minutes_does_not_decide(of_capacity: float, decision: str) -> None:
    """The SLO is so wide that no request of the run misses it; residual errors of 2.5% are all that is unknown."""
    requested = scenario(of_capacity * ALONE_PER_S, slots=1, slo={"e2e_s": 1000})
    summary = run_with_replays(requested).figures
    assert summary.attained.frac == 1
    assert summary.answer is not None and summary.answer.decision == decision
    is_beyond = of_capacity > 1
    assert summary.probability_beyond_capacity is not None
    assert (summary.probability_beyond_capacity > 0.95) == is_beyond
    assert any("beyond capacity" in text for text in summary.warnings) == is_beyond
    assert headline(summary).startswith("Beyond capacity: " if is_beyond else "Meets the SLO: ")


def test_loads_four_percent_below_and_above_differ() -> None:
    below, above = (near(scenario(of_capacity * ALONE_PER_S, slots=1)) for of_capacity in (0.96, 1.04))
    assert below is not None
    assert above is not None
    assert below.probability < 0.1 < 0.9 < above.probability


def test_unknown_costs_make_it_a_matter_of_probability() -> None:
    """The draws of an engine with kernels that were timed on another card spread by a third."""
    changes: dict[str, Any] = {"engine": "vllm", "gpu": "h20-sxm", "slo": {"e2e_s": 1000}}
    at = capacity_per_s(scenario(4.0, **changes))
    runs = [run_with_replays(scenario(factor * at, **changes)).figures for factor in (0.4, 0.9, 1.0, 1.1, 2.5)]
    values = [run.at("probability_beyond_capacity") for run in runs]
    assert values == sorted(values)
    assert values[0] < 0.05 < values[1] < 0.45 < values[2] < 0.55 < values[3] < 0.95 < values[4]
    decisions = [run.answer and run.answer.decision for run in runs]
    assert decisions == ["met", "edge", "edge", "edge", "missed"]
    summary = runs[2]
    compared = summary.near_capacity
    assert compared is not None
    assert compared.at("low_per_s") < compared.at("offered_per_s") < compared.at("high_per_s")
    assert compared.n_draws == 8
    assert headline(summary).startswith("Near capacity: ")
    assert sum("costs within their error decide" in text for text in summary.warnings) == 1


def test_far_from_capacity_one_probe_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    n_runs: list[int] = []

    def counted(*args: Any, **how: Any) -> Any:
        n_runs.append(1)
        return simulate(*args, **how)

    monkeypatch.setattr(capacity_probe, "simulate", counted)
    for of_capacity, probability in ((0.3, 0.0), (2.0, 1.0)):
        n_runs.clear()
        result = near(scenario(of_capacity * ALONE_PER_S, slots=1))
        assert result is not None
        assert (result.probability, result.facts(), len(n_runs)) == (probability, None, 1)


LIMITS: Mapping[str, dict[str, Any]] = {
    "timeouts": {"workload": {"timeout": {"e2e_s": 1.0}, "retries": {"max_attempts": 3}}},
    "admission": {"cluster": {"admission": {"kind": "queue_length", "max_waiting": 2}}},
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_keeps_a_queue_short_does_not_hide_that_it_would_grow(name: str) -> None:
    plain = scenario(1.1 * ALONE_PER_S, slots=1)
    data = plain.to_dict()
    limited = Scenario.from_dict({**data, **{key: {**data[key], **more} for key, more in LIMITS[name].items()}})
    one, other = near(plain), near(limited)
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.logs, other.logs)
    assert one.probability == other.probability > 0.95


def test_order_does_not_change_capacity_and_views_hardly_do() -> None:
    """Under overload, priorities would serve short requests first, and stale views fill one replica after another."""
    classes = {
        name: {
            "share": 0.5,
            "priority": priority,
            "lengths": {"kind": "fixed", "prompt_tokens": 300, "output_tokens": output_tokens},
        }
        for name, priority, output_tokens in (("chat", 0, 8), ("job", 9, 120))
    }
    arrivals = {"kind": "poisson", "rate_per_s": 25 * ALONE_PER_S}
    workload = {"arrivals": arrivals, "classes": classes, "n_requests": 800}

    def compared(policy: str, **cluster: Any) -> NearCapacity:
        scheduler = {"kind": "chunked", "policy": policy, "max_num_seqs": 64}
        pools = [{"scheduler": scheduler, "num_gpu_blocks": 20_000, "replicas": 2}]
        result = near(
            scenario(1.0, workload=workload, cluster=cluster | {"router": "least_outstanding", "pools": pools})
        )
        assert result is not None
        return result

    plain = compared("fcfs").logs
    assert len(plain) == 8
    np.testing.assert_array_equal(compared("priority").logs, plain)
    stale = compared("fcfs", views={"refresh_s": 0.01, "counts_own_sends": False}).logs
    assert stale.mean() == pytest.approx(plain.mean(), abs=0.1)


def test_later_turns_count_and_come_at_fixed_times() -> None:
    prefixes = {"kind": "conversations", "turns": {"median": 4, "sigma": 0.0, "max": 4}, "think_s": 2}
    lengths = {"kind": "fixed", "prompt_tokens": 256, "output_tokens": 32}
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": 2.0}, "lengths": lengths, "n_requests": 800}
    result = near(scenario(2.0, workload={**workload, "prefixes": prefixes}))
    assert result is not None
    assert result.rate.per_s == pytest.approx(8.0, rel=0.02)
    assert result.rate.log_error == 0


def test_hand_overs_go_by_answers() -> None:
    pools = [
        {"name": name, "role": name, "scheduler": {"kind": "chunked", "max_num_seqs": slots}, "num_gpu_blocks": 20_000}
        for name, slots in (("prefill", 8), ("decode", 2))
    ]
    link = {"bytes_per_s": 5.0e10, "latency_s": 1e-5}
    requested = scenario(0.95 * ALONE_PER_S, cluster={"pools": pools, "kv_link": link})
    alone = simulate(requested.model_copy(update={"workload": scenario(0.1, n_requests=4).workload})).summary
    decode_s = float(alone["e2e_s"]["mean"] - alone["ttft_s"]["mean"])
    at = capacity_per_s(requested)
    assert 1 / decode_s < at < 2 / decode_s  # two slots in steps that are somewhat longer


CLOSED = {
    "client": {"kind": "closed_loop", "concurrency": 8},
    "lengths": {"kind": "fixed", "prompt_tokens": PROMPT, "output_tokens": OUTPUT},
    "n_requests": 60,
}


def test_a_load_that_adapts_has_no_probability() -> None:
    summary = run_with_replays(scenario(1.0, workload=CLOSED)).summary
    assert (summary["probability_beyond_capacity"], summary["near_capacity"]) == (None, None)


def test_a_run_that_never_fills_the_cluster_tells_nothing() -> None:
    assert near(scenario(200.0, n_requests=60, slots=256)) is None


def test_the_rate_of_a_trace_is_a_sample_of_its_traffic(tmp_path: Path) -> None:
    gaps_s = np.random.default_rng(1).exponential(1 / ALONE_PER_S, 600)
    rows = [f"{at_s:.6f},{PROMPT},{OUTPUT}" for at_s in np.cumsum(gaps_s)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    result = near(scenario(1.0, slots=1, workload={"trace": {"path": str(path), "format": "simserve"}}))
    assert result is not None
    assert result.rate.log_error == pytest.approx(1 / math.sqrt(600), rel=0.5)
    exact = replace(result, rate=replace(result.rate, log_error=0.0))
    assert abs(result.probability - 0.5) < abs(exact.probability - 0.5)


def test_capacity_says_how_likely_its_answer_is_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SLO is so wide that the search ends where queues grow: at capacity."""
    monkeypatch.setattr("simserve.study.cost_draws.REPLAYS", 3)
    requested = scenario(0.7 * ALONE_PER_S, slots=1, n_requests=300, slo={"e2e_s": 30})
    facts = study_rate(CapacityQuestion(requested, 0.99, 0.2)).answer.facts()
    at_answer = facts["answer"]["near_capacity"]["capacity_per_s"]
    assert at_answer == pytest.approx(ALONE_PER_S, rel=0.02)
    own = facts["own_load"]
    assert own["probability_beyond_capacity"] == pytest.approx(0.0, abs=0.01)
    assert facts["answer"]["probability_beyond_capacity"] > 0.95
    assert any(text.startswith("the answer is beyond capacity") for text in facts["warnings"])


def test_a_load_that_may_be_beyond_capacity_has_a_warning() -> None:
    assert [len(beyond_warning(chance)) for chance in (None, 0.05, 0.06, 1.0)] == [0, 0, 1, 1]
