"""Baseline file: written whole or not at all, read back with the place of what is wrong, and what both sides share."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from pydantic import ValidationError

from simserve.errors import OutputError
from simserve.input_files import read_json
from simserve.metrics.answers.baseline import Baseline
from simserve.metrics.answers.check import ScenarioDifference
from simserve.plugins.validation import problems_of
from simserve.scenario import Scenario
from simserve.study.check.gate import AttainmentCurve
from simserve.study.check.side import Grid
from simserve.tables.files import json_text, replace_text

SCHEMA = "simserve-check/1"

NUMBERS_PER_LINE = 16
"""Numbers per line of the file, so that a diff of two versions is readable."""

REMEDY = "make it again with --update, or take it from version control"

ASKED = ("name", "model", "workload", "slo", "measure")
"""Keys of a scenario that are the question; all others are what a change may change."""

NO_PART = ("schema", "seed")
"""Keys that are neither: the rule allows for other seeds."""


def grid_of(baseline: Baseline) -> Grid:
    """Return the loads to run the other side at."""
    return Grid(baseline.loads[0].scale, baseline.loads[1].scale)


def curve_of(baseline: Baseline, n_seeds: int) -> AttainmentCurve:
    """Return the curve of the first seeds."""
    n_met = np.array([load.n_met[:n_seeds] for load in baseline.loads])
    n_arrived = np.array([load.n_arrived[:n_seeds] for load in baseline.loads])
    scales = baseline.loads[0].scale, baseline.loads[1].scale
    return AttainmentCurve(scales, n_met, n_arrived, tuple(range(baseline.first_seed, baseline.first_seed + n_seeds)))


def text_of(baseline: Baseline) -> str:
    """Return the file's text."""
    return _packed(json_text(baseline.model_dump(by_alias=True)))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write the file, whole or not at all. Raises OutputError where it cannot be written, or replaces another file."""
    check_place(path)
    replace_text(path, text_of(baseline))


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
        return Baseline.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise OutputError(f"{path}: {replace(problems_of(error, data)[0], remedy=REMEDY)}") from None


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


def portable(scenario: Scenario) -> dict[str, Any]:
    """Return resolved data without folders of this machine: files are known by name and SHA-256."""
    data: dict[str, Any] = _portable(scenario.to_dict())
    data.get("measure", {}).pop("replays", None)  # which the gate does not run
    return data


def differences(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any]
) -> tuple[list[ScenarioDifference], list[ScenarioDifference]]:
    """Return the differences of two portable scenarios: in the question, and in what a change may change."""
    a, b = _flat(baseline), _flat(candidate)
    sides = [_long(a, b), _long(b, a)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    result = [ScenarioDifference(key=key, baseline=sides[0].get(key), candidate=sides[1].get(key)) for key in keys]
    differing = [each for each in result if each.baseline != each.candidate and _top(each.key) not in NO_PART]
    requested = [each for each in differing if _top(each.key) in ASKED]
    return requested, [each for each in differing if each not in requested]


def _long(side: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys as the other side writes them, with arguments: `engine.name`, `cluster.router.kind`."""
    full = {name.rpartition(".")[0]: name for name in other if name.rpartition(".")[2] in ("kind", "name")}
    return {full.get(key, key): value for key, value in side.items()}


def _top(key: str) -> str:
    return key.partition(".")[0]


def _portable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(inner) for inner in value]
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return PurePath(value).name if is_path else value


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Return values by dotted key; lists of plain values stay whole."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        inner = list(enumerate(value))
    if not inner:
        return {key: value}
    return {name: leaf for part, each in inner for name, leaf in _flat(each, f"{key}.{part}".lstrip(".")).items()}
