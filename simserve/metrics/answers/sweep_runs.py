"""Runs of a sweep: the rows of sweep.jsonl; those that finished have the columns of sweep.parquet."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from simserve.metrics.answer import Outcome
from simserve.metrics.answers.kept_sample import KeptSample
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.answers.struct import FINITE, Column, Struct
from simserve.metrics.scaling import ScalingJson
from simserve.metrics.summary_schema import Amount, Share, Signed, Size

CATEGORY, INTEGER = Column("text", "category"), Column("count", "int64")


class ClassName(Struct):
    """A class of requests; None for all of them."""

    slo_class: str | None


class ClassOutcome(Outcome, ClassName):
    """What a run attained, or one class of its requests."""


class StartedRun(Struct):
    """A run by its seed; one that is not final is repeated by the next sweep."""

    seed: Annotated[int, INTEGER]
    """Seed of the run."""
    status: Annotated[Literal["finished", "failed", "drawn", "probed"], CATEGORY]
    """`finished` or `failed`."""
    reason: Annotated[str | None, CATEGORY] = None
    """Why it failed; null if it finished."""
    is_final: bool = True


class FailedRun(StartedRun):
    """A run that failed."""

    status: Literal["failed"] = "failed"
    reason: str


class FinishedRun(Measures[Annotated[Signed, FINITE]], StartedRun):
    """A run that finished."""

    status: Annotated[Literal["finished"], CATEGORY] = "finished"
    reason: Annotated[None, CATEGORY] = None
    saturated: Annotated[bool, Column("flag", "flag")]
    """Whether the backlog kept growing, so that latencies depend on the length of the run."""
    n_gpus: Annotated[Size, INTEGER]
    """GPUs of the whole cluster."""
    usd_per_hour: Annotated[Amount, Column("usd", "float", "$/h")]
    """[USD/h] Price of the whole cluster, at the catalog's prices."""
    kw: Annotated[Amount, Column("amount", "float", "kW")]
    """[kW] Power of the whole cluster, by the data sheets."""
    wall_s: Annotated[Amount, Column("seconds", "float", "s")]
    """[s] Wall time of the run; the only column that differs when a sweep is repeated."""
    outcomes: Sequence[ClassOutcome]
    load: NominalLoad
    warnings: Sequence[str]
    sample: KeptSample
    """How close its requests come to their limits."""
    service_s: Amount
    """Mean time of an answer without waiting; 0 where unknown."""
    mean_gpus: Amount
    """GPUs on average."""
    gpu_hours: Amount
    """[h] GPU time of the run."""
    n_failed: Amount
    """Requests that were lost or cut with their replica."""
    scaling: ScalingJson | None
    """What happened to a fleet that changed; None for a fixed one."""


class DrawnRun(StartedRun):
    """A run with a draw of costs."""

    status: Literal["drawn"] = "drawn"
    sample: KeptSample


class ProbedPoint(StartedRun):
    """The load of a point against the capacity of its cluster, over the draws of its costs."""

    status: Literal["probed"] = "probed"
    beyond_frac: Share | None
    """Probability that the load is beyond capacity; None where unknown."""


SweepRun = FinishedRun | FailedRun | DrawnRun | ProbedPoint
SWEEP_RUN: TypeAdapter[SweepRun] = TypeAdapter(Annotated[SweepRun, Field(discriminator="status")])


def read_run(row: object) -> SweepRun:
    """Return the run of a row of sweep.jsonl. Raises ValueError for a row that lacks a key or is not final."""
    run = SWEEP_RUN.validate_python(row, strict=True)
    if not run.is_final or run.model_fields_set < type(run).model_fields.keys():
        raise ValueError("must be a whole row of a run that is final")
    return run
