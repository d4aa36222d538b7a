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
        result = whole.get("slo_attainment")
        if not result or not result["n_arrived"]:
            return 0, 0
        n_arrived = int(result["n_arrived"])
        return (int(result["n_met"]) if self.slo is None else round(result["by_slo"][self.slo] * n_arrived)), n_arrived


EVERYTHING = Criterion()
"""Every request meets every SLO that it has."""


def parts_of(scenario: Scenario) -> tuple[Criterion, ...]:
    """Each SLO alone, then each class with targets alone; nothing where that is no more than the whole."""
    slo = scenario.slo
    targets = (slo.default, *slo.classes.values())
    keys = [key for key in type(slo.default).model_fields if any(getattr(each, key) is not None for each in targets)]
    result = (*(Criterion(slo=key) for key in keys), *(Criterion(slo_class=name) for name in slo.classes))
    return result if len(result) > 1 else ()
