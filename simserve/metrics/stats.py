"""Statistics: distributions, and percentiles as numpy's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from simserve.metrics.intervals import Ends, mean_interval, percentile_interval
from simserve.tables.columns import Floats

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""What every latency is reported at."""


@dataclass(frozen=True)
class Distribution:
    """What is reported of a sample; all NaN for an empty one."""

    n: int
    mean: float
    std: float
    """The population's, as numpy's and vLLM's."""
    percentiles: Mapping[float, float]
    """By level 0..100."""
    highest: float
    intervals: Mapping[str, Ends | None] = field(default_factory=dict)
    """95% of the mean and of each percentile by its name, where they were asked for."""


EMPTY = Distribution(0, math.nan, math.nan, dict.fromkeys(PERCENTILES, math.nan), math.nan)
"""The distribution of nothing."""


def level_name(level: float) -> str:
    """`p50`, `p99.9`."""
    return f"p{level:g}"


def distribution(values: Floats) -> Distribution:
    """The distribution of a sample `(n,)` without NaN."""
    if not len(values):
        return EMPTY
    levels = np.percentile(values, PERCENTILES)
    percentiles = dict(zip(PERCENTILES, levels.tolist(), strict=True))
    return Distribution(len(values), float(values.mean()), float(values.std()), percentiles, float(values.max()))


def with_intervals(values: Floats, inefficiency: float) -> Distribution:
    """The same of a sample in the order of arrival, of which `hang` values tell as much as one independent one."""
    ordered = np.sort(values)  # fast: sorted once; percentiles of what is in order cost next to nothing
    result = distribution(ordered)
    of_levels = {level_name(p): percentile_interval(values, ordered, p, inefficiency) for p in PERCENTILES}
    return replace(result, intervals={"mean": mean_interval(values), **of_levels})


def interpolated(below: float, above: float, weight: float) -> float:
    """Between two neighbors as `numpy.percentile` does it, to the last bit."""
    step = above - below
    return above - step * (1 - weight) if weight >= 0.5 else below + step * weight
