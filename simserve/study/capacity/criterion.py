"""Criterion: what a load is held to: every SLO of every request, one SLO alone, or the SLOs of one class."""

from dataclasses import dataclass, replace

from simserve.metrics.answer import Outcome, outcomes, whole_outcome
from simserve.scenario import Scenario
from simserve.study.run_seeds import Summary


@dataclass(frozen=True)
class Criterion:
    """Which requests are asked about, and which SLO of theirs."""

    slo: str | None = None
    """None: all that they have."""
    slo_class: str | None = None
    """None: those of all classes."""

    def outcome(self, run: Summary) -> Outcome | None:
        """Return what a run attained by this criterion alone; None where no request counts."""
        if self.slo_class is not None:
            return outcomes(run).get(self.slo_class)
        whole = whole_outcome(run)
        if whole is None or self.slo is None:
            return whole
        return replace(whole, attained_frac=run["slo_attainment"]["by_slo"][self.slo])


EVERYTHING = Criterion()
"""Every request meets every SLO that it has."""


def parts_of(scenario: Scenario) -> tuple[Criterion, ...]:
    """Each SLO alone, then each class with targets alone; nothing where that is no more than the whole."""
    slo = scenario.slo
    targets = (slo.default, *slo.classes.values())
    keys = [key for key in type(slo.default).model_fields if any(getattr(each, key) is not None for each in targets)]
    result = (*(Criterion(slo=key) for key in keys), *(Criterion(slo_class=name) for name in slo.classes))
    return result if len(result) > 1 else ()
