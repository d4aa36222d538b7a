"""Sweep as an answer: what `simserve sweep` found, as sweep.json has it."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simserve.metrics import summary_schema
from simserve.metrics.answer import AnswerJson, Attained
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import Index, Interval, NominalLoad, PricedFleet
from simserve.metrics.answers.struct import Column, Flag, Struct, VersionedAnswer
from simserve.metrics.summary_schema import EARLIER, DecisionJson, Slo, Word

PointStatus = Literal["finished", "partly", "failed"]


class CheapestPoint(Struct):
    """A point by its number."""

    point: Index
    """Number of the point."""


class BestPoint(CheapestPoint):
    """The point with the most of something, the cheapest of equals."""

    not_told_apart: Sequence[Index] | None = None
    """Points that are statistically tied with it: the 95% interval of the difference, seed by seed, contains 0; null
    with one seed."""


class BestPoints(Struct):
    """The best points; null where there is none."""

    per_usd: BestPoint | None
    """The most goodput per dollar."""
    goodput: BestPoint | None
    """The most goodput."""
    cheapest: CheapestPoint | None
    """The cheapest that surely meets the goal."""


class Fronts(Struct):
    """Numbers of the points that no other beats in both, ordered by the first; points that saturate or fail, even in
    part, are on neither."""

    cost_goodput: Sequence[Index]
    """Points by price and goodput."""
    ttft_tpot: Sequence[Index]
    """Points by p99 TTFT and p99 TPOT."""


class PointOfSweep(Struct):
    """A point of a sweep."""

    point: Index
    """Its number, from 0, the first key varying slowest."""
    values: Mapping[str, Any]
    """Value of each varied key, under its dotted name; a list of points may leave keys out."""
    status: Annotated[PointStatus, Column("text", "category")] = Field(title="State")
    """`finished`; `partly`: some of its runs failed; `failed`."""
    reason: Annotated[str | None, Column("sentence", "category")] = Field(title="Reason")
    """Why runs failed; null if none did."""
    n_seeds: summary_schema.Count
    """Seeds that finished."""
    fleet: PricedFleet | None
    """Size and price of its cluster; null if it did not run."""
    saturated: Flag = Field(title="Queue only grows")
    """Whether the queue only grew in most of its runs; null if it did not run."""
    decision: Attained | None = None
    """`met`, `edge` or `missed`; null without an SLO."""
    meets_goal: Flag = Field(title="Meets the goal")
    """Whether it is `met`; null without an SLO."""
    answer: AnswerJson | None = None
    """The attainment at the nominal load over all its seeds, as earlier versions decided by; null without an SLO."""
    judged: DecisionJson | None = None
    """The decision of a run, with cost error unless costs hardly matter or count as exact (`n_draws` is then 0); null
    without an SLO."""
    load: NominalLoad | None = None
    """Drawn against nominal load, over all its seeds; null if it did not run."""
    shared_load: NominalLoad | None = None
    """Drawn against nominal load, over the seeds that all points share; null if it did not run."""
    measures: Measures[Interval] | None
    """Means over the shared seeds; null if it did not run."""
    warnings: Sequence[str] = ()
    """Warnings of its costs and reservations."""

    @property
    def word(self) -> Word | None:
        """Return the decision in a word, as a run has it; None without an answer."""
        return self.judged.word if self.judged else EARLIER.get(self.decision or "")

    @property
    def is_tied_by_cost(self) -> bool:
        """Return whether the error of the costs keeps it on the edge."""
        return self.judged is not None and self.judged.edge_by == "cost"

    @property
    def means(self) -> Measures[Interval]:
        """Return the means over shared seeds, empty where it did not run."""
        return self.measures or Measures[Interval]()

    @property
    def goodput_per_s(self) -> float | None:
        """Return its mean goodput; None without an SLO."""
        return self.means.goodput_per_s.value

    @property
    def usd_per_hour(self) -> float:
        """Return the price of its fleet; infinite where it did not run."""
        return math.inf if self.fleet is None else self.fleet.usd_per_hour

    @property
    def is_finished(self) -> bool:
        """Return whether all of its runs finished."""
        return self.status == "finished"

    @property
    def attained(self) -> Interval:
        """Return the share that met the SLO at the nominal load; in earlier versions, at the drawn one."""
        if self.answer is None:
            return self.means.slo_attainment_frac
        return Interval(value=self.answer.attained_frac, low=self.answer.low_frac, high=self.answer.high_frac)


class SweptScenario(Struct):
    """The scenario that was varied, and its first seed."""

    name: str
    """Its name."""
    seed: int | None = None
    """The first seed."""


class SweepAnswer(VersionedAnswer):
    """What `simserve sweep` found."""

    command: ClassVar[str] = "sweep"

    scenario: SweptScenario
    """The scenario that was varied."""
    keys: Sequence[str]
    """The keys that were varied."""
    seeds: Sequence[int]
    """The seeds that all points share."""
    confidence: summary_schema.Share | None = None
    """[share] Confidence of the intervals: 0.95."""
    goal_frac: summary_schema.Share
    """[share] Requests that must meet every limit."""
    slo: Slo | None
    """[s] Limits by latency; null if points differ in them."""
    slo_classes: Sequence[str]
    """Classes with limits of their own."""
    fronts: Fronts
    """Pareto fronts."""
    best: BestPoints
    """The best points."""
    tied: Sequence[Index] = ()
    """Points on the edge that cost less than `cheapest`, or all on the edge if there is none, the cheapest first;
    `judged.edge_by` says what keeps each there."""
    points: Sequence[PointOfSweep]
    """All points."""

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the cheapest point that meets the SLO; None without one."""
        return None if self.best.cheapest is None else self.points[self.best.cheapest.point].judged

    @property
    def has_slo(self) -> bool:
        """Return whether any point has a goodput."""
        return any(point.goodput_per_s is not None for point in self.points)

    @model_validator(mode="after")
    def _names_its_points(self) -> "SweepAnswer":
        if [point.point for point in self.points] != list(range(len(self.points))):
            raise ValueError("must have its points in the order of their numbers, from 0")
        if any(key not in self.keys for point in self.points for key in point.values):
            raise ValueError("must name each key of a point in keys")
        most = [best for best in (self.best.per_usd, self.best.goodput) if best is not None]
        first = [best.point for best in (*most, self.best.cheapest) if best is not None]
        for number in (*first, *(n for best in most for n in best.not_told_apart or ()), *self.tied):
            point = self.points[number] if number < len(self.points) else None
            if point is None or point.measures is None:
                raise ValueError(f"must have measures of point {number}, which it names")
            if point.attained.value is None:
                raise ValueError(f"must have an answer of point {number}, which it names")
        return self
