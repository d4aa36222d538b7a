"""Decision: whether an SLO is met, by its margin; one rule for every command, page and workbook.

The estimate, its noise and its cost error are those of `margin.py`; the rules are explained in docs/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from simserve.metrics.answer import BEYOND_FRAC, Attained, queue_over
from simserve.metrics.cost_error import Pair
from simserve.metrics.goal import CAP, CONFIDENCE, LOOKS, probability
from simserve.metrics.margin import Margin, margin_of
from simserve.metrics.summary_schema import Cause, DecisionJson, Queue, Word
from simserve.metrics.tails import Sample, Tail, capped, log_of, pooled

SURE_BY_NOISE = 0.99
"""Probability by noise alone that "meets" needs at each look; over three looks, at most 3% of wrong ones pass."""

LIKELY = 0.75
"""Probability from which an SLO is likely met."""

OF_INTERVALS = 0.95
"""Confidence of the intervals of r."""

FEWEST_BURSTS = 20
"""Independent requests in all runs together below which the load decides."""

SURE = ("meets", "misses", "saturated")
"""Words that no further run or calibration is likely to change."""

WHY: Mapping[Cause | None, str] = {
    None: "",
    "noise": "sampling noise",
    "cost": "the error of the costs",
    "load": "few independent bursts",
}
"""What keeps a decision from being sure, in words."""

OLD_WORDS: Mapping[Word, Attained] = {"meets": "met", "misses": "missed", "saturated": "missed"}
"""Words of earlier versions; any other is an edge."""


def word_of(chance: float, by_noise: float, confidence: float) -> Word:
    """Return the word of the probabilities that an SLO is met: with cost error, and by noise alone."""
    if chance >= confidence and by_noise >= SURE_BY_NOISE:
        return "meets"
    if chance >= LIKELY:
        return "likely_meets"
    if chance <= 1 - confidence:
        return "misses"
    return "likely_misses" if chance < 1 - LIKELY else "edge"


@dataclass(frozen=True)
class Effort:
    """How sure a decision should be, and how many runs it may take."""

    most_runs: int = LOOKS[-1]
    """Runs with nominal costs, at most; fewer than at the first look make it the only one."""
    confidence: float = CONFIDENCE
    """Probability, cost error included, that "meets" needs."""
    by: Literal["noise", "total"] | None = None
    """noise: costs count as exact; total: with the error of costs, however large; None: with it where it means much."""
    n_draws: int = LOOKS[0]
    """Draws of costs, at most."""

    def looks(self) -> list[int]:
        """Return the numbers of runs after which a decision is made: three at most, as SURE_BY_NOISE allows for."""
        first = min(LOOKS[0], self.most_runs)
        return sorted({first, round(math.sqrt(first * self.most_runs)), self.most_runs})


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True)
class Decision:
    """A decision about an SLO, and all that it rests on."""

    runs: Sequence[Sample]
    """Runs with nominal costs, each with a load of its own, or a single run."""
    goal_frac: float
    pairs: Sequence[Pair] = ()
    """Draws of costs; none where costs count as exact."""
    server_sd: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations of the logarithms of servers' errors, by limit."""
    beyond_frac: float | None = None
    """Probability that the load is beyond capacity, over draws of costs; None: unknown."""
    confidence: float = CONFIDENCE

    @cached_property
    def whole(self) -> Sample:
        """The requests of all runs together."""
        return pooled(self.runs)

    @cached_property
    def margin(self) -> Margin:
        """Where log r lies."""
        return margin_of(self.runs, self.goal_frac, self.pairs, self.server_sd)

    @cached_property
    def queue(self) -> Queue | None:
        """The state of the queue in most runs."""
        return queue_over(run.queue for run in self.runs)

    @cached_property
    def probability(self) -> float:
        """Probability that the SLO is met: that r is at most 1, and no queue grows, which misses any SLO in time."""
        least = {"growing": 1.0, "critical": 0.5}.get(self.queue or "", 0.0)
        return min(self.margin.probability(), 1.0 - max(least, self.beyond_frac or 0.0))

    @property
    def old_word(self) -> Attained:
        """The decision in the words of earlier versions."""
        return OLD_WORDS.get(self.word, "edge")

    @cached_property
    def word(self) -> Word:
        """The decision in a word."""
        if self.queue == "growing":
            return "saturated"
        return word_of(self.probability, self.margin.by_noise.probability(), self.confidence)

    @cached_property
    def edge_by(self) -> Cause | None:
        """What keeps the decision from being sure; None where it is."""
        if self.word in SURE:
            return None
        if self.probability < self.margin.probability():  # a queue may grow
            return "load" if self.beyond_frac is None else "cost"
        exact = self.margin.by_cost.probability()
        if 1 - self.confidence < exact < self.confidence and self.margin.noise_sd**2 <= self.margin.variance / 3:
            return "cost"
        return "load" if self._has_few_bursts() else "noise"

    def _has_few_bursts(self) -> bool:
        """Whether there are too few bursts, or one run has over half of the requests beyond the quantile."""
        if self.whole.n_effective < FEWEST_BURSTS:
            return True
        beyond = [run.n_beyond(self.whole.r(self.goal_frac)) for run in self.runs]
        return len(beyond) > 1 and 2 * max(beyond) > sum(beyond)

    def facts(self) -> DecisionJson:
        """Return the decision as summary.json has it."""
        by_noise = self.margin.by_noise
        slo_class, tail = self.whole.decisive(self.goal_frac)
        shift = math.exp(self.margin.log_r - log_of(tail.r(self.goal_frac)))  # by the drawn load
        tail = replace(tail, ratios=tail.ratios * shift)
        first_limit = tail.first_limit(self.goal_frac)
        return DecisionJson(
            word=self.word,
            probability=self.probability,
            probability_by_noise=by_noise.probability(),
            r=capped(self.margin.log_r),
            r_noise=by_noise.interval(OF_INTERVALS),
            r_total=self.margin.interval(OF_INTERVALS),
            r_by_limit=tail.by_limit(self.goal_frac),
            first_limit=first_limit,
            slo_class=slo_class,
            edge_by=self.edge_by,
            break_even=break_even(tail, first_limit, self.goal_frac),
            goal=self.goal_frac,
            attained_frac=1 - tail.n_missed / tail.n,
            n_missed=tail.n_missed,
            n_requests=tail.n,
            n_runs=len(self.runs),
            n_draws=len(self.pairs),
            why=WHY[self.edge_by],
        )


def break_even(tail: Tail, limit: str, goal_frac: float) -> float | None:
    """Return the factor on the latency of a limit up to which the goal is met; None where it does not decide."""
    low, high = 1 / CAP, CAP
    near = tail.beyond(goal_frac)
    if near.r(goal_frac, {limit: low}) > 1 or near.r(goal_frac, {limit: high}) <= 1:
        return None
    for _ in range(30):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if near.r(goal_frac, {limit: middle}) > 1 else (middle, high)
    return low


def beyond_warning(beyond_frac: float | None, load: str = "the load") -> list[str]:
    """Return a warning where a load may be beyond capacity."""
    if beyond_frac is None or beyond_frac <= 1 - BEYOND_FRAC:
        return []
    chance = probability(beyond_frac)
    if beyond_frac >= BEYOND_FRAC:
        return [f"{load} is beyond capacity (probability {chance}), so the queue grows with time; offer less"]
    return [
        f"{load} is beyond capacity with a probability of {chance}: costs within their error decide whether the queue "
        "grows; offer less, or check the capacity on your server"
    ]
