"""Formulas of costs over named cells: each sum of `cost.py` again, as a spreadsheet computes it."""

import re
from dataclasses import dataclass

from simserve.report.spreadsheet.cost import ALMOST, Basis

CAPACITY_NAME = "capacity_per_unit"
"""Name in formulas of what one unit holds, as a capacity found it."""


def price_name(gpu: str) -> str:
    """Return the name of a GPU-hour's price in formulas."""
    return f"price_per_gpu_hour_{_word(gpu)}"


def gpus_name(gpu: str) -> str:
    """Return the name of a unit's GPUs in formulas."""
    return f"gpus_of_unit_{_word(gpu)}"


def _word(name: str) -> str:
    """Return only letters, digits and underscores, as a name in a workbook needs."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


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
        """See `CostAtLoad.units`."""
        capacity = "holds_per_s*target_frac"
        needed = f"ROUNDUP({self.demand}/({capacity})-{ALMOST},0)"
        if self.basis.met:  # the smallest of the larger of both numbers; SUMPRODUCT makes them arrays everywhere
            more = f"ROUNDUP({self.demand}*met_replicas/(met_loads*target_frac)-{ALMOST},0)"
            needed = f"SUMPRODUCT(MIN(met_replicas+({more}>met_replicas)*({more}-met_replicas)))"
        return _if(f"{capacity}*{self.demand}", f"{needed}+spare_units")

    def gpus(self) -> str:
        """See `CostAtLoad.gpus`."""
        return _if(f"N({self.units})", f"{self.units}*({'+'.join(map(gpus_name, self.basis.gpus))})")

    def used_frac(self) -> str:
        """See `CostAtLoad.used_frac`."""
        return _if(f"N({self.units})*holds_per_s", f"{self.demand}/({self.units}*holds_per_s)")

    def cost_a_month(self) -> str:
        """See `CostAtLoad.usd_per_month`."""
        hourly = "+".join(f"{gpus_name(gpu)}*{price_name(gpu)}" for gpu in self.basis.gpus)
        return _if(f"N({self.units})*({hourly})", f"{self.units}*({hourly})*hours_per_month{self._scaled('*')}")

    def reserved_a_month(self) -> str:
        """See `CostAtLoad.usd_reserved`."""
        return _if(f"N({self.usd_per_month})", f"{self.usd_per_month}*(1-reserved_discount){self._scaled('/')}")

    def owned_a_month(self) -> str:
        """See `CostAtLoad.usd_owned`."""
        gpus = f"{self.units}*({'+'.join(map(gpus_name, self.basis.gpus))})"
        kwh = "watts_per_gpu/1000*pue*hours_per_month"
        known = f"N({self.units})*usd_per_gpu*years_owned*watts_per_gpu"
        return _if(known, f"{gpus}*(usd_per_gpu/(years_owned*12)+{kwh}*usd_per_kwh)")

    def requests_a_month(self) -> str:
        """See `CostAtLoad.requests_per_month`."""
        return f"={self._requests}"

    def usd_per_million(self, each: str) -> str:
        """See `CostAtLoad.usd_per_million`."""
        bought = f"({self._requests}*{each})"
        return _if(f"N({self.usd_per_month})*{bought}", f"{self.usd_per_month}/{bought}*10^6")

    def _scaled(self, by: str) -> str:
        """Return the factor of an autoscaler; what is reserved is paid for all hours."""
        return f"{by}scaled_frac" if self.basis.is_scaled else ""

    @property
    def _requests(self) -> str:
        return f"{self.demand}*mean_frac*3600*hours_per_month"


def _if(positive: str, then: str) -> str:
    """Return a formula that is empty where an input is missing, so that no error is ever shown."""
    return f'=IF({positive}>0,{then},"")'
