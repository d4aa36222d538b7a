"""Runs of a sweep: the rows of sweep.jsonl, with the columns of sweep.parquet; points have their measures, too."""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter

from simserve.metrics.answer import Outcome
from simserve.metrics.answers.parts import NominalLoad, Positive
from simserve.metrics.answers.struct import FINITE, Column, Struct
from simserve.metrics.decision_json import Ratio
from simserve.metrics.summary_schema import Amount, Number, Queue, Share, Signed, Size
from simserve.tables.files import plain

M = TypeVar("M")

CATEGORY, INTEGER = Column("text", "category"), Column("count", "int64")
Frac = Annotated[M, Column("share", "float", "share 0..1")]
PerS = Annotated[M, Column("amount", "float", "1/s")]
PerUsd = Annotated[M, Column("amount", "float", "requests/$")]
Seconds = Annotated[M, Column("seconds", "float", "s")]


def _keyed(key: str) -> Any:
    """Return a field with a key of summary.json; without a value it is an empty interval, and no number."""
    return Field({}, alias=key, validate_default=True)


class Measures(Struct, Generic[M]):
    """Numbers of a run, or intervals of their means over runs."""

    slo_attainment_frac: Frac[M] = _keyed("slo_attainment.frac")
    goodput_per_s: PerS[M] = _keyed("goodput.per_s")
    ttft_mean_s: Seconds[M] = _keyed("ttft_s.mean")
    ttft_p50_s: Seconds[M] = _keyed("ttft_s.p50")
    ttft_p90_s: Seconds[M] = _keyed("ttft_s.p90")
    ttft_p99_s: Seconds[M] = _keyed("ttft_s.p99")
    tpot_mean_s: Seconds[M] = _keyed("tpot_s.mean")
    tpot_p50_s: Seconds[M] = _keyed("tpot_s.p50")
    tpot_p90_s: Seconds[M] = _keyed("tpot_s.p90")
    tpot_p99_s: Seconds[M] = _keyed("tpot_s.p99")
    itl_mean_s: Seconds[M] = _keyed("itl_s.mean")
    itl_p50_s: Seconds[M] = _keyed("itl_s.p50")
    itl_p90_s: Seconds[M] = _keyed("itl_s.p90")
    itl_p99_s: Seconds[M] = _keyed("itl_s.p99")
    e2e_mean_s: Seconds[M] = _keyed("e2e_s.mean")
    e2e_p50_s: Seconds[M] = _keyed("e2e_s.p50")
    e2e_p90_s: Seconds[M] = _keyed("e2e_s.p90")
    e2e_p99_s: Seconds[M] = _keyed("e2e_s.p99")
    served_per_s: PerS[M] = _keyed("served_per_s")
    output_tokens_per_s: PerS[M] = _keyed("output_tokens_per_s")
    goodput_per_gpu_s: PerS[M] = _keyed("goodput.per_gpu_s")
    goodput_per_usd: PerUsd[M] = _keyed("goodput.per_usd")
    offered_per_s: PerS[M] = _keyed("offered_per_s")
    busy_frac: Frac[M] = _keyed("busy_frac")
    mfu: Frac[M] = _keyed("mfu")
    mbu: Frac[M] = _keyed("mbu")


class ClassOutcome(Struct):
    """What a run attained, or one class of its requests."""

    slo_class: str | None
    attained_frac: Share
    n_arrived: Size
    n_effective: Positive
    off_frac: Signed
    is_far_below: bool
    queue: Queue | None
    by_slo: dict[str, Share]
    interval: Annotated[Sequence[Share], Field(min_length=2, max_length=2)] | None
    counts: Sequence[Size] = ()
    r: Sequence[Ratio] = ()

    @classmethod
    def of(cls, name: str | None, outcome: Outcome) -> "ClassOutcome":
        """Return the outcome of a class."""
        return cls(slo_class=name, **plain(vars(outcome)))

    @property
    def outcome(self) -> Outcome:
        """Return the outcome without its class."""
        return Outcome(**{name: value for name, value in self if name != "slo_class"})


class DrawnLoad(NominalLoad):
    """Drawn and nominal load of a run."""

    nominal_per_s: Positive
    drawn_per_s: Amount
    off_frac: Number


class ServedLoad(NominalLoad):
    """Load of a run without a nominal one."""

    nominal_per_s: None
    off_frac: None


class StartedRun(Struct):
    """A run by its seed; one that is not final is repeated by the next sweep."""

    seed: Annotated[int, INTEGER]
    status: Annotated[Literal["finished", "failed"], CATEGORY]
    reason: Annotated[str | None, CATEGORY] = None
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
    n_gpus: Annotated[Size, INTEGER]
    usd_per_hour: Annotated[Amount, Column("usd", "float", "$/h")]
    kw: Annotated[Amount, Column("amount", "float", "kW")]
    wall_s: Annotated[Amount, Column("seconds", "float", "s")]
    outcomes: Sequence[ClassOutcome]
    load: DrawnLoad | ServedLoad
    warnings: Sequence[str]


SweepRun = FinishedRun | FailedRun
SWEEP_RUN: TypeAdapter[SweepRun] = TypeAdapter(Annotated[SweepRun, Field(discriminator="status")])


def read_run(row: object) -> SweepRun:
    """Return the run of a row of sweep.jsonl. Raises ValueError for a row that lacks a key or is not final."""
    run = SWEEP_RUN.validate_python(row, strict=True)
    if not run.is_final or run.model_fields_set < type(run).model_fields.keys():
        raise ValueError("must be a whole row of a run that is final")
    return run
