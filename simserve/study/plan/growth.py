"""Plan growth: the fleet that each month of growth needs, and each hour of a day."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.study.plan.demand import Demand
from simserve.study.plan.outcome import Bounds, Sized

LEAST_SHARE = 0.05
"""Least share of the peak for an hour: a short run at less has hardly any arrivals."""


@dataclass(frozen=True)
class Need:
    """What some time needs."""

    scale: float
    """Times the demand that the fleet was sized for."""
    n_replicas: int | None
    """Replicas, spares included; None: more than are allowed."""


def months_of(sized: Sized, scales: Sequence[float], bounds: Bounds) -> tuple[Need, ...]:
    """Every month, from today on."""
    return tuple(_needs(sized, scales, bounds))


def outgrown_month(sized: Sized, scales: Sequence[float]) -> int | None:
    """Return the first month with more demand than today's fleet can serve; None without one."""
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


def need_of(sized: Sized, scale: float, bounds: Bounds) -> Need:
    """Return the need at a multiple of the demand."""
    return _needs(sized, [scale], bounds)[0]


def hours_of(sized: Sized, demand: Demand, bounds: Bounds) -> tuple[Need, ...]:
    """Every hour of a diurnal load; at least one replica is always up."""
    if not demand.hours:
        return ()
    shares = [max(share, LEAST_SHARE) for share in demand.hours]
    rising = sorted(set(shares))
    known = dict(zip(rising, _needs(sized, rising, bounds), strict=True))
    return tuple(known[share] for share in shares)


def _needs(sized: Sized, scales: Sequence[float], bounds: Bounds) -> list[Need]:
    """Return the needs of rising loads: first and last, then between those that differ."""
    limit = bounds.limit(sized.fleets.option, sized.fleets.gpus_per_replica)
    start = sized.size

    def need(scale: float) -> int | None:
        return sized.search.fewest(max(1, math.floor(start * scale)), limit, scale)

    result = _filled(need, scales)
    n_pools = sized.fleets.option.n_pools
    more = n_pools - 1 + bounds.spare * n_pools
    return [Need(scale, None if size is None else size + more) for scale, size in zip(scales, result, strict=True)]


def _filled(need: Callable[[float], int | None], scales: Sequence[float]) -> list[int | None]:
    """The need at each scale, asked of as few as tell those between them, for it never falls."""
    first, last = need(scales[0]), need(scales[-1])
    if first == last:
        return [first] * len(scales)
    if len(scales) == 2:
        return [first, last]
    middle = len(scales) // 2
    return _filled(need, scales[: middle + 1])[:-1] + _filled(need, scales[middle:])
