"""Fleet needs: what a plan's recommended option takes in each month of growth and each hour of a day."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from simserve.metrics.answers.parts import Index
from simserve.metrics.answers.struct import Count, Gpus, Months, Signed, Struct, Usd, WholeUsd, titled
from simserve.metrics.summary_schema import Amount


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
