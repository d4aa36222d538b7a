"""Sweep as an answer: what `simserve sweep` found, as sweep.json has it."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simserve.metrics import summary_schema
from simserve.metrics.answer import AnswerJson, Attained
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import Index, Interval, NominalLoad, PricedFleet
from simserve.metrics.answers.struct import Column, Flag, Struct, StudyAnswer
from simserve.metrics.decision_json import EARLIER, DecisionJson, Word
from simserve.metrics.summary_schema import Slo
from simserve.tables.schema import SCHEMA

PointStatus = Literal["finished", "partly", "failed"]


class CheapestPoint(Struct):
    """The cheapest point that meets the SLO."""

    point: Index


class BestPoint(CheapestPoint):
    """The point with the most of something, and those that are statistically tied with it; None: unknown."""

    not_told_apart: Sequence[Index] | None = None


class BestPoints(Struct):
    """The points that answer the three questions."""

    per_usd: BestPoint | None
    goodput: BestPoint | None
    cheapest: CheapestPoint | None


class Fronts(Struct):
    """Points that no other beats, by number."""

    cost_goodput: Sequence[Index]
    ttft_tpot: Sequence[Index]


class PointOfSweep(Struct):
    """A point of a sweep."""

    point: Index
    values: Mapping[str, Any]
    status: Annotated[PointStatus, Column("text", "category")] = Field(title="State")
    reason: Annotated[str | None, Column("sentence", "category")] = Field(title="Reason")
    n_seeds: summary_schema.Count
    fleet: PricedFleet | None
    saturated: Flag = Field(title="Queue only grows")
    decision: Attained | None = None
    meets_goal: Flag = Field(title="Meets the goal")
    answer: AnswerJson | None = None
    judged: DecisionJson | None = None
    """The decision of a run: with cost error, unless costs hardly matter or count as exact."""
    load: NominalLoad | None = None
    shared_load: NominalLoad | None = None
    measures: Measures[Interval] | None
    warnings: Sequence[str] = ()

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
    seed: int | None = None


class SweepAnswer(StudyAnswer):
    """The file sweep.json."""

    command: ClassVar[str] = "sweep"

    schema_: str = Field(SCHEMA, alias="schema")
    version: str | None = None
    scenario: SweptScenario
    keys: Sequence[str]
    seeds: Sequence[int]
    confidence: summary_schema.Share | None = None
    goal_frac: summary_schema.Share
    slo: Slo | None
    slo_classes: Sequence[str]
    fronts: Fronts
    best: BestPoints
    tied: Sequence[Index] = ()
    points: Sequence[PointOfSweep]

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
