"""Fleet needs: the demand and the assumptions of a plan, and what its recommended option takes by month and hour."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from simserve.metrics.answers.parts import Index, NominalLoad
from simserve.metrics.answers.struct import Count, Gpus, Months, PerS, Share, Signed, Struct, Usd, WholeUsd, titled
from simserve.metrics.summary_schema import Amount, Measured


class OptionGrowth(Struct):
    """The fleet after the last month of growth."""

    outgrown_month: Months = titled("Outgrown in month")
    gpus_at_end: Gpus = None
    usd_per_month_at_end: WholeUsd = None


class FleetNeed(Struct):
    """The fleet that a month or an hour needs; None where that is more than allowed."""

    replicas: Count
    gpus: Count
    usd_per_month: Usd = None


class MonthlyNeed(FleetNeed):
    """A month of growth."""

    month: Index
    offered_per_s: Amount


class HourlyNeed(FleetNeed):
    """An hour of a day."""

    hour: Index
    peak_per_s: Amount


class Growth(Struct):
    """The recommended fleet by month."""

    outgrown_month: Count = None
    rows: Annotated[Sequence[MonthlyNeed], Field(min_length=1)]


class Autoscaling(Struct):
    """The cost if every hour had the fewest replicas that it needs, without delay."""

    mean_load_frac: Amount
    saves_at_best_frac: Signed
    usd_per_month_at_best: Amount
    rows: Sequence[HourlyNeed]


class PlanDemand(Struct):
    """The demand that fleets are sized for."""

    kind: Literal["arrivals", "trace", "diurnal"] | None = None
    mean_per_s: PerS = None
    sized_for_per_s: PerS = None
    mean_load_frac: Measured = None
    load: NominalLoad | None = None


class Assumptions(Struct):
    """Assumptions of a plan."""

    spare_replicas: Count = None
    growth_frac: Signed = None
    months: Count = None
    hours_per_month: Measured = None
    max_gpus: Count = None
    confidence: Share = None
    n_seeds: Count = None
    usd_per_gpu_hour: Mapping[str, Measured] = Field(default_factory=dict)
    given_prices: Sequence[str] = ()
    energy: str = ""
