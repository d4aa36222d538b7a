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
    """[months] First month in which the fleet is too small; null with `--growth 0`, if never, and if it costs more
    today than the recommended option does in the end."""
    gpus_at_end: Gpus = None
    """[GPUs] GPUs after the last month of growth; null with `--growth 0`, if the option is not followed to the end, and
    beyond the GPUs allowed."""
    usd_per_month_at_end: WholeUsd = None
    """[USD] Cost a month of `gpus_at_end`; null as these."""


class FleetNeed(Struct):
    """The fleet that a month or an hour needs; None where that is more than allowed."""

    replicas: Count
    """Replicas, spare ones included; null if more are needed than allowed."""
    gpus: Count
    """GPUs of these replicas; null if more are needed than allowed."""
    usd_per_month: Usd = None
    """[USD] Cost of these a month; null if more are needed than allowed."""


class MonthlyNeed(FleetNeed):
    """A month of growth."""

    month: Index
    """The month, from 0, today."""
    offered_per_s: Amount
    """[/s] The demand."""


class HourlyNeed(FleetNeed):
    """An hour of a day."""

    hour: Index
    """The hour, from 0."""
    peak_per_s: Amount
    """[/s] Its highest rate."""


class Growth(Struct):
    """The recommended fleet by month."""

    outgrown_month: Count = None
    """First month in which today's fleet is too small; null if there is none."""
    rows: Annotated[Sequence[MonthlyNeed], Field(min_length=1)]
    """What each month needs."""


class Autoscaling(Struct):
    """The cost if every hour had the fewest replicas that it needs, without delay."""

    mean_load_frac: Amount
    """[share] Mean over the highest rate."""
    saves_at_best_frac: Signed
    """[share] What that would save."""
    usd_per_month_at_best: Amount
    """[USD] What it would cost: a lower bound, as scaling is instant and free."""
    rows: Sequence[HourlyNeed]
    """What each hour needs."""


class ScaledUse(Struct):
    """The recommended fleet under the scenario's autoscaler, in a run of the scenario's whole load."""

    mean_gpus: Amount
    """[GPUs] GPUs on average, those included of replicas that start or drain."""
    usd_per_month: Amount
    """[USD] Cost of these a month."""
    attained_frac: Share
    """[share] Requests that met every limit."""


class PlanDemand(Struct):
    """The demand that fleets are sized for."""

    kind: Literal["arrivals", "trace", "diurnal"] | None = None
    """What the load is."""
    mean_per_s: PerS = None
    """[/s] Its mean rate."""
    sized_for_per_s: PerS = None
    """[/s] The rate that fleets are sized for: the peak of a diurnal load."""
    mean_load_frac: Measured = None
    """[share] Mean rate over that."""
    load: NominalLoad | None = None
    """Drawn against nominal load, means over the seeds of the fleet; null without runs."""


class Assumptions(Struct):
    """Assumptions of a plan."""

    spare_replicas: Count = None
    """Replicas of each pool that may be down; with `--spare auto` its spares."""
    n_failure_runs: Count = None
    """Runs that `--spare auto` took; null without it."""
    growth_frac: Signed = None
    """[share] Growth of the demand a month."""
    months: Count = None
    """Months of growth."""
    hours_per_month: Measured = None
    """Hours of a month: 730."""
    max_gpus: Count = None
    """Most GPUs of a fleet."""
    confidence: Share = None
    """[share] Confidence of the intervals: 0.95."""
    n_seeds: Count = None
    """Seeds of each fleet."""
    usd_per_gpu_hour: Mapping[str, Measured] = Field(default_factory=dict)
    """[USD/h] Price by GPU."""
    given_prices: Sequence[str] = ()
    """GPUs with a price of `--price`, not the catalog's."""
    energy: str = ""
    """What the energy is of, in a sentence."""
