"""Twin as an answer: how a server was read, what its log says and how well it is explained, as twin.json has it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from simserve.errors import OutputError
from simserve.metrics.answers.capacity import ConcurrencyCapacity, RateCapacity
from simserve.metrics.answers.parts import Ends, ScenarioName
from simserve.metrics.answers.struct import Column, Count, Name, PerS, Struct, StudyAnswer, Text
from simserve.metrics.answers.struct import Share as ShareOrNone
from simserve.metrics.summary_schema import Share, Size, Slo
from simserve.tables.folder import Kind, result_folder

How = Literal["simulated", "assumed", "no effect", "not simulated", "unknown", "not read"]
Word = Literal["explained", "not explained", "no fit"]


class ServerSetting(Struct):
    """A flag of the server, or what was assumed where it has none."""

    name: Name
    """The flag as it was written, or what was assumed."""
    value: Text = None
    """Value of the flag; null without one."""
    how: Annotated[How, Column("text", "category")]
    """How it was read: `simulated`, `assumed`, `no effect`, `not simulated`, `unknown` or `not read`."""
    key: Text = None
    """The key of the scenario that it sets; null if it sets none."""
    becomes: Text = None
    """The value of that key; null if it sets none."""
    why: Text = None
    """Why it was read so; null if it says so itself."""


class TwinLoad(Struct):
    """The load of the scenario."""

    kind: Literal["trace", "closed_loop", "rate", "assumed"]
    """`trace`: the requests of a log; `closed_loop`: its clients and lengths; `rate`: its rate and mean lengths;
    `assumed`."""
    log: str | None = None
    """Name of the log; null without one."""
    n_requests: Count = None
    """Requests."""
    rate_per_s: PerS = None
    """[/s] Rate of these; null for clients."""
    clients: Count = None
    """Clients that wait for answers; null without such."""
    mean_prompt_tokens: float | None = None
    """[tokens] Mean prompt; null without a log."""
    mean_output_tokens: float | None = None
    """[tokens] Mean answer; null without a log."""


class ConstantOfTwin(Struct):
    """A host constant that was fitted."""

    name: str
    """Its name."""
    shipped: float
    """Its value as shipped."""
    value: float
    """Its fitted value."""
    interval: Ends = None
    """95% interval of the fitted value."""
    is_at_bound: bool = False
    """Whether the fit ended at its bound."""


class LatencyOfTwin(Struct):
    """Mean absolute error of predicted means, over parts of the logs that were left out in turn."""

    latency: str
    """The latency."""
    shipped_frac: float
    """[share] The error with constants as shipped."""
    fitted_frac: float
    """[share] The error with fitted constants."""


class TwinFit(Struct):
    """What the logs say about the host."""

    n_requests: Size
    """Requests that the fit used."""
    used_frac: Share
    """[share] Answered requests of the logs that could be used."""
    is_used: bool
    """Whether the scenario has the fitted constants; a log that waits for the most part tells too little."""
    parts: str
    """What was left out in turn, in words."""
    constants: Sequence[ConstantOfTwin] = ()
    """Constants that were fitted."""
    as_shipped: Mapping[str, str] = Field(default_factory=dict)
    """Constants that were not, each with the reason."""
    errors: Sequence[LatencyOfTwin] = ()
    """Errors of what was left out."""


class TwinSlo(Struct):
    """How the SLO is met in the log, by the server and by the scenario, and where it breaks."""

    measured_frac: ShareOrNone = None
    """[share] Requests of the log that met it; null if the log does not tell."""
    predicted_frac: ShareOrNone = None
    """[share] The same requests as predicted; null if the log does not tell."""
    breaks_at: str | None = None
    """The capacity in a sentence; null if it was not searched for."""
    capacity: Annotated[RateCapacity | ConcurrencyCapacity, Field(discriminator="question")] | None = None
    """The capacity, as capacity.json has it; null if none was found."""


class TwinAnswer(StudyAnswer):
    """What `simserve twin` found."""

    command: ClassVar[str] = "twin"
    listed: ClassVar[tuple[str, type[Struct]] | None] = ("settings", ServerSetting)

    word: Word
    """The answer in a word."""
    why: str
    """Its reason, with what to do about it."""
    scenario: ScenarioName
    """The scenario that was written."""
    server: str
    """Engine, model, GPUs and knobs in words."""
    settings: Sequence[ServerSetting]
    """Every flag of the server."""
    load: TwinLoad
    """The load of the scenario."""
    fit: TwinFit | None = None
    """What the logs say about the host; null if nothing was fitted."""
    slo: Slo = Field(default_factory=dict)
    """[s] Limits by latency."""
    slo_met: TwinSlo | None = None
    """Shares of the log's requests within the SLO; null without an SLO."""
    cached: str | None = None
    """What TTFT says about cached prompts; null if it says nothing."""
    next_commands: Sequence[str] = ()
    """Commands that go on from here."""
    warnings: Sequence[str] = ()
    """What to know before you trust it, in sentences."""

    _files: Any = PrivateAttr(None)
    _kind: Any = PrivateAttr(None)

    def with_files(self, files: Mapping[str, bytes], kind: Kind) -> Self:
        """Return the answer with the other files of its folder, by their paths there."""
        answer = self.with_runs(None, files["scenario.yaml"].decode())
        answer._files, answer._kind = files, kind
        return answer

    def write(self, folder: Path) -> Self:
        """Write scenario, load, fit, answer and page, whole or not at all; return the answer with the commands that go
        on from there. Raises OutputError for an answer that was read from a file, and a folder of something else."""
        from simserve.tables.files import json_text  # late: numpy
        from simserve.tables.parquet import write_table  # late: pyarrow

        if self._files is None:
            raise OutputError(f"{folder}: the answer has no files, as it was read from one; run `simserve twin` again")
        answer = self.placed(folder)
        with result_folder(folder, self._kind) as new:
            for name, content in (*self._files.items(), ("twin.json", json_text(answer.facts()).encode())):
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_bytes(content)
            write_table(new / answer.rows.name, answer.rows.fields, answer.rows.columns)
            answer.page(new / "report.html")
        return answer

    @property
    def decision(self) -> str:
        """The decision in a word."""
        return self.word

    def placed(self, folder: Path) -> Self:
        """Return the answer of a twin in that folder, with the commands that go on from there."""
        file, is_closed = shlex.quote(str(folder / "scenario.yaml")), self.load.clients is not None
        if not self.slo:
            goals = '--set "slo={ttft_s: 0.5, tpot_s: 0.05}"'
            commands = [f"simserve capacity {file} {'--concurrency ' if is_closed else ''}{goals}"]
        else:
            commands = [f"simserve run {file}" if is_closed else f"simserve plan {file}"]
        return self.model_copy(update={"next_commands": commands})

    def of(self, *how: How) -> Sequence[ServerSetting]:
        """Return the settings that were read in one of these ways."""
        return [setting for setting in self.settings if setting.how in how]
