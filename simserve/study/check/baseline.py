"""Baseline: a scenario's p99 goodput, seed by seed, in a small file with which the gate compares a change."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Required

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypedDict

from simserve.errors import OutputError
from simserve.input_files import read_json
from simserve.study.check.gate import LOOKS, AttainmentCurve
from simserve.study.check.side import Grid
from simserve.tables.columns import Floats
from simserve.tables.files import json_text, replace_text

SCHEMA = "simserve-check/1"

NUMBERS_PER_LINE = 16
"""Numbers per line of the file, so that a diff of two versions is readable."""

REMEDY = "make it again with --update, or take it from version control"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class BaselineSection(BaseModel):
    """Base of all sections of the file: no unknown key, no conversion."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True)


class Rate(BaselineSection):
    """Requests per second with a 95% interval."""

    value: Positive
    low: Positive
    high: Positive


class Crowd(BaselineSection):
    """Covariate of each seed: how hard its load is on any server (covariate.py)."""

    above: float
    frac: tuple[float, ...]


Mean = Annotated[float, Field(ge=-1e18, le=1e18)] | None
"""A mean over runs; None where a run has none."""


class LoadFactsJson(TypedDict, total=False):
    """Means over the first LOOKS[0] seeds (load_facts.py), in the order of the file; other keys are kept."""

    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]

    scale: Mean
    n_runs: int
    offered_per_s: Mean
    attained_frac: Mean
    by_slo: Required[Annotated[dict[str, Mean], Field(min_length=1)]]
    saturated_frac: Mean
    parts: Required[dict[str, Mean]]


class BaselineLoad(BaselineSection):
    """One load and its outcome, a number a seed."""

    scale: Positive
    n_met: tuple[Count, ...]
    n_arrived: tuple[Count, ...]
    facts: LoadFactsJson


class Baseline(BaselineSection):
    """The file."""

    schema_: Literal["simserve-check/1"] = Field(alias="schema")
    simserve: str
    """The version that ran it."""
    goal_frac: Annotated[float, Field(gt=0, lt=1)]
    goodput_per_s: Rate
    """For readers of the file; the gate does not use it."""
    scenario: dict[str, Any]
    """Resolved and portable (same_question.py)."""
    first_seed: Count
    crowd: Crowd
    loads: tuple[BaselineLoad, BaselineLoad]
    """Loads between which the scenario stops meeting the goal."""

    @model_validator(mode="after")
    def _fits(self) -> "Baseline":
        lengths = {len(load.n_met) for load in self.loads} | {len(load.n_arrived) for load in self.loads}
        if len(lengths | {len(self.crowd.frac)}) != 1 or self.n_seeds < 2:
            raise ValueError("n_met, n_arrived and crowd.frac must have a number for each of at least two seeds")
        if any(met > arrived for load in self.loads for met, arrived in zip(load.n_met, load.n_arrived, strict=True)):
            raise ValueError("n_met must not be more than n_arrived")
        if not self.loads[0].scale < self.loads[1].scale:
            raise ValueError("the first load must be the lower one")
        return self

    @property
    def n_seeds(self) -> int:
        """Return the seeds of each load."""
        return len(self.loads[0].n_met)

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of seeds after which the gate may answer: never more than there are."""
        return (*(n for n in LOOKS if n < self.n_seeds), self.n_seeds)

    @property
    def grid(self) -> Grid:
        """Return the loads to run the other side at."""
        return Grid(*(load.scale for load in self.loads))

    @property
    def facts(self) -> LoadFactsJson:
        """Return the facts of the lower load, where the scenario still meets the goal."""
        return self.loads[0].facts

    def curve(self, n_seeds: int) -> AttainmentCurve:
        """Return the curve of the first seeds."""
        n_met, n_arrived = (
            np.array([getattr(load, name)[:n_seeds] for load in self.loads]) for name in ("n_met", "n_arrived")
        )
        scales = self.grid.below, self.grid.above
        return AttainmentCurve(scales, n_met, n_arrived, tuple(range(self.first_seed, self.first_seed + n_seeds)))

    def covariate(self, n_seeds: int) -> Floats:
        """Return the covariate of the first seeds."""
        return np.array(self.crowd.frac[:n_seeds])

    def to_text(self) -> str:
        """Return the file's text."""
        return _packed(json_text(self.model_dump(by_alias=True)))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write the file, whole or not at all. Raises OutputError where it cannot be written, or replaces another file."""
    check_place(path)
    replace_text(path, baseline.to_text())


def check_place(path: Path) -> None:
    """Raise OutputError unless a baseline can be written there: it must not replace a scenario."""
    if not path.parent.is_dir():
        raise OutputError(f"{path}: must lie in a folder that is there, got {path.parent}; make it first")
    if not path.exists():
        return
    try:
        schema = str(_read(path).get("schema"))
    except OutputError:
        schema = ""
    if not schema.startswith("simserve-check/"):
        raise OutputError(f"{path}: must be a baseline or not be there, got another file; remove it or name another")


def read_baseline(path: Path) -> Baseline:
    """Read a baseline. Raises OutputError where there is none, or one of another version."""
    data = _read(path)
    schema = data.get("schema")
    if schema != SCHEMA:
        by = f", written by simserve {data['simserve']}" if isinstance(data.get("simserve"), str) else ""
        raise OutputError(f"{path}: schema: must be {SCHEMA}, got {json.dumps(schema)}{by}; {REMEDY}")
    try:
        return Baseline.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "file"
        sentence = first["msg"].removeprefix("Value error, ")
        raise OutputError(
            f"{path}: {place}: must be as `simserve check --update` writes it, got: {sentence}; {REMEDY}"
        ) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise OutputError(f"{path}: there is no such baseline; write it with --update and commit it") from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}; name the file of a baseline") from None
    except ValueError as error:
        raise OutputError(f"{path}: must be whole JSON, got: {error}; {REMEDY}") from None
    if not isinstance(data, dict):
        raise OutputError(f"{path}: must be a JSON object, got {type(data).__name__}; {REMEDY}")
    return data


def _packed(text: str) -> str:
    """Return JSON with lists of numbers in few lines."""

    def rows(result: re.Match[str]) -> str:
        indent, key, numbers = result[1], result[2], re.findall(r"[^\s,]+", result[3])
        lines = [", ".join(numbers[i : i + NUMBERS_PER_LINE]) for i in range(0, len(numbers), NUMBERS_PER_LINE)]
        inner = lines[0] if len(lines) == 1 else "".join(f"\n{indent}  {line}," for line in lines)[:-1] + f"\n{indent}"
        return f"{indent}{key}[{inner}]"

    return re.sub(r"^( *)(\"[^\"]*\": )\[((?:\s*-?[0-9][0-9.e+-]*,?)+)\s*\]", rows, text, flags=re.MULTILINE)
