"""Parts that answers of several studies have, and what further runs tell of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simserve.metrics.answers import struct
from simserve.metrics.answers.struct import AS_GIVEN, FINITE, Figures, Struct
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC
from simserve.metrics.summary_schema import Amount, Count, EndsJson, Measured, Number, Queue, Share, Signed, Size

Positive = Annotated[float, Field(gt=0, le=1e18)]
Ends = Annotated[Sequence[Measured] | None, AS_GIVEN, FINITE]
"""Low and high end of an interval; None where it is unknown."""

Given = Annotated[Amount, AS_GIVEN]
Index = Annotated[int, Field(ge=0, le=10**9)]
Verdict = Literal["better", "worse", "same", "unclear"]
Limit = Literal["queue", "ttft_s", "tpot_s", "itl_s", "e2e_s"]


class ScenarioName(Struct):
    """The scenario that was studied."""

    name: str
    """Its name."""
    digest: str | None = None
    """Hash of the scenario."""
    seed: int | None = None
    """Its seed, the first of the study."""


class DrawnLoad(Struct):
    """What the seeds drew of a nominal load, means over runs."""

    nominal_per_s: Positive
    """[/s] Nominal rate."""
    drawn_per_s: Amount
    """[/s] Drawn rate."""
    off_frac: Number
    """[share] Drawn over nominal rate, less 1."""

    @property
    def off_text(self) -> str | None:
        """Return that the drawn load is far from the nominal load; None where it is near."""
        if abs(self.off_frac) <= LOAD_TOLERANCE_FRAC:
            return None
        drawn = f"{self.drawn_per_s:.3g} req/s of a nominal {self.nominal_per_s:.3g} ({self.off_frac:+.1%})"
        return f"the seeds drew {drawn}"


class StudiedFleet(Struct):
    """Size and price of a cluster that was studied."""

    n_gpus: Size
    """GPUs."""
    usd_per_hour: Amount
    """[USD/h] Price of all, at the catalog's prices."""
    kw: Amount
    """[kW] Power of all, by the data sheets."""


class PricedFleet(StudiedFleet):
    """A cluster with the names of its GPUs."""

    gpus: Sequence[str] = ()
    """Names of its GPUs."""


class Bounded(Struct):
    """A number with its interval."""

    value: Annotated[Amount, AS_GIVEN]
    """The estimate."""
    low: Annotated[Signed, AS_GIVEN, FINITE]
    """Low end of its 95% interval; null without an interval."""
    high: Annotated[Signed, AS_GIVEN, FINITE]
    """High end of its 95% interval; null without an interval."""


class FoundLoad(Bounded):
    """A load that answers a question; `low` and `high` are its interval by noise."""

    noise: Ends = None
    """Both ends of the interval by noise; null without an interval."""
    total: Ends = None
    """Both ends of the interval with cost error; null if costs count as exact."""
    count_on: Annotated[Measured, AS_GIVEN, FINITE] = None
    """The highest load that meets the goal with the probability `at_confidence`; null if costs are too uncertain."""
    at_confidence: Share | None = None
    """[share] The probability that was asked for."""

    @property
    def in_whole(self) -> "FoundLoad":
        """Return the load in whole units."""
        known = {"value": _down(self.value), "low": _down(self.low), "high": _down(self.high)}
        known |= {"count_on": _down(self.count_on)}
        spans = {"noise": self.noise, "total": self.total}
        whole = {name: ends and [_down(end) for end in ends] for name, ends in spans.items()}
        return self.model_copy(update=known | whole)


def _down(end: float | None) -> int | None:
    return None if end is None or math.isnan(end) else math.floor(end + 1e-9)


class NominalLoad(Figures):
    """Drawn against nominal load; a trace or a closed loop has no nominal load."""

    kind: Literal["requests", "sessions"] | None = None
    """What the rates count: `requests` or `sessions`."""
    nominal_per_s: Positive | None
    """[/s] Nominal rate; null for traces, closed loops and arrival plug-ins without `expected`."""
    drawn_per_s: Measured
    """[/s] Drawn rate."""
    off_frac: Signed
    """[share] Drawn over nominal rate, less 1; null without a nominal rate."""

    @model_validator(mode="after")
    def _is_whole(self) -> "NominalLoad":
        if self.nominal_per_s is not None and None in (self.drawn_per_s, self.off_frac):
            raise ValueError("must have drawn_per_s and off_frac where it has nominal_per_s")
        return self


NO_LOAD = NominalLoad.model_construct(nominal_per_s=None, drawn_per_s=None, off_frac=None)
"""The load of a file of an earlier version."""


class Interval(Struct):
    """A mean over the shared seeds with its interval."""

    value: struct.Signed = None
    """The mean; null if a run lacks it."""
    low: struct.Signed = None
    """Low end of its 95% Student interval; null with one seed."""
    high: struct.Signed = None
    """High end of its 95% Student interval; null with one seed."""


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
