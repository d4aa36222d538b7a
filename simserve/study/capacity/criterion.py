"""Criterion: what a load is held to: every SLO of every request, one SLO alone, or the SLOs of one class."""

from dataclasses import dataclass

from simserve.scenario import Scenario
from simserve.study.run_seeds import Summary


@dataclass(frozen=True)
class Criterion:
    """Which requests are asked about, and which SLO of theirs."""

    slo: str | None = None
    """None: all that they have."""
    slo_class: str | None = None
    """None: those of all classes."""

    def counts(self, run: Summary) -> tuple[int, int]:
        """Requests of a run that met it, and all that were asked about."""
        whole = run if self.slo_class is None else run["classes"].get(self.slo_class, {})
        found = whole.get("slo_attainment")
        if not found or not found["n_arrived"]:
            return 0, 0
        n_arrived = int(found["n_arrived"])
        return (int(found["n_met"]) if self.slo is None else round(found["by_slo"][self.slo] * n_arrived)), n_arrived


EVERYTHING = Criterion()
"""Every request meets every SLO that it has."""


def parts_of(scenario: Scenario) -> tuple[Criterion, ...]:
    """Each SLO alone, then each class with targets alone; nothing where that is no more than the whole."""
    slo = scenario.slo
    targets = (slo.default, *slo.classes.values())
    keys = [key for key in type(slo.default).model_fields if any(getattr(each, key) is not None for each in targets)]
    found = (*(Criterion(slo=key) for key in keys), *(Criterion(slo_class=name) for name in slo.classes))
    return found if len(found) > 1 else ()
