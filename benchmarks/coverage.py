"""Measure the coverage of 95% intervals and the classification of queues on M/M/1, whose answers are known.

    python benchmarks/coverage.py               # 1,000 runs a row: the tables of docs/statistics.md, some minutes
    python benchmarks/coverage.py --runs 100    # rough figures in half a minute

Runs are made by Lindley's recursion in one line rather than by the engine, which gives the same times
(tests/study/test_coverage.py) but takes longer; intervals and states are simserve's own.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.backlog import n_in_system
from simserve.metrics.batches import inefficiency
from simserve.metrics.intervals import ENOUGH, mean_interval, percentile_interval, share_interval
from simserve.metrics.steadiness import Steadiness, steadiness
from simserve.metrics.window import measured_window
from simserve.study.intervals import mean_of, percentile_of, share_of
from simserve.tables.columns import Categorical, Columns

Floats = NDArray[np.float64]

LEVELS = (50.0, 90.0, 99.0, 99.9)
SHARES = (0.9, 0.99)
"""True attainments of the SLOs."""

LENGTHS = (2_000, 10_000, 50_000)
LOADS = (0.5, 0.7, 0.9)
REPLICATIONS = 10


@dataclass(frozen=True)
class Queue:
    """A run of one server, first come, first served; a mean service takes 1 s."""

    arrival_s: Floats
    start_s: Floats
    finish_s: Floats

    @property
    def sojourn_s(self) -> Floats:
        """Return the latency of each request."""
        return self.finish_s - self.arrival_s

    def requests(self) -> Columns:
        """Return the columns of the engine's table."""
        n = len(self.arrival_s)
        columns = {
            "arrival_s": self.arrival_s,
            "finish_s": self.finish_s,
            "gave_up_s": np.full(n, np.nan),
            "status": Categorical(np.zeros(n, np.int32), ("finished",)),
        }
        return columns | {"n_in_system": n_in_system(columns)}

    def steps(self) -> Columns:
        """Return one row per answer, blocked where another request waits at its start."""
        n = len(self.arrival_s)
        waits = np.searchsorted(self.arrival_s, self.start_s, side="right") > np.arange(n) + 1
        return {
            "replica": np.zeros(n, np.int32),
            "start_s": self.start_s,
            "end_s": self.finish_s,
            "blocked_by": Categorical(waits.astype(np.int32) - 1, ("seats",)),
        }


def m_m_1(load: float, n: int, generator: np.random.Generator, *, begins_empty: bool = False) -> Queue:
    """Return a run of n requests; the first sees the stationary queue, or an empty one."""
    gap_s, service_s = generator.exponential(1 / load, n), generator.exponential(1.0, n)
    first_s = 0.0 if begins_empty or generator.random() > load else generator.exponential(1 / (1 - load))
    return queue(np.cumsum(gap_s), service_s, first_s)


def queue(arrival_s: Floats, service_s: Floats, first_wait_s: float = 0.0) -> Queue:
    """Return the run by Lindley (1952): waits are a walk of services less gaps, minus its running minimum below 0."""
    walk = first_wait_s + np.concatenate([[0.0], np.cumsum(service_s[:-1] - np.diff(arrival_s))])
    wait_s = walk - np.minimum(np.minimum.accumulate(walk), 0.0)
    return Queue(arrival_s, arrival_s + wait_s, arrival_s + wait_s + service_s)


def quantile_s(load: float, share: float) -> float:
    """Return the quantile of the sojourn, which is exponential with rate 1 - load."""
    return -math.log(1 - share) / (1 - load)


def within_a_run(load: float, run: Queue) -> dict[str, tuple[bool, bool]]:
    """Return for each figure of one run whether its interval contains the truth, and whether it is bounded above."""
    sojourn_s = run.sojourn_s
    ordered, per_sample = np.sort(sojourn_s), inefficiency(run.requests()["n_in_system"])
    result = {"mean": _held(mean_interval(sojourn_s), 1 / (1 - load))}
    for level in LEVELS:
        ends = percentile_interval(sojourn_s, ordered, level, per_sample)
        result[f"p{level:g}"] = _held(ends, quantile_s(load, level / 100))
    for share in SHARES:
        interval = share_interval(sojourn_s <= quantile_s(load, share), per_sample)
        assert interval is not None
        result[f"SLO {share:.0%}"] = _held((interval.low_frac, interval.high_frac), share)
    short = len(sojourn_s) / per_sample < ENOUGH
    return {name: held for name, held in result.items() if held is not None} | {"short": (short, True)}


