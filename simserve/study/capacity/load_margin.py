"""Load margin: where the highest load lies, as far as noise and cost error tell, and the load to count on.

Each draw of costs has a highest load of its own. It is found on the seed that predicted costs also ran, and its shift
is the distance of the two; the spread of the shifts shrinks with no number of runs. Errors of servers multiply
latencies, so the runs with predicted costs tell what they do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simserve.metrics.answers.parts import FoundLoad
from simserve.metrics.decision import SURE_BY_NOISE, Effort, word_of
from simserve.metrics.margin import MOST_FREE, Z_95, Margin
from simserve.metrics.student import quantile
from simserve.metrics.summary_schema import Word
from simserve.study.capacity.boundary import Boundary
from simserve.study.capacity.drawn_loads import RatioCurve
from simserve.study.capacity.facts import bounded
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity_probe import NearCapacity
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.intervals import CONFIDENCE, Estimate

WIDE_SD = 0.5
"""Standard deviation of the logarithm from which an answer with cost error means little."""


@dataclass(frozen=True)
class LoadMargin:
    """Where the highest load lies, as multiples of its estimate."""

    margin: Margin
    """Distribution of the logarithm of the highest load over the estimate."""
    near: NearCapacity | None
    """The estimate against capacity, by draw of costs; None where unknown."""
    has_costs: bool = False
    """Whether the error of costs is part of it."""
    has_noise: bool = True
    """Whether noise is known, or there is none."""

    def probability(self, ratio: float) -> float:
        """Return the probability that a multiple of the estimate meets the goal."""
        beyond_frac = 0.0 if self.near is None else self.near.at(self.near.rate.per_s * ratio).probability
        return min(1.0 - self.margin.probability(math.log(ratio)), 1.0 - beyond_frac)

    def word(self, ratio: float, confidence: float) -> Word:
        """Return the decision about a multiple of the estimate."""
        by_noise = 1.0 - self.margin.by_noise.probability(math.log(ratio))
        return word_of(self.probability(ratio), by_noise, confidence)

    @property
    def is_wide(self) -> bool:
        """Whether cost error is too large for the answer with it to mean much."""
        return math.sqrt(self.margin.variance) > WIDE_SD

    def total(self) -> tuple[float, float]:
        """Return the interval by noise and cost error."""
        return self.margin.interval(CONFIDENCE)

    def with_ends(self, load: Estimate, effort: Effort, least: float = 0.0) -> FoundLoad:
        """Return the estimate with its intervals and the load to count on.

        least: a multiple of the estimate that is known to meet the SLO.
        """
        at, noise = load.value, [load.low, load.high] if load.has_interval else None
        is_wanted = self.has_noise and (effort.by is not None or not self.is_wide)
        return FoundLoad(
            **vars(bounded(load)),
            noise=noise,
            total=[at * end for end in self.total()] if self.has_noise and self.has_costs else None,
            count_on=at * max(self.count_on(effort.confidence), least) if is_wanted else None,
            at_confidence=effort.confidence,
        )

    def count_on(self, confidence: float) -> float:
        """Return the highest multiple that meets the goal with this probability, by the rule of a run: with cost error,
        and SURE_BY_NOISE by noise alone."""
        sure = self.margin.by_noise.quantile(1 - SURE_BY_NOISE)
        within = [] if self.near is None else [self.near.load_at(1 - confidence) / self.near.rate.per_s]
        return min(sure, self.margin.quantile(1 - confidence), *within)


def load_margin(
    highest: Boundary, points: Sequence[LoadPoint], goal: float, costs: DrawnCosts | None, near: NearCapacity | None
) -> LoadMargin:
    """Return where the highest load of a search lies.

    points: the loads that ran. costs: their draws; None: they count as exact. near: the estimate against capacity.
    """
    margin, has_noise = _by_noise(highest), highest.load.has_interval or len(highest.at.runs) == 1
    curve = None if costs is None else RatioCurve.of(points, goal, len(costs.draws))
    if costs is None or curve is None:
        return LoadMargin(margin, near, has_noise=has_noise)
    sd, n_free = curve.cost_error(costs, highest.at.scale)
    of_servers = curve.server_errors(costs.server_sd)
    whole = replace(margin, cost_sd=sd, n_cost_free=n_free, points=of_servers)
    return LoadMargin(whole, near, has_costs=True, has_noise=has_noise)


def _by_noise(highest: Boundary) -> Margin:
    """Return the margin of the interval between seeds; where the queue ends the loads, as if it were normal."""
    load = highest.load
    if not load.has_interval:
        return Margin(0.0, 0.0, MOST_FREE)
    half = Z_95 if highest.above.is_saturated else quantile((1 + CONFIDENCE) / 2, highest.n_free)
    return Margin(0.0, math.log(load.high / load.low) / 2 / half, highest.n_free)
