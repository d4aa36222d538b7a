"""Study schemas: names and types of what is read back of capacity.json, comparison.json, plan.json, sweep.json(l).

As in summary_schema.py, readers ignore the keys that they do not know.
"""

from typing import Annotated, Any, Literal, Required, TypeVar

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from simserve.metrics.answer import AnswerJson
from simserve.metrics.decision_json import Ratio
from simserve.metrics.summary_schema import (
    Amount,
    Count,
    Measured,
    NearCapacityJson,
    Number,
    Queue,
    Share,
    Signed,
    Size,
    Slo,
)

Positive = Annotated[float, Field(gt=0, le=1e18)]
Index = Annotated[int, Field(ge=0, le=10**9)]
Verdict = Literal["better", "worse", "same", "unclear"]
Limit = Literal["queue", "ttft_s", "tpot_s", "itl_s", "e2e_s"]
Levels = dict[str, Measured]


class EstimateJson(TypedDict):
    """A number with its interval."""

    value: Signed
    low: Signed
    high: Signed


class BoundsJson(TypedDict):
    """A number that is known, with its interval."""

    value: Amount
    low: Signed
    high: Signed


class ScenarioNameJson(TypedDict, total=False):
    """The scenario that was studied."""

    name: Required[str]
    digest: str
    seed: int


class FleetJson(TypedDict, total=False):
    """Size and price of a cluster."""

    n_gpus: Required[Annotated[int, Field(ge=1, le=10**9)]]
    usd_per_hour: Required[Amount]
    kw: Required[Amount]
    gpus: list[str]


class NominalLoadJson(TypedDict, total=False):
    """Drawn against nominal load."""

    kind: Literal["requests", "sessions"]
    nominal_per_s: Required[Positive | None]
    drawn_per_s: Required[Measured]
    off_frac: Required[Signed]


class ProbedLoadJson(TypedDict, total=False):
    """One load that was run."""

    scale: Required[Amount]
    replicas: Count
    concurrency: Amount
    split: str | None
    offered_per_s: Required[Amount]
    served_per_s: Measured
    requests_per_s: Required[Measured]
    output_tokens_per_s: Measured
    n_runs: Required[Count]
    n_requests: Required[Count]
    attained_frac: Required[Measured]
    low_frac: Required[Measured]
    high_frac: Required[Measured]
    decision: Literal["met", "edge", "missed"]
    probability_beyond_capacity: Share | None
    saturated: Required[bool]
    by_slo: Required[dict[str, Measured]]
    ttft_s: Required[Levels]
    tpot_s: Required[Levels]
    itl_s: Required[Levels]
    e2e_s: Required[Levels]


class AloneJson(TypedDict, total=False):
    """The highest load for one SLO or class."""

    slo: Required[str | None]
    slo_class: Required[str | None]
    room_frac: Required[Number]
    state: Required[Literal["found", "every load", "no load"]]
    ends_with: Required[Literal["queue", "slo"]]
    offered_per_s: BoundsJson
    concurrency: BoundsJson


class KneeJson(TypedDict, total=False):
    """Where a latency begins to rise."""

    offered_per_s: Measured
    concurrency: Measured
    light_s: Required[Amount]
    rise: Required[Amount]


class CapacityPoolJson(TypedDict, total=False):
    """A pool of the scenario."""

    name: Required[str]
    gpu: Required[str]
    n_replicas: Required[Size]
    gpus_per_replica: Required[Size]


class EfficiencyJson(TypedDict):
    """What a load comes to per GPU, dollar and kWh."""

    per_gpu_s: BoundsJson
    per_usd: BoundsJson | None
    per_kwh: BoundsJson | None
    fleet: FleetJson


class FoundJson(EfficiencyJson, total=False):
    """The highest load, and how precisely it is known."""

    confidence: Required[Share]
    n_seeds: Required[Count]
    n_requests: Required[Count]
    n_enough: Required[bool]
    is_precise: Required[bool]
    precision_frac: Required[Share]
    fails_first: Required[Limit]
    scale: BoundsJson


