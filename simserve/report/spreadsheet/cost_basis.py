"""Cost basis: what a cost is computed from, each number with where it comes from."""

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
