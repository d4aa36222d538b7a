"""Capacity question: the scenario, goal and precision of a search."""

from dataclasses import dataclass
from functools import cached_property

from simserve.errors import SimserveError, did_you_mean
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.scenario import Scenario
from simserve.study.deterministic_load import is_deterministic


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
