"""Groups of ratios: r of the requests of a run in some 250 numbers, by which runs are pooled that were made apart."""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Ratio
from simserve.tables.columns import Floats

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
