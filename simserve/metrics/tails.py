"""Tails: how close the latencies of a run come to their limits, which is all that a decision about the SLO needs.

The ratio r of a request is the largest of latency / limit over its limits. "A goal of 99% is met" and "the 99% quantile
of r is at most 1" are the same sentence, and the second says by how much (docs/statistics.md).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.classes import of_class
from simserve.metrics.goal import CAP
from simserve.metrics.goodput import GOALS
from simserve.metrics.stats import Groups, Ratios, TailJson, grouped
from simserve.metrics.summary_schema import Queue
from simserve.tables.columns import Columns, Flags, Ints
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import pieces
from simserve.units import PS_PER_S

FLOOR = 1e-6
"""Least ratio inside a logarithm."""

MOST_KEPT = 100_000
"""Requests of a tail that keeps all of them; a longer one keeps those of which a quantile may be made."""

MOST_SECTIONS, SHARE_KEPT = 20, 0.3
"""Sections of a long run at most, and the share that it keeps of all requests and of each section: for goals from 90%
on, as those beyond the quantile of eight sections may all lie in one of twenty."""

Factors = Mapping[str, float]
"""Factors on latencies, by limit; 1 where there is none."""


@dataclass(frozen=True)
class Tail:
    """Latencies over limits of the n requests of one class, or of all: of a run, or of several together."""

    limits: tuple[str, ...]
    """The goals of an SLO that the class has, in the order of the columns of `ratios`."""
    n: int
    ratios: Ratios
    """Latency / limit of the requests that are kept, in order of arrival, `(n_kept, n_limits)`, in single precision;
    infinite without a full answer, 0 where there is no such latency."""
    places: Ints
    """Place of each among all requests, `(n_kept,)`."""
    n_missed: int
    """Requests of the n that missed a limit."""
    groups: Groups | None = None
    """r of all requests in groups, where not all are kept."""

    def highest(self, factors: Factors | None = None) -> Ratios:
        """Return r of each kept request, with its latencies times factors, `(n_kept,)`."""
        ratios = self.ratios if factors is None else self.ratios * [factors.get(name, 1.0) for name in self.limits]
        by_limit = np.ascontiguousarray(ratios.T)  # fast: whole columns, a twentieth of the time of short rows
        r: Ratios = np.minimum(np.maximum.reduce(by_limit, initial=0.0), CAP)
        return r

    def r(self, goal_frac: float, factors: Factors | None = None) -> float:
        """Return the quantile of r at the goal, an order statistic: at most 1 just where that share meets the SLO."""
        return quantile_of(self.highest(factors), n_allowed(self.n, goal_frac))

    def by_limit(self, goal_frac: float) -> dict[str, float]:
        """Return the quantile of each limit's own ratio at the goal."""
        n_beyond = n_allowed(self.n, goal_frac)
        own = (quantile_of(np.minimum(column, CAP), n_beyond) for column in self.ratios.T)
        return dict(zip(self.limits, own, strict=True))

    def first_limit(self, goal_frac: float) -> str:
        """Return the limit with the largest quantile of its own ratio."""
        by_limit = self.by_limit(goal_frac)
        return max(self.limits, key=lambda name: by_limit[name])

    def sections(self, n_sections: int) -> list["Tail"]:
        """Return the requests as so many sections of equal size, in order of arrival."""
        starts = np.arange(n_sections + 1) * self.n // n_sections
        ends = np.searchsorted(self.places, starts).tolist()
        parts = zip(np.diff(starts).tolist(), map(slice, ends[:-1], ends[1:]), strict=True)
        return [replace(self, n=n, ratios=self.ratios[part], places=self.places[part]) for n, part in parts]

    def beyond(self, goal_frac: float) -> "Tail":
        """Return the tail with no more requests than decide its quantile, whatever factors multiply their latencies. A
        request beyond the quantile of the largest ratio is beyond that of one of its ratios."""
        kept = _beyond(self.ratios, (n_allowed(self.n, goal_frac) + 1) / max(1, len(self.ratios)))
        return replace(self, ratios=self.ratios[kept], places=self.places[kept])


def in_groups(name: str | None, tail: Tail) -> TailJson:
    """Return r of the requests of a tail in groups, so that runs can be pooled later."""
    counts, r = tail.groups or grouped(tail.highest(), tail.n_missed)
    return TailJson(slo_class=name, counts=counts, r=r)


def from_groups(counts: Sequence[int], r: Sequence[float]) -> Tail:
    """Return the tail of `in_groups`, without telling its limits apart."""
    ratios = np.repeat(np.array(r, np.float32), counts)[:, None]
    return Tail(("any",), len(ratios), ratios, np.arange(len(ratios)), int(np.count_nonzero(ratios > 1)))


Tails = Mapping[str | None, Tail]
"""The tails of a run by class; by None where no class has requests of its own."""


