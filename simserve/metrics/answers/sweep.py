"""Sweep as an answer: what `simserve sweep` found, as sweep.json has it, and its runs in sweep.jsonl."""

from typing import Annotated, Any, Literal, Required

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from simserve.metrics.answer import AnswerJson
from simserve.metrics.answers.parts import EstimateJson, FleetJson, Index, NominalLoadJson, Positive, ScenarioNameJson
from simserve.metrics.decision_json import Ratio
from simserve.metrics.summary_schema import (
    Amount,
    Count,
    Measured,
    Number,
    Queue,
    Share,
    Signed,
    Size,
    Slo,
)

ATTAINED = "slo_attainment.frac"
"""What sweeps of earlier versions have in place of answers."""


class BestJson(TypedDict, total=False):
    """A point, and those that are tied with it."""

    point: Required[Index]
    not_told_apart: list[Index] | None


class BestPointsJson(TypedDict):
    """The points that answer the three questions."""

    per_usd: BestJson | None
    goodput: BestJson | None
    cheapest: BestJson | None


class FrontsJson(TypedDict):
    """Points that no other beats."""

    cost_goodput: list[Index]
    ttft_tpot: list[Index]


class PointOfSweepJson(TypedDict, total=False):
    """A point of a sweep."""

    point: Required[Index]
    values: Required[dict[str, Any]]
    status: Required[Literal["finished", "partly", "failed"]]
    reason: Required[str | None]
    n_seeds: Required[Count]
    fleet: Required[FleetJson | None]
    saturated: Required[bool | None]
    decision: Literal["met", "edge", "missed"] | None
    meets_goal: Required[bool | None]
    answer: AnswerJson | None
    load: NominalLoadJson | None
    shared_load: NominalLoadJson | None
    measures: Required[dict[str, EstimateJson] | None]
    warnings: list[str]


class OutcomeJson(TypedDict):
    """What a run of a sweep attained, or one class of its requests."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # its keys are those of Outcome
    slo_class: str | None
    attained_frac: Share
    n_arrived: Size
    n_effective: Positive
    off_frac: Signed
    is_far_below: bool
    queue: Queue | None
    by_slo: dict[str, Share]
    interval: Annotated[list[Share], Field(min_length=2, max_length=2)] | None
    counts: list[Size]
    r: list[Ratio]


class DrawnLoadJson(TypedDict):
    """Drawn and nominal load of a run."""

    kind: Literal["requests", "sessions"]
    nominal_per_s: Positive
    drawn_per_s: Amount
    off_frac: Number


class ServedLoadJson(TypedDict):
    """Load of a run without a nominal one."""

    kind: Literal["requests", "sessions"]
    nominal_per_s: None
    drawn_per_s: Measured
    off_frac: None


class FinishedRunJson(TypedDict):
    """A finished run in sweep.jsonl, beside its measures."""

    seed: int
    status: Literal["finished"]
    reason: None
    is_final: Literal[True]
    saturated: bool
    n_gpus: Size
    usd_per_hour: Amount
    kw: Amount
    wall_s: Amount
    outcomes: list[OutcomeJson]
    load: DrawnLoadJson | ServedLoadJson
    warnings: list[str]


class FailedRunJson(TypedDict):
    """A run in sweep.jsonl that fails whenever it is run."""

    seed: int
    status: Literal["failed"]
    reason: str
    is_final: Literal[True]


class SweepJson(TypedDict, total=False):
    """The file sweep.json."""

    version: str
    scenario: Required[ScenarioNameJson]
    keys: Required[list[str]]
    seeds: Required[list[int]]
    confidence: Share
    goal_frac: Required[Share]
    slo: Required[Slo | None]
    slo_classes: Required[list[str]]
    fronts: Required[FrontsJson]
    best: Required[BestPointsJson]
    tied: list[Index]
    points: Required[list[PointOfSweepJson]]


def _names_its_points(result: SweepJson) -> SweepJson:
    if [point["point"] for point in result["points"]] != list(range(len(result["points"]))):
        raise ValueError("must have its points in the order of their numbers, from 0")
    if any(key not in result["keys"] for point in result["points"] for key in point["values"]):
        raise ValueError("must name each key of a point in keys")
    best = [each for name in ("per_usd", "goodput", "cheapest") if (each := result["best"][name]) is not None]
    named = [number for each in best for number in (each["point"], *(each.get("not_told_apart") or ()))]
    for number in (*named, *result.get("tied", ())):
        point = result["points"][number] if number < len(result["points"]) else None
        if point is None or point["measures"] is None:
            raise ValueError(f"must have measures of point {number}, which it names")
        if not point.get("answer") and ATTAINED not in point["measures"]:
            raise ValueError(f"must have an answer of point {number}, which it names")
    return result


SweepAnswer = Annotated[SweepJson, AfterValidator(_names_its_points)]
