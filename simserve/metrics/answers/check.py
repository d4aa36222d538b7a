"""Check as an answer: whether a change lost p99 goodput against a baseline, as `simserve check --json` prints it."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from simserve.metrics.answers.baseline import LoadFacts, looks_until
from simserve.metrics.answers.parts import DrawnLoad, ScenarioName
from simserve.metrics.answers.struct import Column, Count, Name, PerS, Signed, Struct, StudyAnswer
from simserve.metrics.summary_schema import Share, Slo

State = Literal["unchanged", "better", "same", "within tolerance", "unclear", "lost"]


class LossFacts(Struct):
    """The loss of p99 goodput as a share, negative for a gain; unbounded, as a significant limit may be far below 0."""

    frac: float
    low_frac: float
    high_frac: float
    confidence: Share
    surely_at_least_frac: float
    surely_at_most_frac: float
    surely: Share
    is_paired: bool
    """Both sides had the same seeds."""
    smallest_found_frac: float
    """The smallest loss that would have failed."""


class BaselineSide(Struct):
    """The side that a change is compared with."""

    name: str
    """A file, or a file at a git ref."""
    simserve: str
    goodput_per_s: PerS
    goodput_low_per_s: PerS = None
    goodput_high_per_s: PerS = None
    n_seeds: Count = None
    first_seed: Count = None
    fails_first: str | None


class CandidateSide(Struct):
    """The side with the change."""

    simserve: str
    goodput_per_s: PerS
    """None where every load or none meets the goal."""
    fails_first: str | None
    holds_every_load: bool | None
    """None where the goal lies between two loads."""


class FactsOfSides(Struct):
    """Both sides at the baseline's lower load."""

    baseline: LoadFacts
    candidate: LoadFacts


class PartOfSides(Struct):
    """A part of a request's time, or of the memory, on both sides."""

    key: Name
    label: Name
    unit: Annotated[Literal["s", "frac"], Column("text", "category")]
    baseline: Signed
    candidate: Signed
    change_frac: Signed


class ScenarioDifference(Struct):
    """A key of the scenario with different values; None: it is missing on that side."""

    key: str
    baseline: Any
    candidate: Any


class CheckAnswer(StudyAnswer):
    """The file check.json."""

    command: ClassVar[str] = "check"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("parts", PartOfSides)

    passes: bool
    state: State
    scenario: ScenarioName
    goal_frac: Share
    slo: Slo
    slo_classes: Sequence[str] = ()
    tolerance_frac: Share
    false_alarms_frac: Share
    """Upper bound, all looks together."""
    n_seeds: int
    loss: LossFacts | None
    """None where the candidate has no p99 goodput."""
    baseline: BaselineSide
    candidate: CandidateSide
    at: FactsOfSides
    parts: Sequence[PartOfSides]
    changes: Sequence[ScenarioDifference]
    load: DrawnLoad | None = None
    warnings: Sequence[str] = ()

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of seeds after which the gate looked."""
        return looks_until(self.n_seeds)
