"""Cost: what a fleet costs for a load, from numbers with their origins; each sum twice, as a number and a formula."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from simserve.metrics.result_folder import ResultFolder
from simserve.units import HOURS_A_MONTH

TARGET_FRAC = 0.8
GROWTH_FRAC = 0.05
MONTHS_AHEAD = 12.0


@dataclass(frozen=True)
class Known:
    """A number and its origin."""

    value: float | None
    origin: str


UNKNOWN = Known(None, "Nothing that was exported tells it: type it in.")


@dataclass(frozen=True)
class Basis:
    """A fleet that grows by whole units, and the load that it is for."""

    unit: str
    """Increment of capacity: `replica`, or the whole `fleet` where its pools depend on each other."""
    gpus: Mapping[str, float]
    """GPUs of a unit, by their names in the catalog."""
    prices: Mapping[str, Known]
    """USD per GPU-hour by GPU, of the unit's and of others that were compared."""
    holds_per_s: Known
    """Requests per second that a unit serves within its SLO."""
    demand_per_s: Known
    good_frac: Known
    """Share of requests that meet every SLO."""
    prompt_tokens: Known = UNKNOWN
    """Prompt tokens of a request."""
    output_tokens: Known = UNKNOWN
    mean_frac: Known = Known(1.0, "The demand as it is, day and night; of a day with a peak, its mean by its peak.")
    target_frac: Known = Known(
        TARGET_FRAC, "A habit: a fifth is kept for what the scenario does not hold; 100% uses all that was found."
    )
    spare_units: Known = Known(0.0, "How many may fail before the SLO is missed.")
    growth_frac: Known = Known(GROWTH_FRAC, "An example: type your own forecast.")
    months_ahead: Known = Known(MONTHS_AHEAD, "Of the column After growth.")
    hours_per_month: Known = Known(HOURS_A_MONTH, "8,760 hours a year, by 12.")
    capacity: ResultFolder | None = None
    """Capacity that holds_per_s is from; its row of the summary is the one source of the number."""
    simulated_gpus: Mapping[int, int | None] = field(default_factory=dict)
    """GPUs by month that a plan needs at its own growth, simulated rather than in proportion."""

    @property
    def gpus_per_unit(self) -> float:
        """Return the GPUs of a unit, of all kinds."""
        return sum(self.gpus.values())

    @property
    def usd_per_unit_hour(self) -> float | None:
        """Return the price of a unit; None where a GPU's price is unknown."""
        result = [(n, self.prices[gpu].value if gpu in self.prices else None) for gpu, n in self.gpus.items()]
        return None if any(price is None for _, price in result) else sum(n * (price or 0.0) for n, price in result)

    @property
    def good_tokens(self) -> float | None:
        """Return the output tokens of a request, times the share of good requests."""
        output, good = self.output_tokens.value, self.good_frac.value
        return None if output is None or good is None else output * good

    @property
    def all_tokens(self) -> float | None:
        """Return prompt and output tokens of a request; None unless both are known."""
        prompt, output = self.prompt_tokens.value, self.output_tokens.value
        return prompt + output if prompt and output else None


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
        """See `CostAtLoad.units`."""
        capacity = "holds_per_s*target_frac"
        return _if(f"{capacity}*{self.demand}", f"ROUNDUP({self.demand}/({capacity})-{ALMOST},0)+spare_units")

    def gpus(self) -> str:
        """See `CostAtLoad.gpus`."""
        return _if(f"N({self.units})", f"{self.units}*({'+'.join(map(gpus_name, self.basis.gpus))})")

    def used_frac(self) -> str:
        """See `CostAtLoad.used_frac`."""
        return _if(f"N({self.units})*holds_per_s", f"{self.demand}/({self.units}*holds_per_s)")

    def cost_a_month(self) -> str:
        """See `CostAtLoad.usd_per_month`."""
        hourly = "+".join(f"{gpus_name(gpu)}*{price_name(gpu)}" for gpu in self.basis.gpus)
        return _if(f"N({self.units})*({hourly})", f"{self.units}*({hourly})*hours_per_month")

    def requests_a_month(self) -> str:
        """See `CostAtLoad.requests_per_month`."""
        return f"={self._requests}"

    def usd_per_million(self, each: str) -> str:
        """See `CostAtLoad.usd_per_million`."""
        bought = f"({self._requests}*{each})"
        return _if(f"N({self.usd_per_month})*{bought}", f"{self.usd_per_month}/{bought}*10^6")

    @property
    def _requests(self) -> str:
        return f"{self.demand}*mean_frac*3600*hours_per_month"


def _if(positive: str, then: str) -> str:
    """Return a formula that is empty where an input is missing, so that no error is ever shown."""
    return f'=IF({positive}>0,{then},"")'