class FoundRateJson(FoundJson, total=False):
    """The highest rate."""

    offered_per_s: Required[BoundsJson]
    probability_beyond_capacity: Share | None
    near_capacity: NearCapacityJson | None


class FoundClientsJson(FoundJson, total=False):
    """The highest concurrency."""

    concurrency: Required[BoundsJson]
    requests_per_s: Required[Number]
    output_tokens_per_s: Required[Measured]
    clients_per_gpu: Required[Number]
    enough_turns: Required[bool]


class FoundReplicasJson(TypedDict):
    """The fewest replicas."""

    replicas: Size
    n_seeds: Count
    low_frac: Measured
    high_frac: Measured
    fleet: FleetJson


class SplitJson(EfficiencyJson):
    """What one division of the GPUs serves."""

    split: str
    replicas: dict[str, Count]
    state: Literal["found", "every load", "no load"]
    offered_per_s: BoundsJson
    fails_first: Limit


class FoundSplitJson(SplitJson):
    """The best division."""

    confidence: Share
    n_seeds: Count
    is_clear: bool


class CapacityJson(TypedDict, total=False):
    """What every capacity.json has."""

    version: str
    scenario: Required[ScenarioNameJson]
    goal_frac: Required[Annotated[float, Field(gt=0, lt=1)]]
    slo: Required[Slo]
    slo_classes: Required[dict[str, Slo]]
    pools: list[CapacityPoolJson]
    warnings: list[str]
    load: NominalLoadJson | None
    curve: list[ProbedLoadJson]
    alone: list[AloneJson]
    knees: dict[str, KneeJson]
    state: Literal["found", "every load", "no load"]
    stopped_at: ProbedLoadJson | None


class CapacityRateJson(CapacityJson, total=False):
    """`simserve capacity`."""

    asked: Required[Literal["rate"]]
    answer: Required[FoundRateJson | None]
    points: Required[Annotated[list[ProbedLoadJson], Field(min_length=1)]]


class CapacityConcurrencyJson(CapacityJson, total=False):
    """`simserve capacity` of a closed loop."""

    asked: Required[Literal["concurrency"]]
    answer: Required[FoundClientsJson | None]
    points: Required[list[ProbedLoadJson]]


class CapacityReplicasJson(CapacityJson, total=False):
    """`simserve capacity --replicas`."""

    asked: Required[Literal["replicas"]]
    pool: Required[str]
    confidence: Required[Share]
    answer: Required[FoundReplicasJson | None]
    tied: FoundReplicasJson | None
    points: Required[Annotated[list[ProbedLoadJson], Field(min_length=1)]]


class CapacityRatioJson(CapacityJson, total=False):
    """`simserve capacity --ratio`."""

    asked: Required[Literal["ratio"]]
    answer: Required[FoundSplitJson]
    splits: Required[list[SplitJson]]
    together: Required[SplitJson | None]


def _has_its_point(result: CapacityReplicasJson) -> CapacityReplicasJson:
    answer = result["answer"]
    if any("replicas" not in point for point in result["points"]):
        raise ValueError("must have the replicas of each point")
    if answer is not None and all(point.get("replicas") != answer["replicas"] for point in result["points"]):
        raise ValueError("must have a point with the replicas of the answer")
    return result


Searched = TypeVar("Searched", CapacityRateJson, CapacityConcurrencyJson)


def _says_where_it_stopped(result: Searched) -> Searched:
    if result["answer"] is None and result.get("stopped_at") is None:
        raise ValueError("must have stopped_at, as it has no answer")
    return result


CapacityAnswer = Annotated[
    Annotated[CapacityRateJson, AfterValidator(_says_where_it_stopped)]
    | Annotated[CapacityConcurrencyJson, AfterValidator(_says_where_it_stopped)]
    | Annotated[CapacityReplicasJson, AfterValidator(_has_its_point)]
    | CapacityRatioJson,
    Field(discriminator="asked"),
]


