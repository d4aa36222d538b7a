"""Plan tries: fleets of one option under so many times the demand, tried with the same seeds, and what was learnt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.errors import NoArrivals
from simserve.study.capacity.fleet_size import fewest
from simserve.study.capacity.point import LoadPoint
from simserve.study.plan.options import Replicas
from simserve.study.run_seeds import Summary

PROBES = 2
"""Seeds that are run first: where they alone miss more than all seeds may, the others are left out."""

PREFILL, DECODE = "ttft_s", ("tpot_s", "itl_s")
"""SLOs that want more prefill replicas, and those that want more for decoding."""

RunsOf = Callable[[Replicas, float, Sequence[int]], list[Summary]]
"""What comes of a fleet under so many times the demand, with each of some seeds."""


@dataclass(frozen=True)
class Trial:
    """One fleet under one load."""

    replicas: Replicas
    point: LoadPoint
    is_cut: bool
    """The first seeds alone missed more than all may: it surely does not hold, and was not run to the end."""


class FleetSearch:
    """Fleets of one option. Their size is the number of replicas; apart, it is one less, so that the least is 1.

    A fleet that holds also holds less, and larger ones hold, too; what follows from that is not run.
    """

    def __init__(self, runs_of: RunsOf, goal_frac: float, seeds: Sequence[int], *, is_disaggregated: bool) -> None:
        self._runs_of = runs_of
        self._goal_frac = goal_frac
        self._seeds = seeds
        self._is_disaggregated = is_disaggregated
        self._prefill_frac = 0.5
        self._trials: dict[tuple[Replicas, float], Trial] = {}
        self._best: dict[tuple[int, float], Trial] = {}

    def fewest(self, start: int, limit: int, scale: float = 1.0) -> int | None:
        """The least size that holds so many times the demand; None: not even the limit does."""
        return fewest(lambda n: self.holds(n, scale), start, limit)

    def holds(self, n: int, scale: float = 1.0) -> bool:
        """Whether a fleet of that size does."""
        for (other, times), trial in self._best.items():
            is_held = self.is_met(trial)
            is_less, is_more = n <= other and scale >= times, n >= other and scale <= times
            if is_more if is_held else is_less:
                return is_held
        return self.is_met(self.best(n, scale))

    def is_met(self, trial: Trial) -> bool:
        """The goal."""
        return not trial.is_cut and trial.point.attained_frac >= self._goal_frac and not trial.point.is_saturated

    def best(self, n: int, scale: float = 1.0) -> Trial:
        """The fleet of that size, with the split that holds or comes nearest to it."""
        if (n, scale) not in self._best:
            self._best[n, scale] = self._split(n + 1, scale) if self._is_disaggregated else self.trial((n,), scale)
        return self._best[n, scale]

    def trial(self, replicas: Replicas, scale: float = 1.0) -> Trial:
        """This very fleet."""
        if (replicas, scale) not in self._trials:
            self._trials[replicas, scale] = self._run(replicas, scale)
        return self._trials[replicas, scale]

    def may_hold(self, replicas: Replicas, scale: float) -> bool:
        """Whether one seed says so: enough to begin a search with."""
        try:
            point = LoadPoint(scale, tuple(self._runs_of(replicas, scale, self._seeds[:1])))
        except NoArrivals:  # nobody came in so short a time
            return False
        n_met, n_arrived = point.counts.sum(axis=0)
        return bool(n_met >= self._goal_frac * n_arrived and not point.is_saturated)

    def _run(self, replicas: Replicas, scale: float) -> Trial:
        seeds = self._seeds
        runs = self._runs_of(replicas, scale, seeds[:PROBES])
        n_met, n_arrived = LoadPoint(scale, tuple(runs)).counts.sum(axis=0)
        may_miss = (1 - self._goal_frac) * n_arrived * len(seeds) / len(runs)
        if n_arrived - n_met > may_miss:
            return Trial(replicas, LoadPoint(scale, tuple(runs)), is_cut=len(runs) < len(seeds))
        runs += self._runs_of(replicas, scale, seeds[PROBES:]) if len(seeds) > PROBES else []
        return Trial(replicas, LoadPoint(scale, tuple(runs)), is_cut=False)

    def _split(self, total: int, scale: float) -> Trial:
        """Bisect the number of prefill replicas on which side is short, from the share that was best before."""
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
    """Prefill is short rather than decode: fewer meet the first token's SLO than the next ones', unless prompts wait
    because nobody fetches those before them. SLOs of whole answers leave it to the runs to say what binds."""
    binds = [(run.get("transfer") or {}).get("binds") for run in point.runs]
    met = point.by_slo()
    if not met.keys() & {PREFILL, *DECODE}:
        return 2 * binds.count("prefill") > len(binds)
    is_short = met.get(PREFILL, 1.0) < min(met.get(key, 1.0) for key in DECODE)
    return is_short and 2 * binds.count("decode") <= len(binds)
