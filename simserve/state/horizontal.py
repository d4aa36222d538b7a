"""Law of the Kubernetes horizontal pod autoscaler: from metrics to replicas, step by step.

Source: Kubernetes, pkg/controller/podautoscaler, replica_calculator.go (the wish of a metric) and horizontal.go
(windows and rates).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal, Protocol

from simserve.state.pool_view import PoolView

LONGEST_PERIOD_S: Final = 1800.0
"""Longest period of a limit on the rate that Kubernetes accepts."""

SelectPolicy = Literal["max", "min", "disabled"]

_CHOICES: Final[dict[str, Callable[[Sequence[int]], int]]] = {"max": max, "min": min, "disabled": lambda _: 0}
"""The change that counts among those that the limits permit."""


class RateLimit(Protocol):
    """A limit on how fast replicas are added or removed."""

    @property
    def type(self) -> Literal["pods", "percent"]:
        """Unit of the value."""

    @property
    def value(self) -> int:
        """Replicas, or percent of those at the start of the period."""

    @property
    def period_s(self) -> float:
        """Length of the period that ends now."""


class Direction(Protocol):
    """Rules of one direction, up or down."""

    @property
    def stabilization_window_s(self) -> float:
        """Window of the most cautious recommendation."""

    @property
    def policies(self) -> Sequence[RateLimit]:
        """Limits on the rate."""

    @property
    def select_policy(self) -> SelectPolicy:
        """Limit that counts."""

    @property
    def tolerance(self) -> float | None:
        """Tolerance of this direction; None: that of the cluster."""


@dataclass(frozen=True)
class Tolerance:
    """Ratios of a metric to its target at which nothing changes: 1 - down to 1 + up."""

    down: float
    up: float

    def holds(self, part: int, whole: int) -> bool:
        """Return whether a part of a whole is close enough to 1."""
        return (1000 - _thousandths(self.down)) * whole <= 1000 * part <= (1000 + _thousandths(self.up)) * whole


def tolerance_of(up: Direction, down: Direction, default: float) -> Tolerance:
    """Return the tolerances of both directions."""
    return Tolerance(*(default if side.tolerance is None else side.tolerance for side in (down, up)))


@dataclass(frozen=True)
class PodSamples:
    """A metric of the pods that run."""

    values: Sequence[float]
    n_missing: int
    """Pods that run without a sample: a server that loads its model is one of them."""
    n_pending: int
    """Pods that do not run yet."""


def wish_by_pods(pods: PodSamples, target: float, n_now: int, tolerance: Tolerance) -> int | None:
    """Return the replicas at which the mean of the pods meets the target; None without samples.

    Missing pods count as at the target on the way down and as 0 on the way up. Pending ones count as 0 on the way up,
    and not at all on the way down.
    """
    if not pods.values:
        return None
    aim, total, n_pods = _thousandths(target), sum(map(_thousandths, pods.values)), len(pods.values)
    first_excess = total - n_pods * aim
    n_filled = pods.n_missing + (pods.n_pending if first_excess > 0 else 0)
    total += pods.n_missing * aim if first_excess < 0 else 0
    whole = (n_pods + n_filled) * aim
    if tolerance.holds(total, whole) or first_excess * (total - whole) < 0:  # it has turned
        return n_now
    n_wished = -(-total // aim)
    goes_back = n_filled and (n_wished > n_now if total < whole else n_wished < n_now)
    return n_now if goes_back else n_wished


def wish_by_average(total: float | None, target: float, n_now: int, tolerance: Tolerance) -> int | None:
    """Return the replicas over which a total keeps its average at the target (AverageValue of an external metric)."""
    if total is None:
        return None
    part, aim = _thousandths(total), _thousandths(target)
    return n_now if n_now and tolerance.holds(part, n_now * aim) else -(-part // aim)


def wish_by_value(value: float | None, target: float, pool: PoolView, tolerance: Tolerance) -> int | None:
    """Return the replicas in proportion to a value of the whole pool (Value of an external or object metric)."""
    if value is None:
        return None
    part, aim = _thousandths(value), _thousandths(target)
    return pool.wanted if tolerance.holds(part, aim) else -(-part * pool.n_ready // aim)


class Recommendations:
    """Recommendations of the last windows: up takes the smallest of its window, down the largest."""

    def __init__(self, up_window_s: float, down_window_s: float) -> None:
        self._up_window_s, self._down_window_s = up_window_s, down_window_s
        self._past: list[tuple[float, int]] = []
        """Instants and recommendations before windows and limits; the first is the number found at the start."""

    def stabilized(self, now_s: float, n_now: int, wish: int) -> int:
        """Store a recommendation, and return the number nearest to the present one that the windows permit."""
        past = self._past or [(now_s, n_now)]
        lowest = min([wish, *(n for _, n in _within(past, now_s, self._up_window_s))])
        highest = max([wish, *(n for _, n in _within(past, now_s, self._down_window_s))])
        self._past = [*_within(past, now_s, max(self._up_window_s, self._down_window_s)), (now_s, wish)]
        return min(max(n_now, lowest), highest)


class HorizontalScaler:
    """The part of the law with a memory: stabilization windows, then limits on the rate, then bounds."""

    def __init__(self, up: Direction, down: Direction, min_replicas: int, max_replicas: int) -> None:
        self._up, self._down = up, down
        self._min_replicas, self._max_replicas = min_replicas, max_replicas
        self._recommendations = Recommendations(up.stabilization_window_s, down.stabilization_window_s)
        self._changed: list[tuple[float, int]] = []
        """Instants and numbers of replicas added, or removed: below 0."""

    def decide(self, now_s: float, n_now: int, wishes: Sequence[int | None]) -> int:
        """Return the replicas from the wishes of all metrics; None: a metric that cannot be read."""
        if not n_now:
            return 0  # a target of zero replicas is switched off, as long as the minimum is above zero
        n_new = min(max(n_now, self._min_replicas), self._max_replicas)
        if n_new == n_now:
            n_new = self._followed(now_s, n_now, wishes)
        if n_new != n_now:
            self._changed = [*_within(self._changed, now_s, LONGEST_PERIOD_S), (now_s, n_new - n_now)]
        return n_new

    def _followed(self, now_s: float, n_now: int, wishes: Sequence[int | None]) -> int:
        """Return the largest wish, within windows and limits."""
        known = [wish for wish in wishes if wish is not None]
        wish = max(known, default=n_now)
        if not known or (len(known) < len(wishes) and wish < n_now):
            return n_now
        return self._limited(now_s, n_now, self._recommendations.stabilized(now_s, n_now, wish))

    def _limited(self, now_s: float, n_now: int, n_wished: int) -> int:
        """Return a number within the limits on the rate and the bounds, which the present one is."""
        if n_wished == n_now:
            return n_now
        if n_wished > n_now:
            n_most = n_now + self._most_change(now_s, n_now, self._up, 1)
            return min(n_wished, n_most, self._max_replicas)
        n_least = n_now - self._most_change(now_s, n_now, self._down, -1)
        return max(n_wished, n_least, self._min_replicas)

    def _most_change(self, now_s: float, n_now: int, side: Direction, sign: int) -> int:
        """Return how many more replicas may be added or removed now."""
        changes = []
        for policy in side.policies:
            n_at_start = n_now - sum(n for _, n in _within(self._changed, now_s, policy.period_s))
            by_percent = sign * (_percent_limit(n_at_start, policy.value, sign) - n_at_start)
            n_permitted = policy.value if policy.type == "pods" else by_percent
            changes.append(n_permitted - sign * (n_now - n_at_start))
        return max(0, _CHOICES[side.select_policy](changes))


def _percent_limit(n_at_start: int, percent: int, sign: int) -> int:
    """Return the replicas that a policy in percent permits: rounded up on the way up, down on the way down."""
    hundredths = n_at_start * (100 + sign * percent)
    return -(-hundredths // 100) if sign > 0 else max(0, hundredths // 100)


def _within(samples: Sequence[tuple[float, int]], now_s: float, window_s: float) -> list[tuple[float, int]]:
    """Return what was stored less than a window ago."""
    return [sample for sample in samples if sample[0] > now_s - window_s]


def _thousandths(value: float) -> int:
    """Return a value in thousandths, as Kubernetes keeps quantities: rounded up, but for errors of floats."""
    return ceil(round(value * 1000, 6))
