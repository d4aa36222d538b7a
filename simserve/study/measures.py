"""Measures: the numbers of a summary for decisions, with their labels and better direction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.struct import Form, column_of
from simserve.metrics.figures import Summary

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

    def of(self, summary: Summary) -> float:
        """Return its value; NaN where the run has none."""
        return summary.at(self.key)


UNITS: Mapping[Form, Unit] = {"share": "frac", "seconds": "s"}
"""Units by form; others are rates."""

MEASURES = tuple(
    Measure(field.alias or name, field.title, UNITS.get(column.form, "per_s"), is_cost=column.form == "seconds")
    for name, field in Measures.model_fields.items()
    if field.title is not None and (column := column_of(Measures, name)) is not None
)
"""The measures in reporting order."""

ATTAINMENT, GOODPUT = MEASURES[:2]
