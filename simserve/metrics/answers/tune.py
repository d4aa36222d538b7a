"""Tune as an answer: the best settings of a server that a search found, as tune.json has it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simserve.metrics.answers.comparison import Ends, LoadDecision, NoDecision
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.struct import Amount, Column, Count, Name, Ratio, Seconds, Struct, StudyAnswer, Text
from simserve.metrics.summary_schema import Share, Signed, Size

Objective = Literal["r", "cost", "throughput"]
TuneWord = Literal["better", "tied", "same"]


class TriedPoint(Struct):
    """A point of the search, run once."""

    number: Count = None
    """In the order of the search."""
    settings: Name
    """Its settings, `key=value` each."""
    values: Mapping[str, Any] = Field(default_factory=dict)
    r: Ratio = None
    """r of its run; None where it cannot run."""
    objective: Amount = None
    """What is to be small; None where it cannot run, or where it misses the SLO."""
    reason: Text = None
    """Why it cannot run."""


class FlagChange(Struct):
    """A setting that the best point changes."""

    flag: Name
    """The flag of the engine, or the key of the scenario where no flag says it."""
    key: Name
    before: Text = None
    after: Text = None


class LatencyChange(Struct):
    """A latency before and after, over fresh draws of the load."""

    latency: Annotated[str, Column("text", "category")]
    level: Annotated[str, Column("text", "category")]
    before_s: Seconds = None
    after_s: Seconds = None


class TuneAnswer(StudyAnswer):
    """The file tune.json."""

    command: ClassVar[str] = "tune"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("points", TriedPoint)

    word: TuneWord
    """better: beyond chance; tied: not; same: the search found nothing better than the scenario."""
    scenario: ScenarioName
    objective: Objective
    goal_frac: Share
    n_tried: Size
    n_possible: Count = None
    """Points that the varied values make."""
    varied: Mapping[str, Sequence[Any]]
    not_varied: Sequence[str]
    changes: Sequence[FlagChange] = ()
    gain_frac: Signed = None
    """How much smaller the objective is, on fresh draws of the load that both sides share; below 0 it is larger."""
    gain: Ends = None
    """Its 95% interval; None where every seed gives the same run."""
    r_before: Ratio = None
    r_after: Ratio = None
    n_seeds: Size
    latencies: Sequence[LatencyChange] = ()
    load: LoadDecision | NoDecision | None = None
    """How much more load the best point carries within the SLO."""
    points: Sequence[TriedPoint]
    warnings: Sequence[str] = ()

    @property
    def decision(self) -> str:
        """The decision in a word."""
        return self.word
