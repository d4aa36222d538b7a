"""Capacity as an answer: what `simserve capacity` found, as capacity.json has it."""

from typing import Annotated, Literal, Required, TypeVar

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from simserve.metrics.answers.parts import (
    BoundsJson,
    FleetJson,
    Levels,
    Limit,
    NominalLoadJson,
    ScenarioNameJson,
)
from simserve.metrics.summary_schema import (
    Amount,
    Count,
    Measured,
    NearCapacityJson,
    Number,
    Share,
    Size,
    Slo,
)


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
