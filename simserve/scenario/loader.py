"""Load a scenario: read a YAML file, apply overrides, check and resolve."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import Problem, ScenarioError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import ValueProblem
from simserve.scenario.draft import Problems, ScenarioSource
from simserve.scenario.overrides import BadOverride, Override, apply_override, override_seed, parse_override
from simserve.scenario.resolve import resolve
from simserve.scenario.scenario import Scenario
from simserve.scenario.yaml_lines import Document, NotYaml, read_yaml


def load_scenario(path: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> Scenario:
    """Return the resolved scenario of a file.

    `overrides` are `key.path=value`, applied in order; `seed` replaces the file's. Relative paths in the scenario
    are looked up next to the file, then in the current directory. Raises ScenarioError with every problem at once.
    """
    return Template.of(path, overrides, seed).resolved()


def scenario_of(content: bytes, path: Path, place: str, seed: int | None = None) -> Scenario:
    """Return the resolved scenario of a file's earlier content; problems name it `place`."""
    return Template(path, place, _document(content, place), _options((), seed)).resolved()


@dataclass(frozen=True)
class UnreadOption:
    """An option that is not `key.path=value`."""

    text: str
    problem: ValueProblem


@dataclass(frozen=True)
class Template:
    """A scenario's file and command-line options, read once, to be resolved with or without further overrides."""

    path: Path
    place: str
    """The file's name in problems."""
    document: Document
    options: tuple[Override | UnreadOption, ...]

    @classmethod
    def of(cls, path: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> "Template":
        """Read the file. Raises ScenarioError if it holds no document; bad options are reported when resolving."""
        path = Path(path)
        return cls(path, str(path), _document(_content(path), str(path)), _options(overrides, seed))

    def resolved(self, more: Iterable[Override] = ()) -> Scenario:
        """Return the scenario with `more` applied after the options. Raises ScenarioError with every problem."""
        source = ScenarioSource(self.place, dict(self.document.lines))
        problems = Problems(source)
        for problem, line in self.document.problems:
            problems.add(problem, line)
        data = self.document.data
        for option in (*self.options, *more):
            if isinstance(option, UnreadOption):
                problems.add_option(option.text, option.problem)
                continue
            try:
                data, changed = apply_override(data, option)
                source.override(changed, option.option)
            except BadOverride as error:
                source.override(error.problem.path, option.option)
                problems.add(error.problem)
        if isinstance(data, dict):
            data = {"name": _name_of(self.path)} | data
        return resolve(Scenario, data, problems, (self.path.parent.resolve(), Path.cwd()))


def _options(overrides: Iterable[str], seed: int | None) -> tuple[Override | UnreadOption, ...]:
    return (*map(_parsed, overrides), *([] if seed is None else [override_seed(seed)]))


def _parsed(text: str) -> Override | UnreadOption:
    try:
        return parse_override(text)
    except BadOverride as error:
        return UnreadOption(f"--set {text}", error.problem)


def _content(path: Path) -> bytes:
    """Read a file. Raises ScenarioError if it cannot be read."""
    try:
        return read_file(path, SCENARIO_BYTES)
    except FileNotFoundError:
        raise ScenarioError([Problem(str(path), "there is no such file", None, _similar(path))]) from None
    except IsADirectoryError:
        raise ScenarioError([Problem(str(path), "is a folder", None, "name a scenario file in it")]) from None
    except OSError as error:
        raise ScenarioError([Problem(str(path), f"cannot be read: {error.strerror}")]) from None


def _document(content: bytes, place: str) -> Document:
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


def _similar(path: Path) -> str | None:
    """Suggest a file with a similar name in the same folder."""
    there = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, sorted(there), n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _name_of(path: Path) -> str:
    """Return the file's name in the characters of a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "scenario"
