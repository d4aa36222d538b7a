"""Comparison as an answer: what `simserve compare` found, as comparison.json has it; its sheet has its measures."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from simserve.metrics import summary_schema
from simserve.metrics.answers.parts import DrawnLoad, Verdict
from simserve.metrics.answers.struct import FINITE, Column, Flag, Name, PerS, Signed, Struct, StudyAnswer
from simserve.metrics.summary_schema import Cause, Count, DecisionJson, Share

Ends = Annotated[Annotated[Sequence[summary_schema.Signed], Field(min_length=2, max_length=2)] | None, FINITE]
"""Low and high."""
ShareOfA = Annotated[summary_schema.Signed, FINITE, Column("share", "float")]


class SideLoad(Struct):
    """The load that one side carries."""

    goodput_per_s: PerS
    """[/s] Its p99 goodput; null if it meets the goal at every load, or at none."""
    holds_every_load: Flag
    """Whether it meets the goal at every load; null if the goal lies between two loads."""
    last_per_s: PerS
    """[/s] The load at which that was seen last."""
    fails_first: str | None
    """The limit that fails first at that load; null if no request missed one."""


class LoadDecision(Struct):
    """The side that carries more load, and how much more."""

    outcome: Verdict = Field(alias="verdict")
    """What B is; `unclear` means statistically tied. Null with a `reason` if only measures are compared."""
    reason: None = None
    """Null, as load decides."""
    goal_frac: Share
    """[share] Requests that must meet every limit."""
    confidence: Share | None = None
    """[share] Confidence of the intervals: 0.95."""
    more_frac: ShareOfA
    """[share] How much more load B carries; null if a side has no p99 goodput."""
    low_frac: ShareOfA
    """[share] Low end of the interval of `more_frac`; null if every seed gives the same run."""
    high_frac: ShareOfA
    """[share] High end of the interval of `more_frac`; null if every seed gives the same run."""
    total: Ends = None
    """[share] Both ends of the interval of `more_frac` with cost error; null if costs count as exact."""
    probability: Share | None = None
    """[share] Probability that B carries more load, with cost error; null if costs count as exact."""
    edge_by: Cause | None = None
    """`cost` if cost error leaves the verdict unclear; else null."""
    n_seeds: Count
    """Seeds of each load."""
    a: SideLoad
    """The load that A carries."""
    b: SideLoad
    """The load that B carries."""

    @property
    def sides(self) -> tuple[SideLoad, SideLoad]:
        """Return the loads of A and B."""
        return self.a, self.b

    @model_validator(mode="after")
    def _has_interval(self) -> "LoadDecision":
        if self.more_frac is not None and self.n_seeds > 1 and None in (self.low_frac, self.high_frac):
            raise ValueError("must have low_frac and high_frac where it has more_frac")
        return self


class NoDecision(Struct):
    """Why load does not decide."""

    outcome: None = Field(None, alias="verdict")
    """Null, as load does not decide."""
    reason: str
    """Why load does not decide."""


class MeasureDifference(Struct):
    """A measure on both sides."""

    key: str
    """Its key in summary.json, or in the result of a benchmark."""
    label: Name = Field(title="Measure")
    """Its name in words."""
    unit: Name = Field(title="Unit")
    """Its unit."""
    a: Signed = Field(title="A")
    """Its value of A."""
    b: Signed = Field(title="B")
    """Its value of B."""
    difference: Signed = Field(title="B − A")
    """B less A."""
    low: Signed = Field(title="B − A, low")
    """Low end of its interval; null without an interval."""
    high: Signed = Field(title="B − A, high")
    """High end of its interval; null without an interval."""
    change_frac: ShareOfA = Field(title="Change (share of A)")
    """[share] Difference over A."""
    outcome: Annotated[Verdict, Column("text", "category")] = Field(alias="verdict", title="B is")
    """What B is; `unclear` means statistically tied."""


class DrawnLoads(Struct):
    """Drawn against nominal load behind the measures of each side."""

    a: DrawnLoad | None = None
    """Load of A; null without a nominal load."""
    b: DrawnLoad | None = None
    """Load of B; null without a nominal load."""


class SideDecisions(Struct):
    """Decisions of a run about each side at its own load."""

    a: DecisionJson | None = None
    """Decision about A; null without an SLO."""
    b: DecisionJson | None = None
    """Decision about B; null without an SLO."""


class ComparisonAnswer(StudyAnswer):
    """What `simserve compare` found."""

    command: ClassVar[str] = "compare"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("measures", MeasureDifference)

    version: str | None = None
    """Version of simserve that ran it."""
    a: str
    """Name of A."""
    b: str
    """Name of B."""
    confidence: Share
    """[share] Confidence of the intervals: 0.95."""
    how: str
    """Where the intervals come from, in words."""
    warnings: Sequence[str] = ()
    """Warnings, first those of each side's costs and reservations."""
    decision: LoadDecision | NoDecision | None = None
    """Which side carries more load; null in answers of earlier versions."""
    load: DrawnLoads = Field(default_factory=DrawnLoads)
    """Drawn against nominal load."""
    judged: SideDecisions = Field(default_factory=SideDecisions)
    """Decisions about the sides."""
    measures: Sequence[MeasureDifference]
    """All measures of both sides."""

    @property
    def names(self) -> tuple[str, str]:
        """Return the names of A and B."""
        return self.a, self.b

    @property
    def loads(self) -> tuple[DrawnLoad | None, DrawnLoad | None]:
        """Return the drawn loads of A and B."""
        return self.load.a, self.load.b

    @property
    def decisions(self) -> tuple[DecisionJson | None, DecisionJson | None]:
        """Return the decisions about A and B at their own loads."""
        return self.judged.a, self.judged.b

    @property
    def load_decision(self) -> LoadDecision | None:
        """Return the decision by load; None where load does not decide."""
        return None if self.decision is None or self.decision.outcome is None else self.decision

    @property
    def has_intervals(self) -> bool:
        """Return whether any difference has an interval."""
        return any(measure.low is not None for measure in self.measures)
