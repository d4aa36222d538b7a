"""Fleets that each month of growth and each hour of a day need, and what a fleet costs a month."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.metrics.answers.option_cost import OptionCost, OptionUse
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import Estimate, mean_of
from simserve.study.plan.options import Demand
from simserve.study.plan.outcome import Bounds, Sized
from simserve.units import HOURS_A_MONTH

LEAST_SHARE = 0.05
"""Lowest share of the peak that is simulated: at less, a short run has too few requests."""


@dataclass(frozen=True)
class Need:
    """Replicas needed in a month or hour."""

    scale: float
    """Multiple of the demand that the fleet was sized for."""
    n_replicas: int | None
    """Replicas including spares; None: more than allowed."""


def needs(sized: Sized, scales: Sequence[float], bounds: Bounds) -> tuple[Need, ...]:
    """Return the needs of rising loads, multiples of the demand."""
    option = sized.fleets.option
    limit = bounds.limit(option, sized.fleets.gpus_per_replica)

    def need(scale: float) -> int | None:
        return sized.search.fewest(max(1, math.floor(sized.size * scale)), limit, scale)

    more = option.n_pools - 1 + bounds.spare * option.n_pools
    sizes = zip(scales, _filled(need, scales), strict=True)
    return tuple(Need(scale, None if size is None else size + more) for scale, size in sizes)


def outgrown_month(sized: Sized, scales: Sequence[float]) -> int | None:
    """Return the first month in which today's fleet is too small; None if it lasts."""
    if sized.search.holds(sized.size, scales[-1]):
        return None
    enough, too_small = 0, len(scales) - 1
    while too_small - enough > 1:
        month = (enough + too_small) // 2
        if sized.search.holds(sized.size, scales[month]):
            enough = month
        else:
            too_small = month
    return too_small


def hours_of(sized: Sized, demand: Demand, bounds: Bounds) -> tuple[Need, ...]:
    """Return the need of every hour of a diurnal load; at least one replica is always up."""
    if not demand.hours:
        return ()
    shares = [max(share, LEAST_SHARE) for share in demand.hours]
    rising = sorted(set(shares))
    known = dict(zip(rising, needs(sized, rising, bounds), strict=True))
    return tuple(known[share] for share in shares)


def _filled(need: Callable[[float], int | None], scales: Sequence[float]) -> list[int | None]:
    """Return the need at each scale; it never falls, so scales between two equal needs are not run."""
    first, last = need(scales[0]), need(scales[-1])
    if first == last:
        return [first] * len(scales)
    if len(scales) == 2:
        return [first, last]
    middle = len(scales) // 2
    return _filled(need, scales[: middle + 1])[:-1] + _filled(need, scales[middle:])


MONTH_S = HOURS_A_MONTH * 3600


@dataclass(frozen=True)
class FleetCost:
    """Cost of one fleet, including spare replicas."""

    n_gpus: int
    usd_per_gpu_hour: float
    usd_low: float
    """Monthly cost of the smallest statistically tied fleet, including spares; else of this fleet."""
    output_tokens: Estimate
    """Tokens a month, as in the next two fields."""
    tokens: Estimate
    good_tokens: Estimate
    """Output tokens a month of requests that met every SLO."""
    busy_frac: float
    """Share of time with a step in progress."""
    tdp_w: float
    """Power of a GPU at its TDP."""

    @property
    def order(self) -> tuple[float, float]:
        """Return the sort key: monthly cost, then cost per good token."""
        return self.usd_per_month, self.usd_per_million(self.good_tokens).value

    @property
    def usd_per_hour(self) -> float:
        """Return the hourly cost of all GPUs."""
        return self.n_gpus * self.usd_per_gpu_hour

    @property
    def usd_per_month(self) -> float:
        """Return the monthly cost of this fleet, which meets the SLO."""
        return self.usd_per_hour * HOURS_A_MONTH

    @property
    def kwh_at_tdp(self) -> float:
        """Return the monthly energy at TDP: an upper bound without hosts and cooling."""
        return self.n_gpus * self.tdp_w / 1000 * HOURS_A_MONTH

    @property
    def kwh(self) -> float:
        """Return the monthly energy at TDP while a step runs and zero between steps."""
        return self.kwh_at_tdp * self.busy_frac

    def usd_per_million(self, tokens: Estimate) -> Estimate:
        """Return the cost of a million tokens; the upper token count gives the lower cost."""
        return Estimate(*(self.usd_per_month / each * 1e6 for each in (tokens.value, tokens.high, tokens.low)))

    def price(self) -> OptionCost:
        """Return the columns of cost and energy."""
        good = self.usd_per_million(self.good_tokens)
        return OptionCost(
            usd_per_gpu_hour=self.usd_per_gpu_hour,
            usd_per_hour=self.usd_per_hour,
            usd_per_month=self.usd_per_month,
            usd_per_month_low=self.usd_low,
            usd_per_month_high=self.usd_per_month,
            usd_per_m_output_tokens=self.usd_per_million(self.output_tokens).value,
            usd_per_m_tokens=self.usd_per_million(self.tokens).value,
            usd_per_m_good_tokens=good.value,
            usd_per_m_good_tokens_low=good.low,
            usd_per_m_good_tokens_high=good.high,
            tdp_w=self.tdp_w,
            kwh_per_month=self.kwh,
            kwh_per_month_at_tdp=self.kwh_at_tdp,
            gpu_hours_per_month=self.n_gpus * HOURS_A_MONTH,
            kwh_per_m_output_tokens=self.kwh / self.output_tokens.value * 1e6,
        )

    def use(self) -> OptionUse:
        """Return the columns of what the fleet does at the mean demand."""
        return OptionUse(
            output_tokens_per_month=self.output_tokens.value,
            tokens_per_month=self.tokens.value,
            good_tokens_per_month=self.good_tokens.value,
            busy_frac=self.busy_frac,
        )


def cost_of(sized: Sized, usd_per_gpu_hour: float) -> FleetCost:
    """Return the cost of the fleet."""
    setup = sized.fleets.least.setups[0]
    per_replica = sized.fleets.gpus_per_replica
    n_gpus = sum(sized.bought) * per_replica
    n_saved = 0 if sized.tied is None else sum(sized.needed.replicas) - sum(sized.tied.replicas)
    one_replica = per_replica * usd_per_gpu_hour * HOURS_A_MONTH
    usd = n_gpus * usd_per_gpu_hour * HOURS_A_MONTH
    usage = sized.usage.point
    return FleetCost(
        n_gpus=n_gpus,
        usd_per_gpu_hour=usd_per_gpu_hour,
        usd_low=usd - n_saved * one_replica,
        output_tokens=_a_month(usage, "output_tokens_per_s"),
        tokens=_a_month(usage, "total_tokens_per_s"),
        good_tokens=_a_month(usage, "goodput.output_tokens_per_s"),
        busy_frac=mean_of([run.at("busy_frac") for run in usage.runs]).value,
        tdp_w=setup.gpu.tdp_w,
    )


def _a_month(point: LoadPoint, per_s: str) -> Estimate:
    mean = mean_of([run.at(per_s) for run in point.runs])
    return Estimate(*(end * MONTH_S for end in (mean.value, mean.low, mean.high)))
