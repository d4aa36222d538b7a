"""Statistics: distributions, with percentiles as in numpy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Required

import numpy as np
from typing_extensions import TypedDict

from simserve.metrics.intervals import Ends, mean_interval, percentile_interval
from simserve.metrics.summary_schema import Count, EndsJson, Measured
from simserve.tables.columns import Floats

LatencyJson = TypedDict(
    "LatencyJson",
    {
        "n": Required[Count],
        "mean": Required[Measured],
        "std": Measured,
        "p50": Required[Measured],
        "p90": Required[Measured],
        "p95": Required[Measured],
        "p99": Required[Measured],
        "p99.9": Required[Measured],
        "max": Measured,
        "intervals": dict[str, EndsJson | None],
    },
    total=False,
)
"""Statistics of a latency, in seconds."""

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""Reported percentiles of every latency."""


@dataclass(frozen=True)
class Distribution:
    """The reported statistics of a sample; all NaN for an empty one."""

    n: int
    mean: float
    std: float
    """Population standard deviation, as in numpy and vLLM."""
    percentiles: Mapping[float, float]
    """Percentiles by level 0..100."""
    highest: float
    intervals: Mapping[str, Ends | None] = field(default_factory=dict)
    """95% intervals of the mean and of each percentile by name, where requested."""

    @property
    def levels(self) -> dict[str, float]:
        """Percentiles by name."""
        return {level_name(level): value for level, value in self.percentiles.items()}

    @property
    def numbers(self) -> dict[str, float]:
        """Count, mean and percentiles."""
        return {"n": self.n, "mean": self.mean, **self.levels}

    def figures(self) -> dict[str, Any]:
        """Return all of it, as the summary holds it."""
        numbers = {"n": self.n, "mean": self.mean, "std": self.std, **self.levels, "max": self.highest}
        return numbers | {"intervals": dict(self.intervals)}


EMPTY = Distribution(0, math.nan, math.nan, dict.fromkeys(PERCENTILES, math.nan), math.nan)
"""The distribution of an empty sample."""


def level_name(level: float) -> str:
    """Format a level as `p50` or `p99.9`."""
    return f"p{level:g}"


def distribution(values: Floats) -> Distribution:
    """Return the distribution of a sample `(n,)` without NaN."""
    if not len(values):
        return EMPTY
    levels = np.percentile(values, PERCENTILES)
    percentiles = dict(zip(PERCENTILES, levels.tolist(), strict=True))
    return Distribution(len(values), float(values.mean()), float(values.std()), percentiles, float(values.max()))


def with_intervals(values: Floats, inefficiency: float) -> Distribution:
    """Return the distribution of a sample in order of arrival with intervals, by the statistical `inefficiency`."""
    ordered = np.sort(values)  # fast: sorted once; percentiles of sorted values are cheap
    sample = distribution(ordered)
    of_levels = {level_name(p): percentile_interval(values, ordered, p, inefficiency) for p in PERCENTILES}
    return replace(sample, intervals={"mean": mean_interval(values), **of_levels})


def interpolated(below: float, above: float, weight: float) -> float:
    """Interpolate between two neighbors as `numpy.percentile` does, to the last bit."""
    step = above - below
    return above - step * (1 - weight) if weight >= 0.5 else below + step * weight
