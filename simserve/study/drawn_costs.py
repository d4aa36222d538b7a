"""Drawn costs: runs with each draw of costs, on seeds that the predicted costs also ran, for a decision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from simserve.errors import EndOfLoads
from simserve.metrics.cost_error import Pair
from simserve.metrics.decision import Decision, Effort
from simserve.metrics.goal import CONFIDENCE, LOOKS
from simserve.metrics.tails import Sample
from simserve.scenario import Scenario
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity_probe import near_capacity
from simserve.study.cost_draws import Draw, draws_for, residual_of
from simserve.study.run_seeds import Run, Wanted, run_all
from simserve.workload.load import offered_load


@dataclass(frozen=True)
class DrawnCosts:
    """Draws of costs, and the runs that have them."""

    scenario_at: Callable[[float], Scenario]
    """The scenario with a load of the search. Raises EndOfLoads."""
    draws: Sequence[Draw]
    server_sd: Mapping[str, float]
    """Standard deviations of the logarithms of servers' errors, by limit."""
    seeds: Sequence[int]
    """Seed of each draw: one that the predicted costs also ran."""

    @classmethod
    def of(
        cls, scenario: Scenario, scenario_at: Callable[[float], Scenario], n_seeds: int, most: int = LOOKS[0]
    ) -> "DrawnCosts":
        """Return the draws of a scenario. n_seeds: those that the predicted costs ran, or 1 where all are alike."""
        draws = draws_for(scenario, most)
        seeds = [scenario.seed + place % n_seeds for place in range(len(draws))]
        return cls(scenario_at, draws, residual_of(scenario.setups), seeds)

    def samples(self, wanted: Mapping[int, float]) -> dict[int, Sample]:
        """Run draws, each at a load of its own; none where that load ends the axis."""
        runs = {}
        for place, load in wanted.items():
            try:
                runs[place] = Wanted(self.scenario_at(load), self.seeds[place], self.draws[place][0])
            except EndOfLoads:
                continue
        return dict(zip(runs, run_all(attrgetter("sample"), runs.values()), strict=True))

    def settled(
        self, point: LoadPoint, goal_frac: float, effort: Effort, more: Callable[[range], Sequence[Run]]
    ) -> tuple[LoadPoint, Decision | None]:
        """Return a load with seeds added as `run` adds them, and the decision; None where costs are not drawn.

        more: runs the load with the seeds at those places, counted from 0.
        """
        decision = self.decision(point, goal_frac, effort.confidence)
        for look in effort.looks():
            n = len(point.runs)
            if decision is not None and look > n > 1 and decision.edge_by in ("noise", "load"):
                point = point.with_more(more(range(n, look)))
                decision = replace(decision, runs=_counted(point))
        return point, decision

    def decision(self, point: LoadPoint, goal_frac: float, confidence: float = CONFIDENCE) -> Decision | None:
        """Return the decision about a load with runs of predicted costs; None where costs are not drawn, or no request
        counts."""
        samples, load = point.samples, point.scale
        if not self.draws or not _counted(point):
            return None
        drawn = self.samples(dict.fromkeys(range(len(self.draws)), load))
        pairs = [Pair(samples[place % len(samples)], sample) for place, sample in drawn.items()]
        scenario, first = self.scenario_at(load), point.runs[0]
        offered = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
        near = near_capacity(scenario, offered, first.load.nominal_per_s, first.service_s, self.draws)
        beyond_frac = None if near is None else near.probability
        return Decision(_counted(point), goal_frac, pairs, self.server_sd, beyond_frac, confidence)


def _counted(point: LoadPoint) -> list[Sample]:
    """Return the runs of a load in which a request counts."""
    return [sample for sample in point.samples if sample.n]
