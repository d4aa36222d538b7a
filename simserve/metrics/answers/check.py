"""Check as an answer: whether a change lost p99 goodput against a baseline, as `simserve check --json` prints it."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from simserve.metrics.answers.baseline import LoadFacts, looks_until
from simserve.metrics.answers.parts import DrawnLoad, ScenarioName
from simserve.metrics.answers.struct import Column, Count, Name, PerS, Signed, Struct, StudyAnswer
from simserve.metrics.summary_schema import Share, Slo

State = Literal["unchanged", "better", "same", "within tolerance", "unclear", "lost"]


class LossFacts(Struct):
    """Loss of p99 goodput, negative for a gain."""

    frac: float
    """[share] The loss, of the baseline's."""
    low_frac: float
    """[share] Low end of its interval."""
    high_frac: float
    """[share] High end of its interval."""
    confidence: Share
    """[share] Confidence of the interval: 0.95."""
    surely_at_least_frac: float
    """[share] Lower bound at the rule's level."""
    surely_at_most_frac: float
    """[share] Upper bound at the rule's level."""
    surely: Share
    """[share] Confidence of each bound."""
    is_paired: bool
    """Whether both sides had the same seeds."""
    smallest_found_frac: float
    """[share] The smallest loss that would have failed."""


class BaselineSide(Struct):
    """The side that a change is compared with."""

    name: str
    """A file, or a file at a git ref."""
    simserve: str
    """Version that ran it."""
    goodput_per_s: PerS
    """[/s] Its p99 goodput, in drawn requests."""
    goodput_low_per_s: PerS = None
    """[/s] Low end of its interval."""
    goodput_high_per_s: PerS = None
    """[/s] High end of its interval."""
    n_seeds: Count = None
    """Seeds that it has."""
    first_seed: Count = None
    """The first of them."""
    fails_first: str | None
    """The limit that most requests missed beyond it; null if all were met."""


class CandidateSide(Struct):
    """The side with the change."""

    simserve: str
    """Version that ran it."""
    goodput_per_s: PerS
    """[/s] Its p99 goodput, in drawn requests; null if it meets the goal at every load, or at none."""
    fails_first: str | None
    """The limit that most requests missed beyond it; null if all were met."""
    holds_every_load: bool | None
    """Whether it meets the goal at every load; null if the goal lies between two loads."""


class FactsOfSides(Struct):
    """Both sides at the baseline's lower load."""

    baseline: LoadFacts
    """The baseline."""
    candidate: LoadFacts
    """The candidate."""


class PartOfSides(Struct):
    """A part of a request's time, or of the memory, on both sides."""

    key: Name
    """Its key in `at`."""
    label: Name
    """Its name in words."""
    unit: Annotated[Literal["s", "frac"], Column("text", "category")]
    """Its unit: seconds or a share."""
    baseline: Signed
    """Its value of the baseline."""
    candidate: Signed
    """Its value of the candidate."""
    change_frac: Signed
    """[share] Change over the baseline."""


class ScenarioDifference(Struct):
    """A key of the scenario with different values."""

    key: str
    """Dotted name of the key."""
    baseline: Any
    """Value of the baseline; null if it is missing there."""
    candidate: Any
    """Value of the candidate; null if it is missing there."""


class CheckAnswer(StudyAnswer):
    """What `simserve check` found."""

    command: ClassVar[str] = "check"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("parts", PartOfSides)

    passes: bool
    """Whether no loss is surely above the tolerance."""
    state: State
    """The answer in words."""
    scenario: ScenarioName
    """The scenario that was checked."""
    goal_frac: Share
    """[share] Requests that must meet every limit."""
    slo: Slo
    """[s] Limits by latency, of requests without limits of their class."""
    slo_classes: Sequence[str] = ()
    """Classes with limits of their own."""
    tolerance_frac: Share
    """[share] Loss that is tolerated."""
    false_alarms_frac: Share
    """[share] Upper bound of the rule's false alarms, all looks together."""
    n_seeds: int
    """Seeds that were used."""
    loss: LossFacts | None
    """Loss of p99 goodput; null if the candidate meets the goal at every load, or at none."""
    baseline: BaselineSide
    """The side that the change is compared with."""
    candidate: CandidateSide
    """The side with the change."""
    at: FactsOfSides
    """Both sides at the baseline's lower load."""
    parts: Sequence[PartOfSides]
    """Parts of a request's time, and of memory, at that load."""
    changes: Sequence[ScenarioDifference]
    """Keys of the scenario that differ."""
    load: DrawnLoad | None = None
    """Drawn and nominal load of the candidate at that load; null without a nominal load."""
    warnings: Sequence[str] = ()
    """Warnings, such as a drawn load that is more than 5% off the nominal one."""

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of seeds after which the gate looked."""
        return looks_until(self.n_seeds)
