"""Criterion: what a load must meet: every SLO of every request, one SLO alone, or the SLOs of one class."""

from dataclasses import dataclass, replace

from simserve.metrics.answer import Outcome, outcomes, whole_outcome
from simserve.scenario import Scenario
from simserve.study.run_seeds import Summary


@dataclass(frozen=True)
class Criterion:
    """The SLO and the class that count."""

    slo: str | None = None
    """None: every SLO."""
    slo_class: str | None = None
    """None: all classes."""

    def outcome(self, run: Summary) -> Outcome | None:
        """Return what a run attained under this criterion; None where no request counts."""
        if self.slo_class is not None:
            return outcomes(run).get(self.slo_class)
        whole = whole_outcome(run)
        if whole is None or self.slo is None:
            return whole
        return replace(whole, attained_frac=run["slo_attainment"]["by_slo"][self.slo])


EVERYTHING = Criterion()
"""Every request meets every SLO that it has."""


def single_criteria(scenario: Scenario) -> tuple[Criterion, ...]:
    """Return each SLO alone, then each class with targets alone; nothing where there is only one."""
    slo = scenario.slo
    targets = (slo.default, *slo.classes.values())
    keys = [key for key in type(slo.default).model_fields if any(getattr(each, key) is not None for each in targets)]
    criteria = (*(Criterion(slo=key) for key in keys), *(Criterion(slo_class=name) for name in slo.classes))
    return criteria if len(criteria) > 1 else ()
