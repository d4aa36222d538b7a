"""Summaries of runs that never ran: shares that meet each SLO as a known function of the load."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from simserve.metrics.figures import Summary
from simserve.metrics.tails import Sample, Tail
from simserve.study.capacity.boundary import Boundary, Unbounded
from simserve.study.capacity.question import CapacityQuestion, ProbedLoads, RunsAt
from simserve.study.capacity.rate import SCALES, runs_at_scale
from simserve.study.capacity.search import Goal, Search
from simserve.study.run_seeds import Run
from tests.summaries import summary_of

N = 100_000
LEVELS = ("mean", "p50", "p90", "p95", "p99", "p99.9")
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")

Missed = Mapping[str, Callable[[float], float]]
"""The share that misses each SLO, by load; no request misses two."""


def runs_at(
    missed: Missed,
    *,
    saturates_at: float = float("inf"),
    classes: Missed | None = None,
    n: int = N,
    control_variate: int = 1,
    window_s: float = 1000.0,
) -> RunsAt:
    """What a search runs; of the odd seeds so many requests miss beside, by bad luck."""

    def run(load: float, seed: int) -> dict[str, Any]:
        shares = {key: min(1.0, of(load)) for key, of in missed.items()}
        result = {
            "seed": seed,
            "offered_per_s": 10.0 * load,
            "served_per_s": 8.0 * load,
            "requests_per_s": 9.0 * load,
            "output_tokens_per_s": 900.0 * load,
            "slo_attainment": _attained(shares, n, control_variate * (seed % 2)),
            "requests": {"arrived": n},
            "trust": {"saturated": load >= saturates_at},
            "window": {"duration_s": window_s},
            "classes": {
                name: {"requests": {"arrived": n}, "slo_attainment": _attained({"e2e_s": of(load)}, n, 0)}
                for name, of in (classes or {}).items()
            },
        }
        return result | {key: dict.fromkeys(LEVELS, 0.1 * (1 + 2 * load)) for key in LATENCIES}

    def sample(load: float, seed: int) -> Sample:
        unlucky = control_variate * (seed % 2) / n
        tails: dict[str | None, Tail] = {None: exponential(n, {key: of(load) + unlucky for key, of in missed.items()})}
        if classes:
            tails = {name: exponential(n, {"e2e_s": of(load)}) for name, of in classes.items()}
        return Sample(tails, float(n), "growing" if load >= saturates_at else "steady", None)

    return lambda load, seeds: [Run(summary_of(run(load, seed)), sample(load, seed)) for seed in seeds]


def exponential(n: int, missed: Mapping[str, float]) -> Tail:
    """Ratios of which each limit's have an exponential tail, so that just that share of all requests exceeds 1; a
    request is close to one limit only. It has the highest alone."""
    n_kept, limits = min(n, max(2000, n // 20)), tuple(missed)
    ratios = np.zeros((n_kept * len(limits), len(limits)), np.float32)
    with np.errstate(divide="ignore"):
        for k, share in enumerate(missed.values()):
            log_share = np.log((np.arange(n_kept) + 0.5) / n)
            ratios[k * n_kept : (k + 1) * n_kept, k] = log_share / np.log(share) if share < 1 else np.inf
    return Tail(limits, n, ratios, np.arange(len(ratios)), int((ratios > 1).any(axis=1).sum()))


def of_ratios(ratios: Any, limit: str = "ttft_s") -> Sample:
    """A run whose requests have these ratios to one limit."""
    column = np.asarray(ratios, np.float32)[:, None]
    tail = Tail((limit,), len(column), column, np.arange(len(column)), int((column > 1).sum()))
    return Sample({None: tail}, float(len(column)), None, None)


def as_runs(summaries: Iterable[Mapping[str, Any] | Summary]) -> list[Run]:
    """Runs of which only the summary is known."""
    read = [each if isinstance(each, Summary) else summary_of(each) for each in summaries]
    return [Run(each, Sample({}, 1.0, None, None)) for each in read]


def _attained(missed: Mapping[str, float], n: int, n_unlucky: int) -> dict[str, Any]:
    n_met = max(0, round(n * (1 - sum(missed.values()))) - n_unlucky)
    by_slo = {"ttft_s": 1.0, "tpot_s": 1.0} | {key: max(0.0, 1 - share) for key, share in missed.items()}
    ends = {"low_frac": max(0.0, n_met / n - 0.01), "high_frac": min(1.0, n_met / n + 0.01)}
    return {"n_met": n_met, "n_arrived": n, "frac": n_met / n, **ends, "by_slo": by_slo}


def highest_rate(question: CapacityQuestion, runs: RunsAt | None = None) -> Boundary | Unbounded:
    """The highest rate of the scenario, or of a double that runs a load."""
    probed = ProbedLoads(question, runs or runs_at_scale(question))
    return Search(probed, SCALES, Goal(question.goal_frac, question.precision_frac)).highest()
