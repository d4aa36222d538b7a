"""Capacity question: the scenario, goal and precision of a search, and the loads that it has run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from simserve.errors import EndOfLoads, NoArrivals, SimserveError, did_you_mean
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.scenario import Scenario
from simserve.study.capacity.point import LoadPoint
from simserve.study.fleet import is_deterministic
from simserve.study.run_seeds import Run


@dataclass(frozen=True)
class CapacityQuestion:
    """The scenario, goal and precision of a search."""

    scenario: Scenario
    goal_frac: float
    """Share of requests that must meet every SLO."""
    precision_frac: float
    """Largest half-width of the interval, as a share of the answer."""
    effort: Effort = DEFAULT_EFFORT
    """How sure an answer should be, and how many seeds a load may run with."""

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether every seed gives the same run, so that each load needs one run and has no interval."""
        return is_deterministic(self.scenario)

    @property
    def most_seeds(self) -> int:
        """Most seeds that a load runs with."""
        return 1 if self.is_deterministic else self.effort.most_runs


def check_slo(scenario: Scenario) -> None:
    """Raise SimserveError where the scenario has no SLO."""
    if not scenario.slo.classes and not scenario.slo.default.given:
        rule = "needs an SLO, got none"
        raise SimserveError(f"{scenario.name}: {rule}; give one, such as slo: {{ttft_s: 0.5, tpot_s: 0.05}}")


def place_of_pool(scenario: Scenario, name: str, option: str) -> int:
    """Return the index of a pool. Raises SimserveError where no pool has that name."""
    names = [each.name for each in scenario.cluster.pools]
    if name not in names:
        raise SimserveError(f"{option}: must be the name of a pool, got {name}; {did_you_mean(name, names)}")
    return names.index(name)


RunsAt = Callable[[float, Sequence[int]], list[Run]]
"""Runs a load, a multiple of the scenario's own or a number of clients, with each of some seeds."""


class ProbedLoads:
    """The loads of a search, each with its runs."""

    def __init__(self, question: CapacityQuestion, runs_at: RunsAt) -> None:
        self.question = question
        self._runs_at = runs_at
        self._runs: dict[float, list[Run]] = {}

    def at(self, scale: float, n_seeds: int) -> LoadPoint:
        """Return a load with n_seeds runs, or as many as differ; no seed runs twice. Raises NoArrivals, and keeps none
        of the runs, where one of them has no arrivals."""
        n_seeds, first = min(n_seeds, self.question.most_seeds), self.question.scenario.seed
        runs = self._runs.setdefault(scale, [])
        seeds = range(first + len(runs), first + n_seeds)
        if seeds:
            more = self._runs_at(scale, seeds)
            if not all(run.summary.requests.arrived for run in more):
                raise NoArrivals("workload: a request must arrive after the warm-up, got none; make the runs longer")
            runs += more
        return LoadPoint.of(scale, runs[:n_seeds])

    def if_any(self, scale: float, n_seeds: int) -> LoadPoint | None:
        """Return a load as `at` does; None where it cannot run with a seed."""
        try:
            return self.at(scale, n_seeds)
        except EndOfLoads:
            return None

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """All loads in order, each with all its runs."""
        return tuple(LoadPoint.of(scale, runs) for scale, runs in sorted(self._runs.items()) if runs)
