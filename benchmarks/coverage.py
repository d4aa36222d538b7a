"""Measure the coverage of intervals and the classification of queues on single servers, whose answers are known.

    python benchmarks/coverage.py               # 1,000 runs a row: the tables of docs/statistics.md, some minutes
    python benchmarks/coverage.py --runs 100    # rough figures in half a minute

Runs are made by Lindley's recursion in one line rather than by the engine, which gives the same times
(tests/study/test_coverage.py) but takes longer; intervals and states are simserve's own.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics import summary_schema
from simserve.metrics.answer import Outcome
from simserve.metrics.decision import Decision
from simserve.metrics.goal import LOOKS
from simserve.metrics.intervals import ENOUGH, inefficiency, mean_interval, percentile_interval, share_interval
from simserve.metrics.reliability import Steadiness, steadiness
from simserve.metrics.stats import LatencyJson
from simserve.metrics.tails import Sample, Tail
from simserve.metrics.window import measured_window, n_in_system
from simserve.study.cost_draws import REPLAYS, RESIDUAL_SD, CostSpread, draws_of
from simserve.study.intervals import mean_of, percentile_of, share_of
from simserve.study.prediction import ScaledReplays, prediction_over
from simserve.study.run_figures import RunFigures, log_error
from simserve.study.uncertainty import MOST_WHOLE, RUN_IN_FRAC, SEGMENT
from simserve.tables.columns import Categorical, Columns

Floats = NDArray[np.float64]

LEVELS = (50.0, 90.0, 99.0, 99.9)
SHARES = (0.9, 0.99)
"""True attainments of the SLOs."""

REPLAYED_LENGTHS = (8_000, MOST_WHOLE, MOST_WHOLE + 1, 60_000)
COST_SD = 0.1
"""Spread of the logarithm of service times, as of costs known to 10%."""
RESIDUAL = RESIDUAL_SD["e2e_s"]

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


@dataclass(frozen=True)
class Replayed:
    """A single server with an SLO that 99% of requests meet at the predicted costs, and whose costs are uncertain."""

    load: float
    is_bursty: bool
    """Arrivals that switch between a calm and a burst of more than the server can take; else they are Poisson."""

    def arrivals_s(self, n: int, generator: np.random.Generator) -> Floats:
        """Draw n instants; bursts last 80 s and calms 400 s on average, at 3 and 0.6 times the load."""
        if not self.is_bursty:
            return np.cumsum(generator.exponential(1 / self.load, n))
        dwells_s = generator.exponential(np.tile([400.0, 80.0], 2 * int(n / self.load / 480) + 20))
        ends_s = np.cumsum(dwells_s)
        counts = generator.poisson(dwells_s * np.tile([0.6 * self.load, 3 * self.load], len(dwells_s) // 2))
        drawn_s = np.repeat(ends_s - dwells_s, counts) + generator.random(counts.sum()) * np.repeat(dwells_s, counts)
        return np.sort(drawn_s)[:n]

    def runs(
        self, n: int, n_run_in: int, slo_s: float, seed: Sequence[int], *costs: tuple[float, float]
    ) -> list[RunFigures]:
        """Return the figures of runs of one load with several costs: factors on services, and on all latencies."""
        generator = np.random.default_rng(seed)
        arrival_s, service_s = self.arrivals_s(n, generator), generator.exponential(1.0, n)
        off_frac = (n - n_run_in) / (self.load * (arrival_s[-1] - arrival_s[n_run_in])) - 1
        return [
            _figures(queue(arrival_s, service_s * cost), n_run_in, residual, slo_s, off_frac)
            for cost, residual in costs
        ]

    def slo_s(self, n: int = 1_000_000) -> float:
        """Return the p99 of a long run."""
        (figures,) = self.runs(n, 1_000, 1.0, [7], (1.0, 1.0))
        return figures.latencies["e2e_s"]["p99"]

    def replayed(self, n: int, slo_s: float, i: int) -> tuple[dict[str, Sequence[float] | None], float]:
        """Return the prediction intervals and P(SLO) of a run and its replays."""
        factors = draws_of(CostSpread(COST_SD, 0.0, 0.0, 0.0, 0.0, 0.0), REPLAYS, i)
        costs = [(distortion.compute, residual["e2e_s"]) for distortion, residual in factors]
        (run,) = self.runs(n, n // 15, slo_s, [9, i, n], (1.0, 1.0))
        if n <= MOST_WHOLE:
            whole = [self.runs(n, n // 15, slo_s, [10, i, n, k], cost)[0] for k, cost in enumerate(costs)]
        else:
            n_run_in = int(RUN_IN_FRAC * SEGMENT)
            pairs = [
                self.runs(SEGMENT, n_run_in, slo_s, [10, i, n, k], (1.0, 1.0), cost) for k, cost in enumerate(costs)
            ]
            whole = ScaledReplays(run, [each[0] for each in pairs], [each[1] for each in pairs], is_drawn=True).whole()
        result = prediction_over(run, whole)
        chance = result.slo_probability
        held = float(result.n_met == REPLAYS) if chance is None else chance
        return dict(result.latencies["e2e_s"]), held


def _figures(run: Queue, n_run_in: int, residual: float, slo_s: float, off_frac: float) -> RunFigures:
    sojourn_s = run.sojourn_s[n_run_in:] * residual
    ordered, per_sample, n = np.sort(sojourn_s), inefficiency(run.requests()["n_in_system"][n_run_in:]), len(sojourn_s)
    latencies = {"mean": float(sojourn_s.mean())} | {
        f"p{each}": float(np.percentile(ordered, each)) for each in (50, 90, 99)
    }
    ends = {"mean": mean_interval(sojourn_s)} | {
        f"p{each}": percentile_interval(sojourn_s, ordered, each, per_sample) for each in (50, 90, 99)
    }
    outcome = Outcome(
        attained_frac=float(np.mean(sojourn_s <= slo_s)),
        n_arrived=n,
        n_effective=n / per_sample,
        off_frac=off_frac,
        is_far_below=False,
        queue="steady",
        by_slo={},
    )
    known: dict[str, Any] = {**latencies, "intervals": ends}
    sample = LatencyJson.model_construct(None, **known)
    errors = {level: log_error(sample, level) for level in latencies}
    return RunFigures({"e2e_s": latencies}, {None: outcome}, n, {"e2e_s": errors})


def _attained(run: RunFigures) -> float:
    return run.outcomes[None].attained_frac


def _normal(n: int) -> list[float]:
    return [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]


def over_replays(system: Replayed, n: int, slo_s: float, n_runs: int) -> dict[str, float]:
    """Return the coverage of predictions of real runs, whose costs are drawn, and the P(SLO)."""
    generator = np.random.default_rng([11, n])
    costs = np.exp(generator.normal(0.0, 1.0, (n_runs, 2)) * [COST_SD, RESIDUAL]).tolist()
    real = [system.runs(n, n // 15, slo_s, [12, i, n], (cost, residual))[0] for i, (cost, residual) in enumerate(costs)]
    replayed = [system.replayed(n, slo_s, i) for i in range(n_runs)]
    result = {
        level: float(
            np.mean(
                [
                    low <= run.latencies["e2e_s"][level] <= high
                    for run in real
                    for low, high in (each[0][level] or (math.nan, math.nan) for each in replayed)
                ]
            )
        )
        for level in ("mean", "p50", "p90", "p99")
    }
    return result | {
        "P(SLO)": float(np.mean([each[1] for each in replayed])),
        "met": float(np.mean([_attained(run) >= 0.99 for run in real])),
    }


TRUE_RATIOS = (0.7, 0.9, 1.1)
"""True r of the margins that are decided."""


@dataclass(frozen=True)
class Margins:
    """Studies of a server that decide by the margin of the p99, by noise alone."""

    system: Replayed
    n: int
    """Requests of a run, run-in included."""

    def sample(self, p99_s: float, *seed: int) -> Sample:
        """Return a run with an SLO of which r is truly 1."""
        generator = np.random.default_rng([*seed, self.n])
        arrival_s, n_run_in = self.system.arrivals_s(self.n, generator), self.n // 15
        run = queue(arrival_s, generator.exponential(1.0, self.n))
        ratios = run.sojourn_s[n_run_in:, None] / p99_s
        n = len(ratios)
        off_frac = n / (self.system.load * (arrival_s[-1] - arrival_s[n_run_in])) - 1
        n_effective = n / inefficiency(run.requests()["n_in_system"][n_run_in:])
        tail = Tail(("e2e_s",), n, ratios, np.arange(n), int(np.count_nonzero(ratios > 1)))
        return Sample({None: tail}, n_effective, "steady", off_frac)

    def p99_s(self, n_runs: int) -> float:
        """Return the p99 of so many runs together."""
        runs = [self.sample(1.0, 20, i).tails[None].ratios[:, 0] for i in range(n_runs)]
        return float(np.quantile(np.concatenate(runs), 0.99, method="inverted_cdf"))

    def figures(self, n_studies: int) -> dict[str, float]:
        """Return the coverage of 95% intervals of r at each look and when decided, and the share of "meets"."""
        p99_s = self.p99_s(min(2000, 400 + 20 * n_studies))
        held: dict[str, list[tuple[float, float]]] = {}
        for i in range(n_studies):
            runs = [self.sample(p99_s, 21, i, k) for k in range(LOOKS[-1])]
            for look in LOOKS:
                low, high = Decision(runs[:look], 0.99).margin.interval(0.95)
                held.setdefault(f"{look} runs", []).append((low <= 1 <= high, high < 1))
            for r in TRUE_RATIOS:
                decision = decided([_scaled(run, r) for run in runs])
                low, high = decision.margin.interval(0.95)
                held.setdefault(f"decided at {r}", []).append((low <= r <= high, high < r))
                held.setdefault(f"meets at {r}", []).append((decision.word == "meets", 0.0))
        shares = {name: np.mean(pairs, axis=0) for name, pairs in held.items()}
        below = {f"{name}, below": float(share[1]) for name, share in shares.items()}
        return {name: float(share[0]) for name, share in shares.items()} | below


def decided(runs: Sequence[Sample]) -> Decision:
    """Return the decision of a study, with more of the runs as long as noise may change it."""
    for look in LOOKS:
        decision = Decision(runs[:look], 0.99)
        if decision.edge_by is None:
            break
    return decision


def _scaled(run: Sample, r: float) -> Sample:
    """Return a run with all latencies times r."""
    tail = run.tails[None]
    n_missed = int(np.count_nonzero(tail.ratios * r > 1))
    return replace(run, tails={None: replace(tail, ratios=tail.ratios * r, n_missed=n_missed)})


def _held(ends: tuple[float, float | None] | None, truth: float) -> tuple[bool, bool] | None:
    if ends is None:
        return None
    low, high = ends
    return low <= truth and (high is None or truth <= high), high is not None


MARGINS = {
    "Poisson 0.7, 10,000": Margins(Replayed(0.7, is_bursty=False), 10_000),
    "Poisson 0.9, 10,000": Margins(Replayed(0.9, is_bursty=False), 10_000),
    "bursts, 8,000": Margins(Replayed(0.55, is_bursty=True), 8_000),
    "bursts, 2,000": Margins(Replayed(0.55, is_bursty=True), 2_000),
}


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
    parser.add_argument("--margins", action="store_true", help="print the table of margins alone")
    given = parser.parse_args()
    n_runs = given.runs
    if given.margins:
        _print_margins(max(n_runs // 2, 1))
        return
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
    print("\nReplays (%)\n")
    names = ("mean", "p50", "p90", "p99", "P(SLO)", "met")
    _row(["arrivals, requests", *names])
    _row(["---"] * (len(names) + 1))
    for label, system in (("Poisson", Replayed(0.7, is_bursty=False)), ("bursts", Replayed(0.55, is_bursty=True))):
        slo_s = system.slo_s()
        for n in REPLAYED_LENGTHS:
            result = over_replays(system, n, slo_s, max(n_runs // 4, 1))
            _row([f"{label}, {n:,}", *(f"{100 * result[name]:.1f}" for name in names)])
    _print_margins(max(n_runs // 2, 1))
    print("\nHow the queue is classified (%)\n")
    states: tuple[summary_schema.Queue, ...] = ("steady", "undetermined", "critical", "growing")
    _row(["load, requests", *states])
    _row(["---"] * (len(states) + 1))
    for n in (1_000, 3_000, 10_000, 30_000):
        for load in (0.7, 0.9, 1.0, 1.1):
            called = Counter(state_of(load, n, rng([3, i, n])).state for i in range(max(n_runs // 2, 1)))
            _row([f"{load}, {n:,}", *(f"{100 * called[state] / called.total():.1f}" for state in states)])


def _print_margins(n_studies: int) -> None:
    print("\nMargins by noise (%)\n")
    looks = [f"{look} runs" for look in LOOKS]
    at_ratios = [f"decided at {r}" for r in TRUE_RATIOS]
    _row(["arrivals, requests", *looks, *at_ratios, *(f"meets at {r}" for r in TRUE_RATIOS)])
    _row(["---"] * (1 + len(looks) + 2 * len(at_ratios)))
    for label, margins in MARGINS.items():
        found = margins.figures(n_studies)
        held = [f"{100 * found[name]:.1f} ({100 * found[f'{name}, below']:.1f})" for name in (*looks, *at_ratios)]
        _row([label, *held, *(f"{100 * found[f'meets at {r}']:.0f}" for r in TRUE_RATIOS)])


def _replicated(load: float, n: int, i: int) -> dict[str, tuple[bool, bool]]:
    return across_runs(load, [m_m_1(load, n, np.random.default_rng([2, i, n, r])) for r in range(REPLICATIONS)])


if __name__ == "__main__":
    main()
