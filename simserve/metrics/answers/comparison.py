"""Comparison as an answer: what `simserve compare` found, as comparison.json has it; its sheet has its measures."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from simserve.metrics import summary_schema
from simserve.metrics.answers.parts import DrawnLoad, Verdict
from simserve.metrics.answers.struct import FINITE, Column, Flag, Name, PerS, Signed, Struct, StudyAnswer
from simserve.metrics.decision_json import Cause, DecisionJson
from simserve.metrics.summary_schema import Count, Share

Ends = Annotated[Annotated[Sequence[summary_schema.Signed], Field(min_length=2, max_length=2)] | None, FINITE]
"""Low and high."""
ShareOfA = Annotated[summary_schema.Signed, FINITE, Column("share", "float")]


class SideLoad(Struct):
    """The load that one side carries."""

    goodput_per_s: PerS
    """None: it meets the goal at every load, or at none."""
    holds_every_load: Flag
    """None where there is a load between."""
    last_per_s: PerS
    """The load at which that was seen last."""
    fails_first: str | None
    """The SLO with the largest quantile of latency / limit there; None where no request misses one."""


class LoadDecision(Struct):
    """The side that carries more load, and how much more."""

    outcome: Verdict = Field(alias="verdict")
    """A word about B; `unclear` is statistically tied."""
    reason: None = None
    goal_frac: Share
    confidence: Share | None = None
    more_frac: ShareOfA
    """None where one side has no p99 goodput."""
    low_frac: ShareOfA
    """None, as `high_frac`, where every seed gives the same run."""
    high_frac: ShareOfA
    total: Ends = None
    """Ends of more_frac with the error of costs; None where they count as exact."""
    probability: Share | None = None
    """Probability that B carries more load, with the error of costs."""
    edge_by: Cause | None = None
    """What keeps the decision from being sure; None where it is, or is not known."""
    n_seeds: Count
    a: SideLoad
    b: SideLoad

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
    reason: str


class MeasureDifference(Struct):
    """A measure on both sides; without ends where there is no interval."""

    key: str
    label: Name = Field(title="Measure")
    unit: Name = Field(title="Unit")
    a: Signed = Field(title="A")
    b: Signed = Field(title="B")
    difference: Signed = Field(title="B − A")
    low: Signed = Field(title="B − A, low")
    high: Signed = Field(title="B − A, high")
    change_frac: ShareOfA = Field(title="Change (share of A)")
    outcome: Annotated[Verdict, Column("text", "category")] = Field(alias="verdict", title="B is")


class DrawnLoads(Struct):
    """Drawn against nominal load behind the measures of each side; None where no load is nominal."""

    a: DrawnLoad | None = None
    b: DrawnLoad | None = None


class SideDecisions(Struct):
    """Decisions of a run about each side at its own load; None without an SLO."""

    a: DecisionJson | None = None
    b: DecisionJson | None = None


class ComparisonAnswer(StudyAnswer):
    """The file comparison.json."""

    command: ClassVar[str] = "compare"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("measures", MeasureDifference)

    version: str | None = None
    a: str
    b: str
    confidence: Share
    how: str
    """Origin of the intervals, in words."""
    warnings: Sequence[str] = ()
    decision: LoadDecision | NoDecision | None = None
    """None in answers of earlier versions."""
    load: DrawnLoads = Field(default_factory=DrawnLoads)
    judged: SideDecisions = Field(default_factory=SideDecisions)
    measures: Sequence[MeasureDifference]

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