def across_runs(load: float, runs: list[Queue]) -> dict[str, tuple[bool, bool]]:
    """Return the same for replications, whose figures are independent."""
    sojourns = [run.sojourn_s for run in runs]
    n_effective = sum(
        len(each) / inefficiency(run.requests()["n_in_system"]) for each, run in zip(sojourns, runs, strict=True)
    )
    result = {"mean": (mean_of([float(each.mean()) for each in sojourns]), 1 / (1 - load))}
    for level in LEVELS:
        values = [float(np.percentile(each, level)) for each in sojourns]
        estimate = percentile_of(values, 1 - level / 100, n_effective / len(runs))
        result[f"p{level:g}"] = (estimate, quantile_s(load, level / 100))
    for share in SHARES:
        values = [float(np.mean(each <= quantile_s(load, share))) for each in sojourns]
        result[f"SLO {share:.0%}"] = (share_of(values, n_effective), share)
    return {name: (each.low <= truth <= each.high, math.isfinite(each.high)) for name, (each, truth) in result.items()}


def state_of(load: float, n: int, generator: np.random.Generator) -> Steadiness:
    """Return the state of a run that begins empty, with a fifteenth as warm-up, as in chat_burst."""
    run = m_m_1(load, n, generator, begins_empty=True)
    requests = run.requests()
    warmup = {"warmup_s": float(run.arrival_s[n // 15])}
    window = measured_window(requests, warmup, float(run.arrival_s[-1]), float(run.finish_s[-1]))
    return steadiness(requests, run.steps(), window, [0])


def _held(ends: tuple[float, float | None] | None, truth: float) -> tuple[bool, bool] | None:
    if ends is None:
        return None
    low, high = ends
    return low <= truth and (high is None or truth <= high), high is not None


def _row(cells: Iterable[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _print_coverage(title: str, rows: Iterable[tuple[str, list[dict[str, tuple[bool, bool]]]]]) -> None:
    names = ["mean", *(f"p{level:g}" for level in LEVELS), *(f"SLO {share:.0%}" for share in SHARES)]
    print(f"\n{title}\n")
    _row(["load, requests", *names, "short"])
    _row(["---"] * (len(names) + 2))
    for label, result in rows:
        cells = []
        for name in names:
            text = [each[name] for each in result if name in each]
            n_open = sum(not bounded for _, bounded in text)
            is_open = f" ({n_open / len(text):.0%} open)" if n_open else ""
            cells.append(f"{100 * np.mean([held for held, _ in text]):.1f}{is_open}" if text else "too few")
        n_short = [each["short"][0] for each in result if "short" in each]
        _row([label, *cells, f"{np.mean(n_short):.0%}" if n_short else ""])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure how often intervals contain the truth.")
    parser.add_argument("--runs", type=int, default=1000)
    n_runs = parser.parse_args().runs
    rng = np.random.default_rng
    _print_coverage(
        f"Within one run, of {n_runs:,} (%)",
        (
            (f"{load}, {n:,}", [within_a_run(load, m_m_1(load, n, rng([1, i, n]))) for i in range(n_runs)])
            for load in LOADS
            for n in LENGTHS
        ),
    )
    _print_coverage(
        f"Over {REPLICATIONS} replications, of {n_runs:,} times (%)",
        (
            (f"{load}, {n:,}", [_replicated(load, n, i) for i in range(n_runs)])
            for load in LOADS
            for n in LENGTHS[: 3 if load > 0.8 else 2]
        ),
    )
    print("\nHow the queue is classified (%)\n")
    states = ("steady", "undetermined", "critical", "growing")
    _row(["load, requests", *states])
    _row(["---"] * (len(states) + 1))
    for n in (1_000, 3_000, 10_000, 30_000):
        for load in (0.7, 0.9, 1.0, 1.1):
            called = Counter(state_of(load, n, rng([3, i, n])).state for i in range(max(n_runs // 2, 1)))
            _row([f"{load}, {n:,}", *(f"{100 * called[state] / called.total():.1f}" for state in states)])


def _replicated(load: float, n: int, i: int) -> dict[str, tuple[bool, bool]]:
    return across_runs(load, [m_m_1(load, n, np.random.default_rng([2, i, n, r])) for r in range(REPLICATIONS)])


if __name__ == "__main__":
    main()
