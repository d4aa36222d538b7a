"""Statistics of samples: mean, spread and percentiles of a latency, and r of requests in groups of neighbors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.intervals import Ends, mean_interval, percentile_interval
from simserve.metrics.summary_schema import Count, EndsJson, Measured, Ratio
from simserve.tables.columns import Columns, Floats
from simserve.tables.pieces import Derived


class LatencyJson(Figures):
    """Statistics of a latency or another time, in seconds."""

    n: Count
    """Number of values."""
    mean: Measured
    """[s] Mean; null without values."""
    std: Measured = None
    """[s] Standard deviation of the population."""
    p50: Measured
    """[s] Median; percentiles are linear, as in `numpy.percentile`."""
    p90: Measured
    """[s] 90th percentile."""
    p95: Measured
    """[s] 95th percentile."""
    p99: Measured
    """[s] 99th percentile."""
    p999: Measured = Field(alias="p99.9")
    """[s] 99.9th percentile."""
    max: Measured = None
    """[s] Largest value."""
    intervals: dict[str, EndsJson | None] = Field(default_factory=dict)
    """[s] 95% confidence intervals of the mean and percentiles, low and high; null where the run is too short
    (docs/outputs.md#percentiles)."""


NO_SAMPLE = LatencyJson.model_construct(n=0, mean=None, p50=None, p90=None, p95=None, p99=None, p999=None)
"""The latency of nothing, as files of earlier versions lack some."""

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""Reported percentiles of every latency."""


def latency_columns(requests: Columns) -> Derived:
    """Return queue_s, ttft_s, tpot_s and e2e_s, `(n_requests,)` each; NaN where a timestamp is missing.

    TPOT is (last token - first token) / (output tokens - 1); a request with one output token has none. It is vLLM's
    `tpot`, and the inter-token latency of GuideLLM and AIPerf.
    """
    arrival_s, first_token_s, finish_s = (requests[f"{name}_s"] for name in ("arrival", "first_token", "finish"))
    n_gaps = np.asarray(requests["output_tokens"] - 1, np.float64)
    n_gaps[n_gaps < 1] = np.nan
    return {
        "queue_s": requests["scheduled_s"] - arrival_s,
        "ttft_s": first_token_s - arrival_s,
        "tpot_s": (finish_s - first_token_s) / n_gaps,
        "e2e_s": finish_s - arrival_s,
    }


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
    def numbers(self) -> dict[str, Any]:
        """Count, mean and percentiles."""
        return {"n": self.n, "mean": self.mean, **self.levels}

    def figures(self, **more: Any) -> LatencyJson:
        """Return it as the summary holds it, as a class does without `std` and `intervals`."""
        return LatencyJson(**self.numbers, max=self.highest, **more)

    @property
    def all_figures(self) -> LatencyJson:
        """All of it, as the summary holds it."""
        return self.figures(std=self.std, intervals=dict(self.intervals))


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


Ratios = NDArray[np.float32] | Floats

SINGLE, GROWTH = 64, 1.03
"""Requests with the highest r that are groups of their own; ends of later groups lie further by this factor."""


class Groups(NamedTuple):
    """r of requests, from the highest on: in groups of neighbors, each with the value in its middle."""

    counts: Sequence[int]
    r: Sequence[float]


class TailJson(Figures):
    """Latency / limit of the requests of a class, from the highest on: in groups of neighbors, each with its middle."""

    slo_class: str | None
    """The class; null for all requests."""
    counts: Sequence[Annotated[int, Field(ge=1, le=10**15)]]
    """Requests of each group."""
    r: Sequence[Ratio]
    """Latency / limit of each group, the largest over the limits of a request."""


def grouped(highest: Ratios, n_missed: int) -> Groups:
    """Return r in groups; misses never share one with others."""
    r = np.sort(highest)[::-1]
    n_geometric = int(math.log(max(1.0, len(r) / SINGLE)) / math.log(GROWTH)) + 1
    ends = np.r_[np.arange(SINGLE), SINGLE * GROWTH ** np.arange(n_geometric), n_missed, len(r)].astype(np.int64)
    ends = np.unique(ends[(ends > 0) & (ends <= len(r))])
    starts = np.r_[0, ends[:-1]]
    values = np.round(r[(starts + ends - 1) // 2].astype(np.float64), 6)
    values[ends <= n_missed] = np.maximum(values[ends <= n_missed], 1.000001)
    return Groups((ends - starts).tolist(), values.tolist())
