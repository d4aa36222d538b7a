"""Cost: what a fleet costs for a load; each sum twice, as a number and as the formula that a spreadsheet computes."""

import math
from dataclasses import dataclass

from simserve.report.spreadsheet.cost_basis import Basis, gpus_name, price_name

ALMOST = "0.000000001"
"""A need of 4.0000000001 units is one of 4: what is left is rounding."""


@dataclass(frozen=True)
class CostAtLoad:
    """A basis at a load; None where an input is not known, or is 0 where something is divided by it."""

    basis: Basis
    demand_per_s: float | None

    @property
    def units(self) -> float | None:
        """Return the units of the fleet, spare ones included."""
        holds, target = self.basis.holds_per_s.value, self.basis.target_frac.value
        if not self.demand_per_s or not holds or not target:
            return None
        return math.ceil(self.demand_per_s / (holds * target) - float(ALMOST)) + (self.basis.spare_units.value or 0.0)

    @property
    def gpus(self) -> float | None:
        """Return the GPUs of all units."""
        return self.units * self.basis.gpus_per_unit if self.units else None

    @property
    def used_frac(self) -> float | None:
        """Return the used share of what the units hold within the SLO."""
        holds = self.basis.holds_per_s.value
        return (self.demand_per_s or 0.0) / (self.units * holds) if self.units and holds else None

    @property
    def usd_per_month(self) -> float | None:
        """Return the cost of all units for all hours."""
        hourly = self.basis.usd_per_unit_hour
        return self.units * hourly * (self.basis.hours_per_month.value or 0.0) if self.units and hourly else None

    @property
    def requests_per_month(self) -> float:
        """Return the requests at the mean load."""
        mean, hours = self.basis.mean_frac.value, self.basis.hours_per_month.value
        return (self.demand_per_s or 0.0) * (mean or 0.0) * 3600 * (hours or 0.0)

    def usd_per_million(self, each: float | None) -> float | None:
        """Return the cost of a million tokens, say, of which a request has `each`."""
        bought = self.requests_per_month * (each or 0.0)
        return self.usd_per_month / bought * 1e6 if self.usd_per_month and bought else None


def grown(basis: Basis, months: float) -> CostAtLoad:
    """Return the cost after a number of months."""
    demand, growth = basis.demand_per_s.value, basis.growth_frac.value or 0.0
    return CostAtLoad(basis, None if demand is None else demand * (1 + growth) ** months)


@dataclass(frozen=True)
class Formulas:
    """Formulas of the same numbers over other cells, each given as an address or a name."""

    basis: Basis
    demand_at: str
    units: str
    usd_per_month: str

    @property
    def demand(self) -> str:
        """Return the demand, 0 where its cell is empty."""
        return f"N({self.demand_at})"

    def demand_after(self, months: str) -> str:
        """Return the load a number of months ahead."""
        return _if("demand_per_s", f"demand_per_s*(1+growth_per_month)^{months}")

    def needed_units(self) -> str:
        """See `Cost.units`."""
        capacity = "holds_per_s*target_frac"
        return _if(f"{capacity}*{self.demand}", f"ROUNDUP({self.demand}/({capacity})-{ALMOST},0)+spare_units")

    def gpus(self) -> str:
        """See `Cost.gpus`."""
        return _if(f"N({self.units})", f"{self.units}*({'+'.join(map(gpus_name, self.basis.gpus))})")

    def used_frac(self) -> str:
        """See `Cost.used_frac`."""
        return _if(f"N({self.units})*holds_per_s", f"{self.demand}/({self.units}*holds_per_s)")

    def cost_a_month(self) -> str:
        """See `Cost.usd_per_month`."""
        hourly = "+".join(f"{gpus_name(gpu)}*{price_name(gpu)}" for gpu in self.basis.gpus)
        return _if(f"N({self.units})*({hourly})", f"{self.units}*({hourly})*hours_per_month")

    def requests_a_month(self) -> str:
        """See `Cost.requests_per_month`."""
        return f"={self._requests}"

    def usd_per_million(self, each: str) -> str:
        """See `Cost.usd_per_million`."""
        bought = f"({self._requests}*{each})"
        return _if(f"N({self.usd_per_month})*{bought}", f"{self.usd_per_month}/{bought}*10^6")

    @property
    def _requests(self) -> str:
        return f"{self.demand}*mean_frac*3600*hours_per_month"


def _if(positive: str, then: str) -> str:
    """Return a formula that is empty where an input is missing, so that no error is ever shown."""
    return f'=IF({positive}>0,{then},"")'
