"""Cost: what a fleet costs for a load, from numbers with their origins; `formulas.py` has each sum as a formula."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simserve.metrics.result_folder import ResultFolder
from simserve.units import HOURS_A_MONTH

TARGET_FRAC = 0.8
GROWTH_FRAC = 0.05
MONTHS_AHEAD = 12.0
RESERVED_DISCOUNT, YEARS_OWNED, PUE, USD_PER_KWH = 0.4, 4.0, 1.3, 0.1
PAID_BACK_H = 12_000
"""Hours of the price on demand that a bought GPU costs, as an example."""


@dataclass(frozen=True)
class Known:
    """A number and its origin."""

    value: float | None
    origin: str


UNKNOWN = Known(None, "Nothing that was exported tells it: type it in.")

EXAMPLE = "An example: type your own."


@dataclass(frozen=True)
class FleetPoint:
    """A simulated fleet at a load, and what it attained."""

    source: str
    replicas: int
    offered_per_s: float
    attained: tuple[float | None, float | None, float | None] = (None, None, None)
    """Share of requests that met every SLO, and the ends of its interval."""
    r: float | None = None
    probability: float | None = None
    word: str | None = None
    meets: bool = False

    def needed(self, demand_per_s: float, target_frac: float) -> int:
        """Return the replicas for a demand: more than these in proportion, which errs on the safe side; never fewer."""
        more = demand_per_s * self.replicas / (self.offered_per_s * target_frac)
        return max(self.replicas, math.ceil(more - float(ALMOST)))


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
    reserved_discount: Known = Known(RESERVED_DISCOUNT, EXAMPLE)
    years_owned: Known = Known(YEARS_OWNED, EXAMPLE)
    watts_per_gpu: Known = UNKNOWN
    pue: Known = Known(PUE, "A habit: cooling and hosts, by the power of GPUs.")
    usd_per_kwh: Known = Known(USD_PER_KWH, EXAMPLE)
    scaled_frac: Known = Known(1.0, "The fleet is fixed.")
    """GPU-hours that its autoscaler takes, of all."""
    fleets: Sequence[FleetPoint] = ()
    """Simulated fleets of its unit; with any that meets the goal, they say how many are needed."""
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
    def is_scaled(self) -> bool:
        """Return whether it follows the load."""
        return self.scaled_frac.value != 1

    @property
    def met(self) -> list[FleetPoint]:
        """Return the simulated fleets that meet the goal."""
        return [fleet for fleet in self.fleets if fleet.meets]

    @property
    def usd_per_gpu(self) -> Known:
        """Return an example of what a GPU costs to buy; of no GPU where a price is missing."""
        hourly = self.usd_per_unit_hour
        text = f"An example: {PAID_BACK_H:,} hours on demand. Type your quote, with the share of host and network."
        return Known(hourly / self.gpus_per_unit * PAID_BACK_H if hourly else None, text)

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
        demand, holds, target = self.demand_per_s, self.basis.holds_per_s.value, self.basis.target_frac.value
        if not demand or not holds or not target:
            return None
        simulated = [fleet.needed(demand, target) for fleet in self.basis.met]
        needed = min(simulated) if simulated else math.ceil(demand / (holds * target) - float(ALMOST))
        return needed + (self.basis.spare_units.value or 0.0)

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
        """Return the cost of all units for all hours, or for those that their autoscaler takes."""
        hourly, hours = self.basis.usd_per_unit_hour, self.basis.hours_per_month.value or 0.0
        return self.units * hourly * hours * (self.basis.scaled_frac.value or 1.0) if self.units and hourly else None

    @property
    def usd_reserved(self) -> float | None:
        """Return the cost of a month at the reserved price."""
        whole, discount = self.usd_per_month, self.basis.reserved_discount.value
        return (
            None
            if whole is None or discount is None
            else whole * (1 - discount) / (self.basis.scaled_frac.value or 1.0)
        )

    @property
    def usd_owned(self) -> float | None:
        """Return the cost of a month of bought GPUs and their power, without staff, space and interest."""
        basis = self.basis
        price, years, watts = basis.usd_per_gpu.value, basis.years_owned.value, basis.watts_per_gpu.value
        if not self.gpus or not price or not years or not watts:
            return None
        kwh = watts / 1000 * (basis.pue.value or 0.0) * (basis.hours_per_month.value or 0.0)
        return self.gpus * (price / (years * 12) + kwh * (basis.usd_per_kwh.value or 0.0))

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
