"""Search for the smallest fleet of an option that meets the SLO at a multiple of the demand, with the same seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.errors import NoArrivals
from simserve.metrics.answer import Attained
from simserve.metrics.decision import DEFAULT_EFFORT, Decision, Effort
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC
from simserve.study.capacity.fleet_size import MOST_FOR_COSTS, fewest
from simserve.study.capacity.point import LoadPoint
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.plan.options import Replicas
from simserve.study.run_seeds import Run

PROBES = 2
"""Seeds run first; if they alone exceed the misses allowed to all seeds, the rest are skipped."""

PREFILL, DECODE = "ttft_s", ("tpot_s", "itl_s")
"""SLOs that prefill replicas determine, and those that decode replicas determine."""

RunsOf = Callable[[Replicas, float, Sequence[int]], list[Run]]
"""Maps a fleet, a multiple of the demand and seeds to one run per seed."""

CostsOf = Callable[[Replicas], DrawnCosts]
"""Maps a fleet to the draws of its costs."""


@dataclass(frozen=True)
class Trial:
    """One fleet under one load."""

    replicas: Replicas
    point: LoadPoint
    is_cut: bool
    """Whether the remaining seeds were skipped because the first ones exceed the allowed misses."""
    decision: Attained
    """Whether it meets the SLO."""
    is_settled: bool = False
    """Seeds were added where it was on the edge, so that its decision stands."""
    judged: Decision | None = None
    """The decision with the error of costs; None before it is settled, and where costs count as exact."""


class FleetSearch:
    """Fleets of one option. Size is the number of replicas; disaggregated, it is one less, so that the least is 1.
    Meeting the SLO is taken to be monotonic in size and load; fleets that this decides are not run."""

    def __init__(
        self,
        runs_of: RunsOf,
        goal_frac: float,
        seeds: range,
        *,
        is_disaggregated: bool,
        effort: Effort = DEFAULT_EFFORT,
        costs_of: CostsOf | None = None,
    ) -> None:
        """Take the first seeds, and how many an edge at the full demand may use.

        costs_of: draws of a fleet's costs; None: costs count as exact.
        """
        self._costs_of = costs_of
        self._effort = effort
        self._runs_of = runs_of
        self._goal_frac = goal_frac
        self._seeds = seeds
        self._is_disaggregated = is_disaggregated
        self._prefill_frac = 0.5
        self._trials: dict[tuple[Replicas, float], Trial] = {}
        self._best: dict[tuple[int, float], Trial] = {}

    def fewest(self, start: int, limit: int, scale: float = 1.0) -> int | None:
        """Return the least size that meets the SLO at a multiple of the demand; None if the limit does not."""
        return fewest(lambda n: self.holds(n, scale), start, limit)

    def holds(self, n: int, scale: float = 1.0) -> bool:
        """Return whether a fleet of that size meets the SLO."""
        for (other, times), trial in self._best.items():
            is_held = self.is_met(trial)
            is_less, is_more = n <= other and scale >= times, n >= other and scale <= times
            if is_more if is_held else is_less:
                return is_held
        return self.is_met(self.best(n, scale))

    def is_met(self, trial: Trial) -> bool:
        """Return whether a fleet surely meets the SLO; before it is settled, whether its mean does."""
        if trial.is_settled:
            return trial.decision == "met"
        return not trial.is_cut and trial.point.holds(self._goal_frac)

    def sure(self, n: int, limit: int) -> int | None:
        """Return the least size about n that surely meets the SLO under the demand; None: not even the limit does."""
        return fewest(lambda size: self._settled(size).decision == "met", n, min(limit, MOST_FOR_COSTS * n))

    def tied(self, n: int) -> Trial | None:
        """Return the smallest statistically tied fleet below a size; None without one."""
        result = None
        while n > 1 and (trial := self._settled(n - 1)).decision == "edge":
            result, n = trial, n - 1
        return result

    def _settled(self, n: int) -> Trial:
        """Return the fleet of that size under the demand, with seeds added where noise leaves it on the edge."""
        trial = self.best(n)
        if trial.is_settled or trial.is_cut:
            return trial
        point, run = trial.point, self._runner(trial.replicas, 1.0)
        if len(self._seeds) > 1:
            point = point.decided(self._goal_frac, run, self._effort)
        decision, judged = point.decision(self._goal_frac), None
        if self._costs_of is not None and decision == "met":
            point, judged = self._costs_of(trial.replicas).settled(point, self._goal_frac, self._effort, run)
            decision = "met" if judged is None else judged.old_word
        trial = Trial(trial.replicas, point, False, decision, is_settled=True, judged=judged)
        self._trials[trial.replicas, 1.0] = self._best[n, 1.0] = trial
        return trial

    def _runner(self, replicas: Replicas, scale: float) -> Callable[[range], list[Run]]:
        """Return what runs a fleet with the seeds at some places, counted from the first."""
        first = self._seeds.start
        return lambda places: self._runs_of(replicas, scale, range(first + places.start, first + places.stop))

    def best(self, n: int, scale: float = 1.0) -> Trial:
        """Return the fleet of that size with the best split."""
        if (n, scale) not in self._best:
            self._best[n, scale] = self._split(n + 1, scale) if self._is_disaggregated else self.trial((n,), scale)
        return self._best[n, scale]

    def trial(self, replicas: Replicas, scale: float = 1.0) -> Trial:
        """Return the trial of exactly this fleet."""
        if (replicas, scale) not in self._trials:
            self._trials[replicas, scale] = self._run(replicas, scale)
        return self._trials[replicas, scale]

    def may_hold(self, replicas: Replicas, scale: float) -> bool:
        """Return whether one seed leaves it possible that the SLO is met: enough to start a search."""
        try:
            point = LoadPoint.of(scale, self._runs_of(replicas, scale, self._seeds[:1]))
        except NoArrivals:  # no request came in so short a time
            return False
        return point.decision(self._goal_frac) != "missed"

    def _run(self, replicas: Replicas, scale: float) -> Trial:
        n_seeds, run = len(self._seeds), self._runner(replicas, scale)
        first = LoadPoint.of(scale, run(range(min(PROBES, n_seeds))))
        if len(first.runs) < n_seeds and self._is_hopeless(first):
            return Trial(replicas, first, is_cut=True, decision="missed")
        left = range(len(first.runs), n_seeds)
        point = first.with_more(run(left)) if left else first
        return Trial(replicas, point, is_cut=False, decision=point.decision(self._goal_frac))

    def _is_hopeless(self, first: LoadPoint) -> bool:
        """Return whether the first seeds exceed the misses allowed to all, and not by drawing too high a load."""
        missed_frac = 1 - first.attained_frac
        may_miss = (1 - self._goal_frac) * len(self._seeds) / len(first.runs)
        return missed_frac > may_miss and (first.load.off_frac or 0.0) <= LOAD_TOLERANCE_FRAC

    def _split(self, total: int, scale: float) -> Trial:
        """Bisect the number of prefill replicas by which side is short, from the last best share."""
        least, most = 1, total - 1
        result: list[Trial] = []
        n_prefill = round(total * self._prefill_frac)
        while least <= most:
            n_prefill = min(max(n_prefill, least), most)
            result.append(self.trial((n_prefill, total - n_prefill), scale))
            if self.is_met(result[-1]):
                break
            if _wants_prefill(result[-1].point):
                least = n_prefill + 1
            else:
                most = n_prefill - 1
            n_prefill = (least + most) // 2
        best = max(result, key=lambda trial: (self.is_met(trial), trial.point.attained_frac))
        self._prefill_frac = best.replicas[0] / total
        return best


def _wants_prefill(point: LoadPoint) -> bool:
    """Return whether prefill, not decode, is short: fewer requests meet TTFT than TPOT or ITL. If decode stalls the
    transfers, decode is short; with E2E SLOs alone, the binding side of the runs decides."""
    binds = [run.transfer.binds if run.transfer else None for run in point.runs]
    met = point.by_slo()
    if not met.keys() & {PREFILL, *DECODE}:
        return 2 * binds.count("prefill") > len(binds)
    is_short = met.get(PREFILL, 1.0) < min(met.get(key, 1.0) for key in DECODE)
    return is_short and 2 * binds.count("decode") <= len(binds)
