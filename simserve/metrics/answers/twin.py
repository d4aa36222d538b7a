"""Twin as an answer: how a server was read, what its log says and how well it is explained, as twin.json has it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from simserve.errors import OutputError
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
    cached: str | None = None
    """What TTFT says about cached prompts."""
    next_commands: Sequence[str] = ()
    warnings: Sequence[str] = ()

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
