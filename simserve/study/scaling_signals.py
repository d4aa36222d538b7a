"""Scaling signals: each scales a pool by the same bare rule; the cheapest that reaches the goal comes first.

The rule is `target` with its guard: enough replicas for the target, and one less at a time if the load fits on the
others. Targets are shares of what a replica bears: of the signal in busy times of the smallest fixed fleet that
reaches the goal.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from simserve.errors import Problem, ScenarioError
from simserve.metrics.answers.autoscale import AutoscaleAnswer, SignalRank
from simserve.metrics.decision import Effort
from simserve.metrics.outcomes import outcomes
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.scenario.dump import yaml_text
from simserve.scenario.template import Template
from simserve.simulation import simulate
from simserve.study.autoscale import AutoscaleQuestion, Policy, most_of, pool_of
from simserve.study.run_seeds import MEASURED

MOST_RUNS = 40
"""Runs, unless the number of seeds is given."""

SHARES = (2 / 3, 1.0, 3 / 2)
"""Targets, as shares of what a replica bears at least: the fleet may have a part of one more than it needs."""

BUSY = 0.95
"""Quantile over time at which a fleet is busy."""

WINDOW_S = 60.0
"""[s] Window of rates."""

LEAST = 1e-6
"""A target is more than 0."""


def signal_question(
    template: Template, wanted: tuple[str | None, int | None], n_seeds: int | None, goal_frac: float, effort: Effort
) -> tuple[AutoscaleQuestion, int]:
    """Return the question about each signal with each target, and how many fixed fleets ran for the targets.

    wanted: the pool, and its most replicas. n_seeds: None: as many as MOST_RUNS allows. Raises SimserveError.
    """
    scenario = Scenario.of(template)
    pool = pool_of(scenario, wanted[0])
    most, own = most_of(scenario, pool, wanted[1]), scenario.setups[pool].autoscaler

    @cache
    def fixed(n: int) -> tuple[float, Mapping[str, float]]:
        here = Scenario.of(template.with_options(Policy(f"fixed:{n}", None, n).overrides(pool)))
        results = simulate(here)
        shares = [each.attained_frac for each in outcomes(results.part(MEASURED)).values()]
        if not shares:
            raise ScenarioError([Problem("command line --signals", "needs an slo", None, "give the scenario one")])
        return min(shares), levels_of(results, here.cluster.pools[pool].name, n)

    place = bisect_left(range(1, most + 1), goal_frac, key=lambda n: fixed(n)[0])
    levels, n_fixed = fixed(min(most, place + 1))[1], fixed.cache_info().currsize
    pairs = [
        (signal, float(f"{max(LEAST, share * level):.3g}")) for signal, level in levels.items() for share in SHARES
    ]
    rule = {"kind": "target", "min_replicas": 1 if own is None else max(1, own.min_replicas), "max_replicas": most}
    settings = [rule | {"metric": signal, "target": target, "down_below": target} for signal, target in pairs]
    seeds = n_seeds or max(1, (MOST_RUNS - n_fixed) // len(settings))
    effort = replace(effort, most_runs=seeds)
    question = AutoscaleQuestion.of(template, settings, wanted, seeds, goal_frac, effort)
    return replace(question, names=[f"{signal} at {target:g}" for signal, target in pairs]), n_fixed


def levels_of(results: Results, pool: str, n: int) -> Mapping[str, float]:
    """Return each signal, as a query, and its value per replica in busy times of a fixed fleet."""
    series, requests = results.timeseries, results.requests
    by_time = series[series.pool == pool].groupby("start_s")
    total, mean = by_time.sum(numeric_only=True) / n, by_time.mean(numeric_only=True)
    window_s = min(WINDOW_S, max(1.0, float(requests.arrival_s.max())))

    def rates(instants: Any) -> Any:
        n_windows = max(1, int(instants.max() / window_s) if len(instants) else 0)
        return np.histogram(instants, n_windows, (0, n_windows * window_s))[0] / window_s / n

    levels = {
        "num_requests_running": total.running,
        "num_requests_waiting": np.maximum(total.queue_len, 1),  # a fleet that reaches the goal may never queue
        "llm_d_epp_request_running": total.running + total.queue_len,
        "kv_cache_usage_perc": mean.kv_frac,
        "rate(gateway_arrival_total[1m])": rates(requests.arrival_s),
        "rate(request_success_total[1m])": rates(requests.finish_s.dropna()),
    }
    return {name: float(np.quantile(level, BUSY)) for name, level in levels.items()}


def ranked(answer: AutoscaleAnswer, n_fixed: int) -> AutoscaleAnswer:
    """Return the answer with the best setting of each signal: those that reach the goal by their GPU-hours, the others
    by what they attain."""
    best: dict[str, tuple[bool, float, int, float]] = {}
    for place, row in enumerate(answer.policies):
        attained, hours = row.attained_frac or 0.0, row.gpu_hours
        misses = hours is None or attained < answer.goal_frac
        match row.settings:
            case {"metric": str(signal), "target": float() | int() as target}:
                rank = (misses, -attained if misses else hours or 0.0, place, target)
                best[signal] = min(best.get(signal, rank), rank)
    order = sorted(best.items(), key=lambda each: each[1])
    misses, least, first, _ = order[0][1]
    ranks = [
        SignalRank(
            signal=signal,
            target=target,
            policy=place,
            gpu_hours=answer.policies[place].gpu_hours,
            attained_frac=answer.policies[place].attained_frac,
            regret_h=None if too_few else hours - least,
        )
        for signal, (too_few, hours, place, target) in order
    ]
    settings = {"autoscaler": dict(answer.policies[first].settings or {})}
    chosen = {"best": None, "yaml": None} if misses else {"best": first, "yaml": yaml_text(settings, {})}
    return answer.model_copy(update={"signals": ranks, "n_runs": n_fixed + (answer.n_runs or 0), **chosen})
