"""Margin: the logarithm of r, with the noise of the sample, the error of drawn costs, and the errors of servers.

The estimate is the quantile of r over the pooled requests of runs with nominal costs. Its standard error comes from the
log quantiles of the sections about it (sectioning: Asmussen and Glynn, Stochastic Simulation, 2007; Nakayama, ACM
TOMACS 24, 2014), and shrinks with more runs. The error of costs does not: it is the spread of log r between draws of
costs on equal seeds, and the errors of servers, which multiply a latency directly. Coverage: docs/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from simserve.metrics.cost_error import Pair, cost_error, server_errors
from simserve.metrics.goal import CAP
from simserve.metrics.stats import Ratios
from simserve.metrics.student import cdf, quantile
from simserve.metrics.tails import FLOOR, MOST_SECTIONS, Sample, capped, log_of, n_allowed, pooled, quantile_of
from simserve.tables.columns import Floats

LEAST_BEYOND = 10
"""Requests beyond the quantile that each section needs."""

FEWEST_SECTIONS = 4
"""Fewest sections for a standard error."""

FEWEST_BATCHES = 8
"""Fewest sections of a single run."""

LEAST_LENGTHS = 10
"""Least length of such a section, in statistical inefficiencies."""

FEWEST_CONTROLLED, LEAST_CORRELATION = 16, 0.5
"""Sections, and their correlation with the drawn load, from which it corrects the estimate."""

MOST_FREE = 100
"""Degrees of freedom of an error that is known rather than estimated."""

Z_95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Margin:
    """Where log r lies, as far as noise and cost error tell."""

    log_r: float
    noise_sd: float
    n_free: int
    """Degrees of freedom of the standard error by noise."""
    cost_sd: float = 0.0
    n_cost_free: int = 1
    points: Floats = field(default_factory=lambda: np.zeros(1))
    """What errors of servers add to log r, at points of equal probability, `(n_points,)`."""

    def probability(self, log_limit: float = 0.0) -> float:
        """Return the probability that log r is at most a limit."""
        away = log_limit - self.log_r - self.points
        if self._sd == 0:
            return float(np.mean(away >= 0))
        chance = float(cdf(away / self._sd, self._n_free).mean())
        return min(max(chance, 0.0), 1.0)  # but for a rounding error

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the interval of r, from 0 to CAP."""
        low, high = (1 - confidence) / 2, (1 + confidence) / 2
        if len(self.points) == 1:
            half = quantile(high, self._n_free) * self._sd if self._sd else 0.0
            return capped(self.log_r + self.points[0] - half), capped(self.log_r + self.points[0] + half)
        return self.quantile(low), self.quantile(high)

    def quantile(self, share: float) -> float:
        """Return the least r up to which the share lies, by bisection."""
        low, high = math.log(FLOOR), math.log(CAP)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.probability(middle) < share else (low, middle)
        return capped(high)

    @cached_property
    def _sd(self) -> float:
        return math.hypot(self.noise_sd, self.cost_sd)

    @cached_property
    def _n_free(self) -> int:
        """Degrees of freedom of both errors together (Welch and Satterthwaite)."""
        noise, cost = self.noise_sd**2, self.cost_sd**2
        if noise + cost == 0:
            return self.n_free
        return max(1, int((noise + cost) ** 2 / (noise**2 / self.n_free + cost**2 / self.n_cost_free)))

    @property
    def variance(self) -> float:
        """The variance of log r, by noise and cost error."""
        return self._sd**2 + float(self.points.var())

    @property
    def by_noise(self) -> "Margin":
        """The margin as if costs were exact."""
        return Margin(self.log_r, self.noise_sd, self.n_free)

    @property
    def by_cost(self) -> "Margin":
        """The margin as if endlessly many runs had been made."""
        return replace(self, noise_sd=0.0)


def margin_of(runs: Sequence[Sample], goal: float, pairs: Sequence[Pair], server_sd: Mapping[str, float]) -> Margin:
    """Return the margin of runs with nominal costs, each with a load of its own, or of a single one.

    pairs: draws of costs. server_sd: standard deviations of the logarithms of servers' errors, by limit.
    """
    whole = pooled(runs)
    by_noise = _by_sections(_sections(runs, whole, goal), whole, goal)
    by_noise = by_noise or _by_rank(whole, goal)
    cost_sd, n_cost_free = cost_error(pairs, goal)
    points = server_errors(whole, goal, server_sd)
    return replace(by_noise, cost_sd=cost_sd, n_cost_free=n_cost_free, points=points)


def n_sections(run: Sample, goal_frac: float) -> int:
    """Return into how many sections a single run may be divided, each long enough for its own quantile."""
    decisive = max(run.tails.values(), key=lambda tail: tail.r(goal_frac))
    most = min(run.n_effective / LEAST_LENGTHS, decisive.n * (1 - goal_frac) / LEAST_BEYOND)
    return min(MOST_SECTIONS, int(most + 1e-9))


def _sections(runs: Sequence[Sample], whole: Sample, goal_frac: float) -> list[Sample]:
    """Return the sections of the sample: its runs, merged until each has enough requests, or parts of a single run."""
    if len(runs) == 1:
        n_batches = n_sections(whole, goal_frac) if runs[0].is_ordered else 0
        return whole.sections(n_batches) if n_batches >= FEWEST_BATCHES else []
    decisive = max(whole.tails, key=lambda name: whole.tails[name].r(goal_frac))
    groups: list[list[Sample]] = [[]]
    for run in runs:
        groups[-1].append(run)
        if (
            sum(each.tails[decisive].n for each in groups[-1] if decisive in each.tails) * (1 - goal_frac)
            >= LEAST_BEYOND
        ):
            groups.append([])
    left = groups.pop()
    if groups:
        groups[-1] += left
    return [pooled(group) for group in groups]


