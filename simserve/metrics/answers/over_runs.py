"""Over runs: what further runs tell of a run: estimates over seeds, predictions, the load against capacity."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Count, EndsJson, Measured, Number, Queue, Share, Signed


class OverJson(Figures):
    """A measure over replications."""

    mean: Signed
    low: Signed
    high: Signed


class ReachedPrecisionJson(Figures):
    """What --precision came to."""

    of: str
    asked_frac: Measured
    reached_frac: Measured
    is_reached: bool


class ReplicationsJson(Figures):
    """Estimates over several runs."""

    n: Count
    seeds: Sequence[int]
    confidence: Share = 0.0
    n_requests: Count
    states: Mapping[Queue, Count]
    measures: Mapping[str, OverJson]
    precision: ReachedPrecisionJson | None = None


class PredictionJson(Figures):
    """Where latencies lie with other loads and costs."""

    replays: Count
    confidence: Share
    latencies: Mapping[str, Mapping[str, Annotated[Sequence[Number], Field(min_length=2, max_length=2)] | None]]
    attainment: EndsJson | None = None
    n_met: Count | None = None
    slo_probability: Share | None = None


class NearCapacityJson(Figures):
    """Offered rate against capacity, over draws of costs."""

    offered_per_s: Measured
    capacity_per_s: Measured
    low_per_s: Measured
    high_per_s: Measured
    confidence: Share
    n_draws: Count
