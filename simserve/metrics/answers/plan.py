"""Plan as an answer: what `simserve plan` found, as plan.json has it."""

from typing import Required

from typing_extensions import TypedDict

from simserve.metrics.answers.parts import (
    ScenarioNameJson,
)
from simserve.metrics.summary_schema import (
    Amount,
    Count,
    Measured,
    Share,
    Signed,
    Size,
    Slo,
)


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
