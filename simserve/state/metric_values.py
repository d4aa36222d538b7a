"""Expression: a number that a monitoring system computes from the samples of a pool, a value a member or one in all.

A sample older than Prometheus' lookback counts as none, so a signal that has stopped reads as missing.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import fmean
from typing import Final

from simserve.state.pool_view import GATEWAY, PoolView, Signals, present

LOOKBACK_S: Final = 300.0
"""Age at which Prometheus forgets a sample (its `--query.lookback-delta`)."""

Values = Sequence[float | None]
"""A value a member, in the order of the members, or one value; None: there is none."""

AGGREGATIONS: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "sum": sum,
    "avg": fmean,
    "max": max,
    "min": min,
    "count": len,
}
"""One value from many, by PromQL's names."""

OPERATIONS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class Expression:
    """What a query says."""

    @property
    def by_member(self) -> bool:
        """It has a value a member, rather than one."""
        return False

    @property
    def metrics(self) -> frozenset[str]:
        """Metrics that it reads."""
        return frozenset()

    def values(self, pool: PoolView) -> Values:
        """Return its values now."""
        raise NotImplementedError

    def total(self, pool: PoolView) -> float | None:
        """Return the sum of its values; None if there are none."""
        known = present(self.values(pool))
        return sum(known) if known else None


@dataclass(frozen=True)
class NumberLiteral(Expression):
    """A number in a query."""

    number: float

    def values(self, pool: PoolView) -> Values:
        """Return the number."""
        return [self.number]


@dataclass(frozen=True)
class Series(Expression):
    """A metric of each member, or of the gateway: its youngest samples."""

    metric: str

    @property
    def by_member(self) -> bool:
        """The gateway has one value."""
        return self.metric not in GATEWAY

    @property
    def metrics(self) -> frozenset[str]:
        """Its metric."""
        return frozenset([self.metric])

    def values(self, pool: PoolView) -> Values:
        """Return the youngest samples."""
        return [signals.last(self.metric, pool.now_s - LOOKBACK_S) for signals in self._sources(pool)]

    def _sources(self, pool: PoolView) -> list[Signals]:
        return [member.signals for member in pool.members] if self.by_member else [pool.gateway]


@dataclass(frozen=True)
class Windowed(Series):
    """A metric over a window that ends now."""

    window_s: float

    def _samples(self, pool: PoolView) -> list[list[tuple[float, float]]]:
        first_s = pool.now_s - self.window_s
        sources = self._sources(pool)
        return [[each for each in one.over(self.metric, self.window_s) if each[0] > first_s] for one in sources]


@dataclass(frozen=True)
class OverTime(Windowed):
    """The samples of a window in one number: `max_over_time(metric[60s])` and its like."""

    how: str

    def values(self, pool: PoolView) -> Values:
        """Return the aggregates; None without samples."""
        return [AGGREGATIONS[self.how]([value for _, value in part]) if part else None for part in self._samples(pool)]


@dataclass(frozen=True)
class Increase(Windowed):
    """A counter's growth over a window (`increase`), extrapolated to the whole window as Prometheus does."""

    def values(self, pool: PoolView) -> Values:
        """Return growth; None with fewer than two samples. A counter that falls was reset."""
        return [self._growth(samples) if len(samples) > 1 else None for samples in self._samples(pool)]

    def _growth(self, samples: list[tuple[float, float]]) -> float:
        growth = sum(after - before if after >= before else after for (_, before), (_, after) in pairwise(samples))
        return growth * self.window_s / (samples[-1][0] - samples[0][0])


@dataclass(frozen=True)
class Aggregated(Expression):
    """`sum(...)` and its like: one value from those of the members; with `keeps_members` a value a member stays."""

    how: str
    inner: Expression
    keeps_members: bool = False

    @property
    def by_member(self) -> bool:
        """`by (pod)` keeps the members."""
        return self.keeps_members and self.inner.by_member

    @property
    def metrics(self) -> frozenset[str]:
        """Metrics inside it."""
        return self.inner.metrics

    def values(self, pool: PoolView) -> Values:
        """Return the aggregate; None without any value."""
        groups = [[value] for value in self.inner.values(pool)] if self.by_member else [self.inner.values(pool)]
        return [AGGREGATIONS[self.how](known) if (known := present(group)) else None for group in groups]


@dataclass(frozen=True)
class Arithmetic(Expression):
    """Two expressions with a sign between them; a value a member and a constant go together."""

    sign: str
    left: Expression
    right: Expression

    @property
    def by_member(self) -> bool:
        """One side with a value a member is enough."""
        return self.left.by_member or self.right.by_member

    @property
    def metrics(self) -> frozenset[str]:
        """Metrics of both sides."""
        return self.left.metrics | self.right.metrics

    def values(self, pool: PoolView) -> Values:
        """Return the results; None where a side has no value, or the divisor is 0."""
        n_values = len(pool.members) if self.by_member else 1
        sides = [[*side.values(pool)] * (1 if side.by_member else n_values) for side in (self.left, self.right)]
        return [self._result(left, right) for left, right in zip(*sides, strict=True)]

    def _result(self, left: float | None, right: float | None) -> float | None:
        if left is None or right is None or (self.sign == "/" and not right):
            return None
        result = OPERATIONS[self.sign](left, right)
        return result if isfinite(result) else None


@dataclass(frozen=True)
class ZeroIfEmpty(Expression):
    """`... or vector(0)`: 0 where there is no value."""

    inner: Expression

    @property
    def metrics(self) -> frozenset[str]:
        """Metrics inside it."""
        return self.inner.metrics

    def values(self, pool: PoolView) -> Values:
        """Return the value, or 0."""
        return [self.inner.total(pool) or 0.0]


@dataclass(frozen=True)
class Together(Expression):
    """The sum of what there is of several expressions; None if there is nothing of any."""

    parts: tuple[Expression, ...]

    @property
    def metrics(self) -> frozenset[str]:
        """Metrics of all of them."""
        return frozenset[str]().union(*(part.metrics for part in self.parts))

    def values(self, pool: PoolView) -> Values:
        """Return the sum."""
        known = present(part.total(pool) for part in self.parts)
        return [sum(known) if known else None]


def concurrency(window_s: float | None = None) -> Expression:
    """Return the requests at the members and those that wait at the gateway: the last ones, or the mean of a window."""
    names = ("num_requests_running", "num_requests_waiting", "gateway_queue_size")
    return Together(tuple(Series(name) if window_s is None else OverTime(name, window_s, "avg") for name in names))
