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
    """Its place in the search."""
    settings: Name
    """Its settings, `key=value` each."""
    values: Mapping[str, Any] = Field(default_factory=dict)
    """Its values by key."""
    r: Ratio = None
    """Quantile at the goal of latency / limit, of its run; null if it cannot run."""
    objective: Amount = None
    """What is to be small; null if it cannot run, or if it misses the SLO."""
    reason: Text = None
    """Why it cannot run; null if it can."""


class FlagChange(Struct):
    """A setting that the best point changes."""

    flag: Name
    """The engine's flag, or the key of the scenario where no flag says it."""
    key: Name
    """The key of the scenario."""
    before: Text = None
    """Its value before; null without one."""
    after: Text = None
    """Its value after; null without one."""


class LatencyChange(Struct):
    """A latency before and after, over fresh draws of the load."""

    latency: Annotated[str, Column("text", "category")]
    """The latency."""
    level: Annotated[str, Column("text", "category")]
    """The percentile."""
    before_s: Seconds = None
    """[s] Mean before; null if no request has it."""
    after_s: Seconds = None
    """[s] Mean after; null if no request has it."""


class TuneAnswer(StudyAnswer):
    """What `simserve tune` found."""

    command: ClassVar[str] = "tune"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("points", TriedPoint)

    word: TuneWord
    """`better` beyond chance, statistically `tied`, or `same`: the search found nothing better than the scenario."""
    scenario: ScenarioName
    """The scenario that was tuned."""
    objective: Objective
    """What is to be small."""
    goal_frac: Share
    """[share] Requests that must meet every limit."""
    n_tried: Size
    """Points that ran."""
    n_possible: Count = None
    """Points that the varied values make; null if they are not counted."""
    varied: Mapping[str, Sequence[Any]]
    """The keys that were varied, with their values."""
    not_varied: Sequence[str]
    """What was kept."""
    changes: Sequence[FlagChange] = ()
    """Each flag before and after."""
    gain_frac: Signed = None
    """[share] How much smaller the objective is, on fresh draws of the load that both sides share; below 0 it is
    larger."""
    gain: Ends = None
    """[share] 95% interval of `gain_frac`; null if every seed gives the same run."""
    r_before: Ratio = None
    """Quantile at the goal of latency / limit before, on the fresh draws."""
    r_after: Ratio = None
    """Quantile at the goal of latency / limit after, on the fresh draws."""
    n_seeds: Size
    """Fresh draws."""
    latencies: Sequence[LatencyChange] = ()
    """Latencies before and after."""
    load: LoadDecision | NoDecision | None = None
    """How much more load the best point carries within the SLO; null if nothing changes."""
    points: Sequence[TriedPoint]
    """All points of the search."""
    warnings: Sequence[str] = ()
    """What to know before you trust it, in sentences."""

    @property
    def decision(self) -> str:
        """The decision in a word."""
        return self.word
