"""Capacity: the highest load at which a given share of requests meets every SLO; at 99 %, the p99 goodput.

All loads are tried with the same seeds, and a seed's randomness is mapped to every rate, so attainment falls smoothly
as the rate rises and luck does not mislead the search. What is left of luck, that of the seeds, is the interval.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.study.intervals import Estimate, around, standard_error
from simserve.study.load_scale import at_scale
from simserve.study.replications import Summary, replicate

WIDEST = 2.0**10
"""No load so many times the scenario's own, or its own so many times, is tried."""

FIRST_SEEDS = 8
MOST_SEEDS = 128

CLOSE = 0.02
"""How far apart the rates are, as a share, between which the answer is read off a straight line; the line errs by
much less."""

MOST_TRIES = 40

Told = Callable[[float, int], None]
"""Called with a rate in requests a second and the runs at it so far."""

RunsAt = Callable[[float, Sequence[int]], list[Summary]]
"""What comes of a load, so many times the scenario's own, with each of some seeds."""


@dataclass(frozen=True)
class Question:
    """What is asked."""

    scenario: Scenario
    goal_frac: float
    """Of all requests, how many must meet every SLO."""
    precision_frac: float
    """How wide half the interval may be, as a share of the answer."""


@dataclass(frozen=True)
class Point:
    """One load, tried with some seeds."""

    scale: float
    """Times the scenario's own rates."""
    runs: tuple[Summary, ...]
    """One a seed."""

    @property
    def offered_per_s(self) -> float:
        """Requests a second."""
        return float(np.mean([run["offered_per_s"] for run in self.runs]))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Of each run, the requests that met every SLO and all that arrived, `(n_runs, 2)`."""
        return np.array([[run["slo_attainment"][key] for key in ("n_met", "n_arrived")] for run in self.runs])

    @property
    def attained_frac(self) -> float:
        """Of all requests of all runs."""
        n_met, n_arrived = self.counts.sum(axis=0)
        return float(n_met / n_arrived)

    @property
    def is_saturated(self) -> bool:
        """In most runs the queue only grew: what was attained says how long they were."""
        return bool(2 * sum(run["trust"]["saturated"] for run in self.runs) > len(self.runs))

    def by_slo(self) -> dict[str, float]:
        """The share that met each SLO."""
        found = [run["slo_attainment"]["by_slo"] for run in self.runs]
        return {key: float(np.mean([each[key] for each in found])) for key in found[0]}

    def latency_s(self, key: str, level: str) -> float:
        """The mean of the runs' percentiles; NaN where a run has none."""
        return float(np.mean([math.nan if run[key][level] is None else run[key][level] for run in self.runs]))


@dataclass(frozen=True)
class Capacity:
    """The answer."""

    question: Question
    scale: Estimate
    """Of the scenario's own rates."""
    offered_per_s: Estimate
    """The p99 goodput, where the goal is 99 %; requests a second offered, nearly all of which are good."""
    below: Point
    above: Point
    """The loads on both sides of the answer."""
    points: tuple[Point, ...]
    """All that were tried, by load."""

    @property
    def is_precise(self) -> bool:
        """The interval is as narrow as was asked for."""
        return _half_frac(self.scale) <= self.question.precision_frac


@dataclass(frozen=True)
class Unbounded:
    """No answer: every load that was tried meets the SLOs, or none does."""

    question: Question
    last: Point
    """The highest load, or the lowest."""

    @property
    def is_met(self) -> bool:
        """Every load meets them."""
        return self.last.scale > 1


def find_capacity(question: Question, told: Told | None = None) -> Capacity | Unbounded:
    """Search. Raises SimserveError where there is no SLO to hold a load to, or no rate to search over."""
    check_slo(question.scenario)
    return search(question, lambda scale, seeds: replicate([at_scale(question.scenario, scale)], seeds)[0], told)


def search(question: Question, runs_at: RunsAt, told: Told | None = None) -> Capacity | Unbounded:
    """Likewise, whatever it is that runs."""
    return _Search(question, runs_at, told).answer()


def check_slo(scenario: Scenario) -> None:
    """Raises SimserveError where there is none."""
    if not scenario.slo.classes and all(limit is None for _, limit in scenario.slo.default):
        rule = "needs an slo to be held to, got none"
        raise SimserveError(f"{scenario.name}: {rule}; give one, such as slo: {{ttft_s: 0.5, tpot_s: 0.05}}")


