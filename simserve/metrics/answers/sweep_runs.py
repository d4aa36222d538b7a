"""Runs of a sweep: the rows of sweep.jsonl, each with how close its requests come to their limits, to the bit; those
that finished have the columns of sweep.parquet."""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from simserve.metrics.answer import Outcome
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.answers.struct import FINITE, Column, Struct
from simserve.metrics.scaling import ScalingJson
from simserve.metrics.summary_schema import Amount, Count, Queue, Share, Signed, Size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simserve.metrics.tails import Sample, Tail

RATIO, PLACE = "<f4", "<i8"
"""Types of the numbers of a tail."""


class KeptTail(Struct):
    """Latencies over limits of a class of requests, or of all, in order of arrival."""

    slo_class: str | None
    limits: Sequence[str]
    n: Size
    n_missed: Count
    n_kept: Size
    ratios: str
    """Latency / limit of each kept request, row by row: their bytes, compressed, as base64."""
    places: str | None
    """Place of each among all requests, likewise; None where all are kept."""

    @model_validator(mode="after")
    def _is_whole(self) -> "KeptTail":
        if (self.places is None) != (self.n_kept == self.n):
            raise ValueError("must have the place of each request where not all are kept")
        self.tail()
        return self

    def tail(self) -> "Tail":
        """Return the tail. Raises ValueError where it has another number of requests."""
        import numpy as np  # late: as all that reads answers

        from simserve.metrics.tails import Tail

        ratios = _unpacked(self.ratios, RATIO, self.n_kept * len(self.limits)).reshape(self.n_kept, -1)
        places = np.arange(self.n) if self.places is None else _unpacked(self.places, PLACE, self.n_kept)
        return Tail(tuple(self.limits), self.n, ratios, places, self.n_missed)


class KeptSample(Struct):
    """One run, as a decision sees it."""

    tails: Sequence[KeptTail]
    n_effective: Annotated[float, Field(gt=0, le=1e18)]
    queue: Queue | None
    off_frac: Signed

    @classmethod
    def of(cls, sample: "Sample") -> "KeptSample":
        """Return what a row keeps of a run."""
        tails = [
            KeptTail(
                slo_class=name,
                limits=list(tail.limits),
                n=tail.n,
                n_missed=tail.n_missed,
                n_kept=len(tail.ratios),
                ratios=_packed(tail.ratios, RATIO),
                places=None if len(tail.ratios) == tail.n else _packed(tail.places, PLACE),
            )
            for name, tail in sample.tails.items()
        ]
        return cls(tails=tails, n_effective=sample.n_effective, queue=sample.queue, off_frac=sample.off_frac)

    def sample(self) -> "Sample":
        """Return the run."""
        from simserve.metrics.tails import Sample  # late: numpy

        tails = {each.slo_class: each.tail() for each in self.tails}
        return Sample(tails, self.n_effective, self.queue, self.off_frac)


def _packed(values: "NDArray[Any]", kind: str) -> str:
    """Return numbers as text: their first bytes together, then their second ones, as these compress better."""
    given = values.astype(kind)
    return b64encode(zlib.compress(given.view("u1").reshape(given.size, given.itemsize).T.tobytes())).decode()


def _unpacked(text: str, kind: str, n: int) -> "NDArray[Any]":
    """Return n numbers. Raises ValueError where there are more or less of them."""
    import numpy as np  # late: as all that reads answers

    size = np.dtype(kind).itemsize
    try:
        given = zlib.decompressobj().decompress(b64decode(text, validate=True), n * size + 1)
    except zlib.error as error:
        raise ValueError(f"must be compressed numbers, got {error}") from None
    return np.frombuffer(given, "u1").reshape(size, n).T.copy().view(kind).ravel()


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
