"""Signals that could scale a pool: how they are ranked, and what a replica bears of each."""

from typing import Any

import pytest

from simserve import simulate
from simserve.errors import ScenarioError
from simserve.metrics.answers.autoscale import AutoscaleAnswer, ScaledFleet
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.decision import Effort
from simserve.report.autoscale import tell
from simserve.scenario.loader import template_from
from simserve.study.scaling_signals import levels_of, ranked, signal_question


def row(signal: str, target: float, hours: float | None, attained: float | None) -> ScaledFleet:
    settings = {"kind": "target", "metric": signal, "target": target}
    figures: dict[str, Any] = {"gpu_hours": hours, "attained_frac": attained, "n_scalings": 1.0, "mean_gpus": 2.0}
    return ScaledFleet(policy=f"{signal} at {target:g}", settings=settings, **figures)


def answer(*rows: ScaledFleet) -> AutoscaleAnswer:
    scenario = ScenarioName(name="fleet")
    slo: Any = {"ttft_s": 0.5}
    return AutoscaleAnswer(scenario=scenario, pool="p", goal_frac=0.99, slo=slo, n_runs=6, best=None, policies=rows)


def test_the_cheapest_setting_that_reaches_the_goal_counts_and_the_others_come_last() -> None:
    rows = [
        row("a", 1, 3.0, 1.0),
        row("a", 2, 2.5, 0.99),
        row("a", 3, 1.0, 0.98),
        row("b", 5, 1.5, 0.7),
        row("b", 9, 1.0, 0.8),
        row("c", 4, 2.0, 0.995),
        row("d", 4, 1.0, 0.9),
        row("e", 4, None, None),
    ]
    result = ranked(answer(*rows), 3)
    ranks = [(each.signal, each.target, each.policy, each.regret_h) for each in result.signals or ()]
    assert ranks == [("c", 4, 5, 0), ("a", 2, 1, 0.5), ("d", 4, 6, None), ("b", 9, 4, None), ("e", 4, 7, None)]
    assert (result.n_runs, result.best) == (9, 5)
    assert result.yaml is not None and "metric: c" in result.yaml
    assert tell(result).title == "Best signal: c, 4.00 a replica"


def test_where_no_setting_reaches_the_goal_none_is_taken() -> None:
    result = ranked(answer(row("a", 1, 1.0, 0.5), row("b", 1, 2.0, 0.6)), 1)
    assert [(each.signal, each.regret_h) for each in result.signals or ()] == [("b", None), ("a", None)]
    assert (result.best, result.yaml) == (None, None)
    assert tell(result).title == "No policy meets the SLO"


def test_a_pool_that_never_scales_needs_no_signal() -> None:
    result = ranked(answer(row("a", 1, 1.0, 1.0).model_copy(update={"n_scalings": 0.0})), 1)
    assert tell(result).title == "No scaling is needed"


SCENARIO: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cluster": {"pools": [{"replicas": 2, "name": "p"}]},
    "workload": {
        "arrivals": {"kind": "constant", "rate_per_s": 12},
        "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 200},
        "duration_s": 180,
    },
}


def test_levels_are_those_of_a_replica_in_busy_times() -> None:
    results = simulate(SCENARIO)
    levels = levels_of(results, "p", 2)
    assert levels["rate(gateway_arrival_total[1m])"] == pytest.approx(6, rel=0.02)
    assert levels["rate(request_success_total[1m])"] == pytest.approx(6, rel=0.02)
    in_flight = 6 * results.requests.e2e_s.mean()  # Little's law
    assert levels["num_requests_running"] == pytest.approx(in_flight, rel=0.05)
    assert levels["llm_d_epp_request_running"] == pytest.approx(in_flight, rel=0.05)
    assert levels["num_requests_waiting"] == 1  # none waits
    assert levels["rate(prompt_tokens_total[1m])"] == pytest.approx(6 * 100, rel=0.02)
    assert levels["rate(generation_tokens_total[1m])"] == pytest.approx(6 * 199, rel=0.02)
    assert 0 < levels["kv_cache_usage_perc"] < 0.1


def test_a_pool_with_a_role_has_the_token_rate_of_its_role() -> None:
    pools = [{"name": name, "role": role} for name, role in (("p", "prefill"), ("d", "decode"))]
    results = simulate(SCENARIO | {"cluster": {"pools": pools}})
    rates = {name: f"rate({name}_tokens_total[1m])" for name in ("prompt", "generation")}
    prefill, decode = levels_of(results, "p", 1), levels_of(results, "d", 1)
    assert prefill[rates["prompt"]] == pytest.approx(1200, rel=0.02) and rates["generation"] not in prefill
    assert decode[rates["generation"]] == pytest.approx(12 * 199, rel=0.02) and rates["prompt"] not in decode
    assert prefill["rate(request_success_total[1m])"] == pytest.approx(12, rel=0.02)


def test_a_scenario_without_an_slo_is_refused() -> None:
    template = template_from(SCENARIO | {"workload": SCENARIO["workload"] | {"duration_s": 5}}, {})
    with pytest.raises(ScenarioError, match="command line --signals: needs an slo; give the scenario one"):
        signal_question(template, (None, 2), None, 0.99, Effort())