class _Search:
    """Loads tried so far, all with the same seeds."""

    def __init__(self, question: Question, runs_at: RunsAt, told: Told | None) -> None:
        self._question = question
        self._runs_at = runs_at
        self._told = told
        self._n_seeds = FIRST_SEEDS
        self._runs: dict[float, list[Summary]] = {}

    def answer(self) -> Capacity | Unbounded:
        """Bracket, close in, and add seeds until the interval is narrow enough."""
        found = self._bracket()
        if isinstance(found, Point):
            return Unbounded(self._question, found)
        below, above = found
        while True:
            below, above = self._close_in(below, above)
            scale = _root(below, above, self._question.goal_frac)
            if _half_frac(scale) <= self._question.precision_frac or self._n_seeds >= MOST_SEEDS:
                return self._capacity(scale, below, above)
            self._n_seeds = min(MOST_SEEDS, self._seeds_wanted(scale))
            below, above = self._at(below.scale), self._at(above.scale)
            while not self._holds(below):
                below, above = self._at(below.scale * (1 - CLOSE)), below
            while self._holds(above):
                below, above = above, self._at(above.scale * (1 + CLOSE))

    def _seeds_wanted(self, scale: Estimate) -> int:
        """The interval narrows with the square root of the seeds; at most four times as many at once."""
        factor = (_half_frac(scale) / self._question.precision_frac) ** 2
        return math.ceil(self._n_seeds * min(4.0, 1.1 * factor))

    def _at(self, scale: float) -> Point:
        """A load with all seeds; those it was tried with before are not run again."""
        runs = self._runs.setdefault(scale, [])
        first = self._question.scenario.seed
        seeds = range(first + len(runs), first + self._n_seeds)
        if seeds:
            runs += self._runs_at(scale, seeds)
        point = Point(scale, tuple(runs))
        if self._told and seeds:
            self._told(point.offered_per_s, len(runs))
        return point

    def _holds(self, point: Point) -> bool:
        return point.attained_frac >= self._question.goal_frac and not point.is_saturated

    def _bracket(self) -> tuple[Point, Point] | Point:
        """Two loads, the second twice the first, that holds while the second does not; or the last one looked at."""
        point = self._at(1.0)
        is_up = self._holds(point)
        while 1 / WIDEST < point.scale < WIDEST:
            other = self._at(point.scale * (2.0 if is_up else 0.5))
            if self._holds(other) != is_up:
                return (point, other) if is_up else (other, point)
            point = other
        return point

    def _close_in(self, below: Point, above: Point) -> tuple[Point, Point]:
        """Until they are near each other: where a line between them says the answer is, kept off both ends."""
        for _ in range(MOST_TRIES):
            width = math.log(above.scale / below.scale)
            if width <= CLOSE:
                break
            share = _share_of_way(below, above, self._question.goal_frac)
            # Just beyond the line's answer, on the far side of it from the nearer end, so that the bracket shrinks.
            step = share + (0.4 * CLOSE / width if share < 0.5 else -0.4 * CLOSE / width)
            middle = self._at(below.scale * math.exp(width * min(max(step, 0.1), 0.9)))
            if self._holds(middle):
                below = middle
            else:
                above = middle
        return below, above

    def _capacity(self, scale: Estimate, below: Point, above: Point) -> Capacity:
        per_scale = (below.offered_per_s / below.scale + above.offered_per_s / above.scale) / 2
        rate = Estimate(*(end * per_scale for end in (scale.value, scale.low, scale.high)))
        points = tuple(Point(scale, tuple(runs)) for scale, runs in sorted(self._runs.items()))
        return Capacity(self._question, scale, rate, below, above, points)


def _half_frac(scale: Estimate) -> float:
    return (scale.high - scale.low) / 2 / scale.value


def _root(below: Point, above: Point, goal_frac: float) -> Estimate:
    """Where attainment passes the goal, in logs of the scale, with the error that leaving out each seed tells."""
    low, width = math.log(below.scale), math.log(above.scale / below.scale)
    value = low + width * _share_of_way(below, above, goal_frac)
    if above.is_saturated:  # its attainment says nothing, so all that is known is that the answer is between the two
        return Estimate(math.exp(value), below.scale, above.scale)
    n = len(below.runs)
    without = [low + width * _share_of_way(below, above, goal_frac, left_out) for left_out in range(n)]
    found = around(value, standard_error(np.array(without)), n - 1)
    return Estimate(*(math.exp(end) for end in (found.value, found.low, found.high)))


def _share_of_way(below: Point, above: Point, goal_frac: float, left_out: int | None = None) -> float:
    """How far from below to above the goal lies, on a line through the logits of the shares that miss."""
    if above.is_saturated:
        return 0.5
    goal = _logit(1 - goal_frac)
    near, far = (_missed(point, left_out) - goal for point in (below, above))
    return near / (near - far) if near != far else 0.5


def _missed(point: Point, left_out: int | None) -> float:
    """The logit of the share that missed, over all runs but one; half a request more on both sides, so it is finite."""
    counts = point.counts if left_out is None else np.delete(point.counts, left_out, axis=0)
    n_met, n_arrived = counts.sum(axis=0)
    return _logit((n_arrived - n_met + 0.5) / (n_arrived + 1))


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
