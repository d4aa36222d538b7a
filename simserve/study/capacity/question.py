"""Question: what a search for a capacity is asked."""

from dataclasses import dataclass
from functools import cached_property

from simserve.errors import SimserveError, did_you_mean
from simserve.scenario import Scenario
from simserve.study.deterministic_load import is_deterministic
from simserve.study.slo_answer import MOST_SEEDS


@dataclass(frozen=True)
class CapacityQuestion:
    """What is asked."""

    scenario: Scenario
    goal_frac: float
    """Of all requests, how many must meet every SLO."""
    precision_frac: float
    """How wide half the interval may be, as a share of the answer."""

    @cached_property
    def is_deterministic(self) -> bool:
        """Every seed gives the same run: each load is tried with one, and no interval is over seeds."""
        return is_deterministic(self.scenario)

    @property
    def most_seeds(self) -> int:
        """More of them tell nothing more, or are not tried."""
        return 1 if self.is_deterministic else MOST_SEEDS


def check_slo(scenario: Scenario) -> None:
    """Raises SimserveError where there is none."""
    if not scenario.slo.classes and all(limit is None for _, limit in scenario.slo.default):
        rule = "needs an slo to be held to, got none"
        raise SimserveError(f"{scenario.name}: {rule}; give one, such as slo: {{ttft_s: 0.5, tpot_s: 0.05}}")


def place_of_pool(scenario: Scenario, name: str, option: str) -> int:
    """Which pool of the scenario is meant. Raises SimserveError where none is called so."""
    names = [each.name for each in scenario.cluster.pools]
    if name not in names:
        raise SimserveError(f"{option}: must be the name of a pool, got {name}; {did_you_mean(name, names)}")
    return names.index(name)