def _by_sections(sections: Sequence[Sample], whole: Sample, goal_frac: float) -> Margin | None:
    """Return the margin by how sections differ; None with too few of them.

    Two errors agree where many sections have requests beyond the quantile: the spread of the sections' own quantiles
    about that of all, and that of the quantiles without each section (jackknife). Where few sections have nearly all of
    them, both are too small by chance, and are added to that extent (coverage: docs/statistics.md).
    """
    n = len(sections)
    if n < FEWEST_SECTIONS:
        return None
    log_r, without = log_of(whole.r(goal_frac)), _without_each(sections, goal_frac)
    logs = np.array([log_of(section.r(goal_frac)) for section in sections])
    weights = np.array([section.n for section in sections]) / whole.n
    off_fracs, n_free, of_control = [section.off_frac for section in sections], n - 1, 0.0
    if n >= FEWEST_CONTROLLED and None not in off_fracs:
        off = np.array(off_fracs, np.float64)
        mean, (slope, slope_error) = float(weights @ off), _slope(logs, off)
        log_r, logs, n_free = log_r - slope * mean, logs - slope * off, n - 1 - (slope > 0)
        without = without - slope * (mean - weights * off) / (1 - weights)
        of_control = (slope_error * mean) ** 2
    spread = float(np.square(weights * (logs - log_r)).sum()) * n / n_free
    jackknife = float(np.square(without - log_r).sum()) * (n - 1) ** 2 / n / n_free
    n_beyond = np.array([section.n_beyond(whole.r(goal_frac)) for section in sections], np.float64)
    even_frac = float(n_beyond.sum() ** 2 / np.square(n_beyond).sum()) / n
    low, high = sorted((spread, jackknife))
    return Margin(log_r, math.sqrt(high + (1 - even_frac) * low + of_control), n_free)


def _without_each(sections: Sequence[Sample], goal_frac: float) -> Floats:
    """Return log r of all sections but one, for each of them, `(n_sections,)`."""
    result = np.full(len(sections), math.log(FLOOR))
    for name in dict.fromkeys(name for section in sections for name in section.tails):
        places = [place for place, section in enumerate(sections) if name in section.tails]
        tails = [sections[place].tails[name] for place in places]
        r = np.concatenate([tail.highest() for tail in tails])
        order = np.argsort(-r, kind="stable")
        owner = np.repeat(places, [len(tail.ratios) for tail in tails])[order]
        n = sum(tail.n for tail in tails)
        for place, section in enumerate(sections):
            others = np.flatnonzero(owner != place)
            n_beyond = n_allowed(n - (section.tails[name].n if name in section.tails else 0), goal_frac)
            left = float(r[order[others[n_beyond]]]) if n_beyond < len(others) else 0.0
            result[place] = max(result[place], log_of(left))
    return result


def _slope(logs: Floats, off: Floats) -> tuple[float, float]:
    """Return the slope of log quantiles over the drawn load and its standard error; 0 where they are correlated too
    little."""
    if off.std() == 0 or logs.std() == 0 or np.corrcoef(logs, off)[0, 1] < LEAST_CORRELATION:
        return 0.0, 0.0
    x, y = off - off.mean(), logs - logs.mean()
    slope = float(x @ y / (x @ x))
    return slope, math.sqrt(float(np.square(y - slope * x).sum() / (x @ x)) / (len(x) - 2))


def _by_rank(whole: Sample, goal_frac: float) -> Margin:
    """Return the margin by ranks of a binomial interval, for the effective sample size."""
    tail = max(whole.tails.values(), key=lambda each: each.r(goal_frac))
    r, n_beyond = tail.highest(), n_allowed(tail.n, goal_frac)
    n_effective = max(1.0, whole.n_effective * tail.n / whole.n)
    half = Z_95 * math.sqrt(goal_frac * (1 - goal_frac) / n_effective) * tail.n
    log_r = log_of(quantile_of(r, n_beyond))
    if log_r > 0:  # the lower end decides
        end = log_of(quantile_of(r, math.ceil(n_beyond + half)))
    elif half <= n_beyond:
        end = log_of(quantile_of(r, math.floor(n_beyond - half)))
    else:
        least = Z_95 * math.sqrt(goal_frac / (1 - goal_frac) / n_effective) / -math.log(1 - goal_frac)  # exponential
        end = min(math.log(CAP), max(log_r + least, _beyond_the_sample(r, tail.n, n_effective, goal_frac)))
    return Margin(log_r, abs(end - log_r) / Z_95, MOST_FREE)


def _beyond_the_sample(r: Ratios, n: int, n_effective: float, goal_frac: float) -> float:
    """Return the upper end of log r where the sample ends before the goal: by that of the ratio which a tenth exceeds,
    for a tail no heavier than exponential; infinite where the sample does not bound this one, or has a heavier tail."""
    place = math.floor(n / 10 - Z_95 * math.sqrt(0.09 / n_effective) * n)
    times = math.log(max(1.0, math.log(1 - goal_frac) / math.log(0.1)))
    is_heavier = log_of(quantile_of(r, n_allowed(n, goal_frac))) > times + log_of(quantile_of(r, n // 10))
    return math.inf if place < 0 or is_heavier else times + log_of(quantile_of(r, place))
