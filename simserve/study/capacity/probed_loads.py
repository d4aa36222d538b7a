"""Probed loads: the loads of a search that were run, all with the same seeds, so that none is run twice."""

from collections.abc import Callable, Sequence

from simserve.errors import EndOfLoads, NoArrivals
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.run_seeds import Run

RunsAt = Callable[[float, Sequence[int]], list[Run]]
"""Runs a load, a multiple of the scenario's own or a number of clients, with each of some seeds."""


class ProbedLoads:
    """The loads of a search, each with its runs."""

    def __init__(self, question: CapacityQuestion, runs_at: RunsAt) -> None:
        self.question = question
        self._runs_at = runs_at
        self._runs: dict[float, list[Run]] = {}

    def at(self, scale: float, n_seeds: int) -> LoadPoint:
        """Return a load with n_seeds runs, or as many as differ; no seed runs twice.

        Raises NoArrivals, and keeps none of the runs, where one of them has no arrivals.
        """
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
