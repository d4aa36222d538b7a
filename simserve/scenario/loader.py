"""Load a scenario: read a YAML file, apply the overrides of the command line, check and resolve."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from simserve.errors import Problem, ScenarioError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import Path, ValueProblem, dotted, shown
from simserve.scenario.draft import Problems, ScenarioSource
from simserve.scenario.resolve import resolve
from simserve.scenario.scenario import Scenario
from simserve.scenario.yaml_lines import MOST_LEVELS, NotYaml, YamlDocument, read_yaml, scalar

SHORT_FORMS = {"engine": "name"} | dict.fromkeys(("router", "scheduler", "arrivals", "lengths", "prefixes"), "kind")
"""Keys with a bare name as short form, and the key that the name stands for."""


def load_scenario(path: str | FilePath, overrides: Iterable[str] = (), seed: int | None = None) -> Scenario:
    """Return the resolved scenario of a file.

    `overrides` are `key.path=value`, applied in order; `seed` replaces the file's. Relative paths in the scenario
    are looked up next to the file, then in the current directory. Raises ScenarioError with every problem at once.
    """
    return Template.of(path, overrides, seed).resolved()


def scenario_of(content: bytes, path: FilePath, place: str, seed: int | None = None) -> Scenario:
    """Return the resolved scenario of a file's earlier content; problems name it `place`."""
    return Template(path, place, _document(content, place), _options((), seed)).resolved()


class BadOverride(Exception):
    """An override with a wrong path or value; carries the problem."""

    def __init__(self, problem: ValueProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Override:
    """One command-line option that changes a value."""

    option: str
    """The option as typed."""
    keys: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Template:
    """A scenario's file and command-line options, read once, to be resolved with or without further overrides."""

    path: FilePath
    place: str
    """The file's name in problems."""
    document: YamlDocument
    options: tuple[Override | Problem, ...]
    """What options change, or the problem of one that is not `key.path=value`."""

    @classmethod
    def of(cls, path: str | FilePath, overrides: Iterable[str] = (), seed: int | None = None) -> "Template":
        """Read the file. Raises ScenarioError if it holds no document; bad options are reported when resolving."""
        path = FilePath(path)
        return cls(path, str(path), _document(_content(path), str(path)), _options(overrides, seed))

    def resolved(self, more: Iterable[Override] = ()) -> Scenario:
        """Return the scenario with `more` applied after the options. Raises ScenarioError with every problem."""
        source = ScenarioSource(self.place, dict(self.document.lines))
        problems = Problems(source)
        for problem, line in self.document.problems:
            problems.add(problem, line)
        data = self.document.data
        for option in (*self.options, *more):
            if isinstance(option, Problem):
                problems.add_option(option)
                continue
            try:
                data, changed = apply_override(data, option)
                source.override(changed, option.option)
            except BadOverride as error:
                source.override(error.problem.path, option.option)
                problems.add(error.problem)
        if isinstance(data, dict):
            data = {"name": _name_of(self.path)} | data
        return resolve(Scenario, data, problems, (self.path.parent.resolve(), FilePath.cwd()))


def _options(overrides: Iterable[str], seed: int | None) -> tuple[Override | Problem, ...]:
    of_seed = [] if seed is None else [Override(f"--seed {seed}", ("seed",), seed)]
    return (*map(_parsed, overrides), *of_seed)


def _parsed(text: str) -> Override | Problem:
    try:
        return parse_override(text)
    except BadOverride as error:
        wrong = error.problem
        return Problem(f"command line --set {text}", wrong.rule, wrong.value, wrong.remedy)


def _content(path: FilePath) -> bytes:
    """Read a file. Raises ScenarioError if it cannot be read."""
    try:
        return read_file(path, SCENARIO_BYTES)
    except FileNotFoundError:
        raise ScenarioError([Problem(str(path), "there is no such file", None, _similar(path))]) from None
    except IsADirectoryError:
        raise ScenarioError([Problem(str(path), "is a folder", None, "name a scenario file in it")]) from None
    except OSError as error:
        raise ScenarioError([Problem(str(path), f"cannot be read: {error.strerror}")]) from None


def _document(content: bytes, place: str) -> YamlDocument:
    """Parse the YAML document. Raises ScenarioError if there is none."""
    try:
        document = read_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ScenarioError([Problem(place, f"is not UTF-8 text (byte {error.start})")]) from None
    except NotYaml as error:
        raise ScenarioError([Problem(place if error.line is None else f"{place}:{error.line}", error.rule)]) from None
    if document.data is None:
        raise ScenarioError([Problem(place, "is empty", None, "`simserve init` writes one to start from")])
    return document


def _similar(path: FilePath) -> str | None:
    """Suggest a file with a similar name in the same folder."""
    there = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, sorted(there), n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _name_of(path: FilePath) -> str:
    """Return the file's name in the characters of a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "scenario"


def parse_override(text: str) -> Override:
    """Parse `key.path=value`, with the value as YAML. Raises BadOverride."""
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise BadOverride(
            ValueProblem((), "must be key.path=value", shown(text), "for example cluster.pools.0.replicas=4")
        )
    if len(keys) > MOST_LEVELS:
        raise BadOverride(ValueProblem((), f"must have at most {MOST_LEVELS} keys", shown(text), "shorten the path"))
    try:
        return Override(f"--set {text}", keys, scalar(value))
    except NotYaml as error:
        raise BadOverride(ValueProblem((), f"its value {error.rule}", shown(value), "quote it")) from error


def apply_override(data: Any, override: Override) -> tuple[Any, Path]:
    """Return a copy of the data with the override applied, and the path of the new value.

    Missing keys are created and checked later, with all others. Raises BadOverride.
    """
    return _with(data, override.keys, override.value, ())


def _with(data: Any, keys: Sequence[str], value: Any, path: Path) -> tuple[Any, Path]:
    if not keys:
        return value, path
    key, *rest = keys
    if data is None:
        data = [] if key == "0" else {}
    short = SHORT_FORMS.get(str(path[-1])) if path else None
    if isinstance(data, str) and short is not None:
        data = {short: data}
    if isinstance(data, list):
        index = _index(data, key, path)
        inner, changed = _with(data[index] if index < len(data) else None, rest, value, (*path, index))
        return [*data[:index], inner, *data[index + 1 :]], changed
    if not isinstance(data, Mapping):
        rule = f"{dotted(path)} is not a mapping, so it has no key {key}"
        raise BadOverride(ValueProblem(path, rule, shown(data)))
    inner, changed = _with(data.get(key), rest, value, (*path, key))
    return {**data, key: inner}, changed


def _index(data: list[Any], key: str, path: Path) -> int:
    """Return the list index of a key; an empty list may be given its first item."""
    what = "item" if len(data) == 1 else "items"
    remedy = f"{dotted(path)} has {len(data)} {what}, counted from 0"
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise BadOverride(ValueProblem((*path, key), "must be the index of a list item", shown(key), remedy))
    if int(key) >= max(1, len(data)):
        raise BadOverride(ValueProblem((*path, int(key)), "there is no such item", key, remedy))
    return int(key)