@dataclass(frozen=True)
class Sample:
    """One run, or several together, as a decision sees it."""

    tails: Tails
    n_effective: float
    """Independent requests that carry as much information as those of the run."""
    queue: Queue | None
    """steady, critical, growing or undetermined."""
    off_frac: float | None
    """Drawn over nominal load, less 1; None where there is no nominal load."""
    is_ordered: bool = True
    """Whether requests are in order of arrival, so that it has sections; not if they come from groups."""

    def r(self, goal_frac: float, factors: Factors | None = None) -> float:
        """Return r at the goal, of the class where it is largest; 0 without requests."""
        return max((tail.r(goal_frac, factors) for tail in self.tails.values()), default=0.0)

    def decisive(self, goal_frac: float) -> tuple[str | None, Tail]:
        """Return the class with the largest r, and its tail. Raises ValueError without requests."""
        return max(self.tails.items(), key=lambda item: item[1].r(goal_frac))

    def n_beyond(self, r: float) -> int:
        """Return how many requests have at least this r."""
        return sum(int(np.count_nonzero(tail.highest() >= r)) for tail in self.tails.values())

    @property
    def limits(self) -> set[str]:
        """The goals of the SLOs of all classes."""
        return {name for tail in self.tails.values() for name in tail.limits}

    def beyond(self, goal_frac: float) -> "Sample":
        """Return the sample with no more requests than decide its quantile, whatever factors multiply latencies."""
        return replace(self, tails={name: tail.beyond(goal_frac) for name, tail in self.tails.items()})

    @property
    def n(self) -> int:
        """Requests of all classes."""
        return sum(tail.n for tail in self.tails.values())

    def sections(self, n_sections: int) -> list["Sample"]:
        """Return the sample as so many sections, in order of arrival."""
        parts = {name: tail.sections(n_sections) for name, tail in self.tails.items()}
        each = self.n_effective / n_sections
        return [
            Sample({name: parts[name][k] for name in parts}, each, self.queue, self.off_frac) for k in range(n_sections)
        ]


def n_allowed(n: int, goal_frac: float) -> int:
    """Return how many of n requests may miss a limit with the goal still met."""
    return n - math.ceil(goal_frac * n - 1e-9)


def quantile_of(values: Ratios, n_beyond: int) -> float:
    """Return the largest value that at most n_beyond others exceed; 0 where fewer are kept."""
    if n_beyond >= len(values):
        return 0.0
    return float(np.partition(values, -1 - n_beyond)[-1 - n_beyond])


def tails_of(requests: Columns, facts: RunFacts, classes: Iterable[str] | None) -> Tails:
    """Return the tails of a run; none where it has no SLO or no requests in its window."""
    names: Iterable[str | None] = classes or (None,)
    tails = {name: _tail(requests, name, facts.slo_classes.get(name or "", facts.slo)) for name in names}
    return {name: tail for name, tail in tails.items() if tail is not None}


def _tail(requests: Columns, name: str | None, slo: Mapping[str, float]) -> Tail | None:
    """Return the tail of a class, None: of all requests."""
    each = [_ratios(part, name, list(slo.items())) for part in pieces(requests)] if slo else []
    n = sum(len(array) for array in each)
    if not n:
        return None
    ratios = np.concatenate(each)
    highest = ratios.max(axis=1)
    n_missed = int(np.count_nonzero(highest > 1))
    if n <= MOST_KEPT:
        return Tail(tuple(slo), n, ratios, np.arange(n), n_missed)
    groups = grouped(np.minimum(highest, CAP), n_missed)
    places = _kept(ratios)
    return Tail(tuple(slo), n, ratios[places], places, n_missed, groups)


def _ratios(requests: Columns, name: str | None, limits_s: Sequence[tuple[str, float]]) -> NDArray[np.float32]:
    """Return latency / limit of the counted requests of a class, `(n, n_limits)`."""
    inside = requests["in_window"] if name is None else requests["in_window"] & of_class(requests, name)
    finished = requests["status"].is_("finished")[inside]
    ratios = np.empty((len(finished), len(limits_s)), np.float32)
    for column, (goal, limit_s) in zip(ratios.T, limits_s, strict=True):
        latency_s = requests[GOALS[goal]][inside]
        column[:] = np.where(finished, np.nan_to_num(latency_s / max(limit_s, 1 / PS_PER_S)), np.inf)
    return ratios


def _kept(ratios: Ratios) -> Ints:
    """Return which requests of a long run to keep: those of which its quantiles are made, and its sections'."""
    n = len(ratios)
    kept = _beyond(ratios, SHARE_KEPT)
    for k in range(MOST_SECTIONS):
        part = slice(k * n // MOST_SECTIONS, (k + 1) * n // MOST_SECTIONS)
        kept[part] |= _beyond(ratios[part], SHARE_KEPT)
    return np.flatnonzero(kept)


def _beyond(ratios: Ratios, share: float) -> Flags:
    """Return which requests are among the share with the highest of one of their ratios, `(n,)`."""
    n_beyond = min(len(ratios), int(share * len(ratios)) + 1)
    flags: Flags = (ratios >= np.partition(ratios, -n_beyond, axis=0)[-n_beyond]).any(axis=1)
    return flags


def pooled(samples: Sequence[Sample]) -> Sample:
    """Return the requests of several runs as one sample."""
    if len(samples) == 1:
        return samples[0]
    tails: dict[str | None, Tail] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample.tails):
        parts = [sample.tails[name] for sample in samples if name in sample.tails]
        firsts = np.cumsum([0, *(part.n for part in parts)]).tolist()
        tails[name] = Tail(
            parts[0].limits,
            firsts[-1],
            np.concatenate([part.ratios for part in parts]),
            np.concatenate([first + part.places for first, part in zip(firsts, parts, strict=False)]),
            sum(part.n_missed for part in parts),
        )
    n_effective = sum(sample.n_effective for sample in samples)
    known = [sample.off_frac for sample in samples if sample.off_frac is not None]
    off_frac = sum(known) / len(known) if len(known) == len(samples) else None
    return Sample(tails, n_effective, None, off_frac)


def capped(log_r: float) -> float:
    """Return r of its logarithm."""
    return min(math.exp(log_r), CAP)


def log_of(r: float) -> float:
    """Return the logarithm of r."""
    return math.log(max(r, FLOOR))
