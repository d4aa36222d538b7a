"""Fleets that each month of growth and each hour of a day need."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.study.plan.demand import Demand
from simserve.study.plan.outcome import Bounds, Sized

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
