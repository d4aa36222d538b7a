"""The question of a sweep: its points, seeds and goal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.metrics.goal import GOAL_FRAC
from simserve.scenario import Scenario
from simserve.scenario.template import Override, Template
from simserve.study.deterministic_load import check_not_deterministic
from simserve.study.fleet import gains_by_replicas, of_any_size
from simserve.study.sweep.points import SweepAxis, SweepPoint, grid, resolved
from simserve.study.sweep.run import key_of


@dataclass(frozen=True)
class SweepQuestion:
    """Points, seeds and goal of a sweep; at least one point is valid."""

    points: tuple[SweepPoint, ...]
    n_seeds: int
    """Seeds shared by all points."""
    goal_frac: float = GOAL_FRAC
    effort: Effort = DEFAULT_EFFORT

    @classmethod
    def of(
        cls,
        template: Template,
        axes: Sequence[SweepAxis],
        listed: Sequence[tuple[Override, ...]],
        n_seeds: int,
        goal_frac: float,
        effort: Effort,
    ) -> "SweepQuestion":
        """Return the question about each combination. Raises SimserveError before anything runs."""
        points = resolved(template, grid(axes, listed, n_seeds))
        for point in points if n_seeds > 1 else ():
            if point.scenario is not None:
                check_not_deterministic(point.scenario, "--replications", n_seeds)
        return cls(points, n_seeds, goal_frac, effort)

    @property
    def first(self) -> Scenario:
        """Return the scenario of the first valid point."""
        return next(point.scenario for point in self.points if point.scenario is not None)

    @property
    def seeds(self) -> range:
        """Return the seeds that all points share."""
        return range(self.first.seed, self.first.seed + self.n_seeds)

    def key(self, place: int, at: int) -> str | None:
        """Return the key of a run by point and seed index; None for conflicting values."""
        scenario = self.points[place].scenario
        if scenario is None:
            return None
        if (place, at) not in self._known:
            self._known[place, at] = key_of(scenario, self.first.seed + at)
        return self._known[place, at]

    @cached_property
    def _known(self) -> dict[tuple[int, int], str]:
        """Return the cache of keys, as each takes a digest."""
        return {}

    @cached_property
    def smaller(self) -> Mapping[int, Sequence[int]]:
        """Return the points that differ from a point by fewer replicas alone, where more never make an SLO worse."""
        known = {place: point.scenario for place, point in enumerate(self.points) if point.scenario is not None}
        sizes = {place: each.cluster.pools[0].replicas for place, each in known.items()}
        if len(set(sizes.values())) == 1:
            return {}
        alike: dict[str, list[int]] = {}
        for place, scenario in known.items():
            alike.setdefault(of_any_size(scenario), []).append(place)
        groups = [group for group in alike.values() if len(group) > 1 and gains_by_replicas(known[group[0]])]
        return {a: [b for b in group if sizes[b] < sizes[a]] for group in groups for a in group}

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the keys of runs with shared seeds; identical points count once."""
        every = (self.key(place, at) for place in range(len(self.points)) for at in range(self.n_seeds))
        return frozenset(key for key in every if key is not None)
