"""Twin as an answer: how a server was read, what its log says and how well it is explained, as twin.json has it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simserve.metrics.answers.parts import Ends, ScenarioName
from simserve.metrics.answers.struct import Column, Count, Name, PerS, Seconds, Struct, StudyAnswer, Text
from simserve.metrics.answers.struct import Share as ShareOrNone
from simserve.metrics.summary_schema import Share, Size, Slo

How = Literal["simulated", "assumed", "no effect", "not simulated", "unknown", "not read"]
Word = Literal["explained", "not explained", "no fit"]


class ServerSetting(Struct):
    """A flag of the server, or what was assumed where it has none."""

    name: Name
    """The flag as it was written, or what was assumed."""
    value: Text = None
    how: Annotated[How, Column("text", "category")]
    key: Text = None
    """The key of the scenario that it sets."""
    becomes: Text = None
    """The value there."""
    why: Text = None


class TwinLoad(Struct):
    """The load that the scenario has."""

    kind: Literal["trace", "closed_loop", "rate", "assumed"]
    log: str | None = None
    n_requests: Count = None
    rate_per_s: PerS = None
    clients: Count = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None


class ConstantOfTwin(Struct):
    """A host constant that the logs tell."""

    name: str
    shipped: float
    value: float
    interval: Ends = None
    is_at_bound: bool = False


class LatencyOfTwin(Struct):
    """Mean absolute error of predicted means, over parts of the logs that were left out in turn."""

    latency: str
    shipped_frac: float
    fitted_frac: float


class TwinFit(Struct):
    """What the logs say about the host."""

    n_requests: Size
    used_frac: Share
    """Share of the answered requests of the logs that could be used."""
    is_used: bool
    """Whether the scenario has the fitted constants; a log that waits for the most part tells too little."""
    parts: str
    constants: Sequence[ConstantOfTwin] = ()
    as_shipped: Mapping[str, str] = Field(default_factory=dict)
    errors: Sequence[LatencyOfTwin] = ()


class TwinSlo(Struct):
    """How the SLO is met in the log, by the server and by the scenario, and where it breaks."""

    measured_frac: ShareOrNone = None
    predicted_frac: ShareOrNone = None
    breaks_at: str | None = None
    """The first sentence of the capacity."""


class TwinAnswer(StudyAnswer):
    """The file twin.json."""

    command: ClassVar[str] = "twin"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("settings", ServerSetting)

    word: Word
    why: str
    """The reason of the word, with what to do about it."""
    scenario: ScenarioName
    server: str
    """Engine, model, GPUs and knobs in words."""
    settings: Sequence[ServerSetting]
    load: TwinLoad
    fit: TwinFit | None = None
    slo: Slo = Field(default_factory=dict)
    slo_met: TwinSlo | None = None
    duration_s: Seconds = None
    """Time that the load takes."""
    next_commands: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def decision(self) -> str:
        """The decision in a word."""
        return self.word

    def of(self, *how: How) -> Sequence[ServerSetting]:
        """Return the settings that were read in one of these ways."""
        return [setting for setting in self.settings if setting.how in how]