class SideLoadJson(TypedDict):
    """The load that one side carries."""

    goodput_per_s: Measured
    holds_every_load: bool | None
    last_per_s: Measured
    fails_first: str | None


class LoadDecisionJson(TypedDict, total=False):
    """The side that carries more load, and how much more."""

    verdict: Required[Verdict]
    goal_frac: Required[Share]
    confidence: Share
    more_frac: Required[Signed]
    low_frac: Required[Signed]
    high_frac: Required[Signed]
    n_seeds: Required[Count]
    a: Required[SideLoadJson]
    b: Required[SideLoadJson]


def _has_interval(decision: LoadDecisionJson) -> LoadDecisionJson:
    ends = decision["low_frac"], decision["high_frac"]
    if decision["more_frac"] is not None and decision["n_seeds"] > 1 and None in ends:
        raise ValueError("must have low_frac and high_frac where it has more_frac")
    return decision


class NoDecisionJson(TypedDict):
    """Why load does not decide."""

    verdict: None
    reason: str


class DifferenceJson(TypedDict):
    """A measure on both sides."""

    key: str
    label: str
    unit: str
    a: Signed
    b: Signed
    difference: Signed
    low: Signed
    high: Signed
    change_frac: Signed
    verdict: Verdict


class ComparisonAnswer(TypedDict, total=False):
    """The file comparison.json."""

    version: str
    a: Required[str]
    b: Required[str]
    how: Required[str]
    confidence: Required[Share]
    decision: Annotated[LoadDecisionJson, AfterValidator(_has_interval)] | NoDecisionJson
    load: dict[Literal["a", "b"], NominalLoadJson | None]
    measures: Required[list[DifferenceJson]]
    warnings: list[str]


class DemandJson(TypedDict, total=False):
    """The demand that fleets are sized for."""

    mean_per_s: Measured
    sized_for_per_s: Measured
    mean_load_frac: Measured


class AssumedJson(TypedDict, total=False):
    """Assumptions of a plan."""

    spare_replicas: Count
    growth_frac: Signed
    hours_per_month: Measured
    given_prices: list[str]


class MonthJson(TypedDict, total=False):
    """A month of growth."""

    month: Required[Count]
    offered_per_s: Required[Amount]
    replicas: Required[Count | None]
    gpus: Required[Count | None]


class GrowthJson(TypedDict):
    """The fleet by month."""

    rows: list[MonthJson]


class PlanOptionJson(TypedDict, total=False):
    """A card and a number of GPUs a replica."""

    rank: Required[Count | None]
    option: Required[str]
    gpu: Required[str]
    tensor: Count
    how: str
    state: str
    reason: str
    close_call: bool | None
    needed_replicas: Size | None
    replicas: Size | None
    prefill_replicas: Size | None
    decode_replicas: Size | None
    gpus_per_replica: Size | None
    gpus: Size | None
    usd_per_gpu_hour: Amount | None
    output_tokens_per_month: Amount | None
    tokens_per_month: Amount | None
    good_tokens_per_month: Amount | None
    kwh_per_month: Measured
    offered_per_s: Measured
    attained_frac: Measured
    attained_low_frac: Measured
    attained_high_frac: Measured
    all_up_attained_frac: Measured
    fewer_attained_frac: Measured
    busy_frac: Measured
    outgrown_month: Count | None
    ttft_p99_s: Measured
    tpot_p99_s: Measured
    e2e_p99_s: Measured


class PlanAnswer(TypedDict, total=False):
    """The file plan.json."""

    version: str
    scenario: Required[ScenarioNameJson]
    goal_frac: Share
    slo: Slo
    sentence: Required[str]
    demand: Required[DemandJson]
    assumed: Required[AssumedJson]
    options: Required[list[PlanOptionJson]]
    growth: GrowthJson | None
    warnings: list[str]


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
