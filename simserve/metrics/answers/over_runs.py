"""Over runs: what further runs tell of a run: estimates over seeds, predictions, the load against capacity."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Count, EndsJson, Measured, Number, Queue, Share, Signed


class OverJson(Figures):
    """A measure over replications."""

    mean: Signed
    """Mean over the runs; null if a run lacks the measure, as its ends."""
    low: Signed
    """Low end of its Student interval."""
    high: Signed
    """High end; null for a percentile if the runs are too short for it (docs/statistics.md#several-runs)."""


class ReachedPrecisionJson(Figures):
    """What `--precision` came to."""

    of: str
    """The measure."""
    asked_frac: Measured
    """[share] Half width of its interval over its mean that was asked for."""
    reached_frac: Measured
    """[share] Half width of the interval over the mean that was reached."""
    is_reached: bool
    """Whether `reached_frac` is at most `asked_frac`."""


class ReplicationsJson(Figures):
    """Estimates over several runs."""

    n: Count
    """Runs."""
    seeds: Sequence[int]
    """Seeds of the runs."""
    confidence: Share = 0.0
    """[share] Confidence of the intervals: 0.95."""
    n_requests: Count
    """Requests of all their windows."""
    states: Mapping[Queue, Count]
    """Runs by the state of the queue."""
    measures: Mapping[str, OverJson]
    """Estimates by column of replications.parquet; if few requests missed, the interval of the attainment is at least
    Wilson's over all runs."""
    precision: ReachedPrecisionJson | None = None
    """What `--precision` came to; null without it."""


class PredictionJson(Figures):
    """Where latencies lie with other loads and costs."""

    replays: Count
    """Number of replays."""
    confidence: Share
    """[share] Confidence of the prediction intervals: 0.9."""
    latencies: Mapping[str, Mapping[str, Annotated[Sequence[Number], Field(min_length=2, max_length=2)] | None]]
    """[s] Prediction intervals by latency and statistic, low and high. Each contains the run's own value; null if a
    replay or the run has 0 there. A latency that no request has is left out."""
    attainment: EndsJson | None = None
    """[share] Lowest and highest attainment of the replays, by the class that decides; null without an SLO."""
    n_met: Count | None = None
    """Replays in which 99% of the requests met the SLO; null without an SLO, and if the queue grows or is at
    capacity."""
    slo_probability: Share | None = None
    """[share] Probability that 99% of the requests of one more window at the nominal rate meet the SLO, with noise and
    cost error; null as `n_met`, if no run missed (use `n_met`), and for fewer than four runs."""


class NearCapacityJson(Figures):
    """Offered rate against capacity, over draws of costs."""

    offered_per_s: Measured
    """[/s] Offered rate."""
    capacity_per_s: Measured
    """[/s] Capacity of the cluster."""
    low_per_s: Measured
    """[/s] Low end of the prediction interval of capacity."""
    high_per_s: Measured
    """[/s] High end of the prediction interval of capacity."""
    confidence: Share
    """[share] Confidence of the interval."""
    n_draws: Count
    """Draws of costs."""
