"""Measures: the numbers of a summary for decisions, with their labels and better direction."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["s", "frac", "per_s", "count"]


@dataclass(frozen=True)
class Measure:
    """One number of `summary.json`."""

    key: str
    """Its dotted key: `ttft_s.p99`."""
    label: str
    unit: Unit
    is_cost: bool
    """Whether less is better."""

    def of(self, summary: Mapping[str, Any]) -> float:
        """Return its value; NaN where the run has none."""
        return figure(summary, self.key)


def figure(summary: Mapping[str, Any], key: str) -> float:
    """Return the number at a dotted key; NaN where the run has none."""
    value: Any = summary
    for part in key.split(".", 1):
        if not isinstance(value, Mapping):
            return math.nan
        value = value.get(part)
    return math.nan if value is None else float(value)


LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
LEVELS = ("mean", "p50", "p90", "p99")

ATTAINMENT = Measure("slo_attainment.frac", "SLO attainment", "frac", is_cost=False)
GOODPUT = Measure("goodput.per_s", "goodput", "per_s", is_cost=False)

MEASURES = (
    ATTAINMENT,
    GOODPUT,
    *(
        Measure(f"{key}.{level}", f"{level} {name}", "s", is_cost=True)
        for key, name in LATENCIES.items()
        for level in LEVELS
    ),
    Measure("served_per_s", "requests served", "per_s", is_cost=False),
    Measure("output_tokens_per_s", "output tokens", "per_s", is_cost=False),
)
"""The measures in reporting order."""
