"""Template: a scenario as written, in a file or as plain data, with what options and arguments change in it."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from simserve.errors import Problem, ScenarioError, did_you_mean
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import Path, ValueProblem, dotted, shown
from simserve.scenario.draft import Problems, ScenarioSource
from simserve.scenario.dump import given
from simserve.scenario.experiment import Experiment, ExperimentT
from simserve.scenario.glossary import remedy_for_unknown
from simserve.scenario.pool import Pool
from simserve.scenario.resolve import resolve
from simserve.scenario.shipped import shipped_file
from simserve.scenario.written_units import in_our_units
from simserve.scenario.yaml_lines import MOST_LEVELS, NotYaml, YamlDocument, read_yaml, scalar

KINDS = ("router", "scheduler", "autoscaler", "arrivals", "lengths", "prefixes")
SHORT_FORMS = {"engine": "name"} | dict.fromkeys(KINDS, "kind")
"""Keys with a bare name as short form, and the key that the name stands for."""


class BadOverride(Exception):
    """An override with a wrong path or value; carries the problem."""

    def __init__(self, problem: ValueProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Override:
    """One option of the command line, or one argument from Python, that changes a value."""

    place: str
    """The option as typed, or the argument, for messages."""
    keys: tuple[str, ...]
    value: Any


Options = tuple[Override | Problem, ...]
"""What options change, or the problem of one that is not `key.path=value`."""


@dataclass(frozen=True)
class Template:
    """A scenario as written, to be resolved with or without further overrides."""

    document: YamlDocument
    folder: FilePath
    """Where relative paths are looked up before the current directory."""
    place: str = "scenario"
    """The file's name in problems."""
    file: FilePath | None = None
    """None for plain data."""
    options: Options = ()

    @classmethod
    def of(cls, path: str | FilePath, overrides: Iterable[str] = (), seed: int | None = None) -> "Template":
        """Read the file, or that of a shipped scenario, `@name`. Raises ScenarioError if it holds no document; bad
        options are reported when resolving."""
        place = str(path)
        path = shipped_file(place) if place.startswith("@") else FilePath(path)
        of_seed = [] if seed is None else [Override(f"command line --seed {seed}", ("seed",), seed)]
        options = (*map(_parsed, overrides), *of_seed)
        return cls(read_document(_content(path), place), path.parent.resolve(), place, path, options)

    @classmethod
    def of_data(cls, data: Mapping[str, Any], base_dir: FilePath | None = None) -> "Template":
        """Return plain data shaped like the YAML as a template; None: relative paths are in the current directory."""
        return cls(YamlDocument(given(data)), folder=(base_dir or FilePath.cwd()).resolve())

    def with_options(self, more: Iterable[Override]) -> "Template":
        """Return the template with further options, which apply after its own."""
        return replace(self, options=(*self.options, *more))

    def resolved(self, kind: type[ExperimentT]) -> ExperimentT:
        """Check and fill in all values. Raises ScenarioError with every problem."""
        source = ScenarioSource(self.place, dict(self.document.lines))
        problems = Problems(source)
        for problem, line in self.document.problems:
            problems.add(problem, line)
        data = self._data(source, problems)
        if isinstance(data, dict) and self.file is not None:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.file.stem).strip("-._")  # as a folder may be called
            data = {"name": name or "scenario"} | data
        return resolve(kind, data, problems, (self.folder, FilePath.cwd()))

    def changes(self, changes: Mapping[str, object]) -> tuple[Override, ...]:
        """Return what keyword arguments change: top-level keys, those of the only pool, or dotted paths. Raises
        ScenarioError for a key that is unknown, or one of several pools."""
        source, wrong = ScenarioSource(self.place), list[Problem]()
        match self._data(source, Problems(source)):
            case {"cluster": {"pools": [*pools]}}:
                pass
            case _:
                pools = [{}]
        overrides = tuple(_change(name, given(value), pools, wrong) for name, value in changes.items())
        if wrong:
            raise ScenarioError(wrong)
        return overrides

    def _data(self, source: ScenarioSource, problems: Problems) -> Any:
        """Return the document with the options applied; report those that cannot be."""
        data = self.document.data
        for option in self.options:
            if isinstance(option, Problem):
                problems.add_option(option)
                continue
            try:
                data, changed = apply_override(data, option)
                source.override(changed, option.place)
            except BadOverride as error:
                source.override(error.problem.path, option.place)
                problems.add(error.problem)
        return in_our_units(data)


POOL_KEYS = Pool.model_fields.keys() - {"name"}
"""Keys that an argument may change without the path of its pool; a name is the scenario's."""

TOP_KEYS = {field.alias or key for key, field in Experiment.model_fields.items()}


def _change(name: str, value: object, pools: Sequence[Any], wrong: list[Problem]) -> Override:
    """Return what one keyword argument changes; add the problem of one that is not clear to `wrong`."""
    place = f"argument {name}={shown(value)}"
    if "." not in name and name not in TOP_KEYS | POOL_KEYS:
        remedy = remedy_for_unknown((name,)) or did_you_mean(name, sorted(TOP_KEYS | POOL_KEYS))
        wrong.append(Problem(place, "unknown key", None, remedy))
    is_stated = any(name in (pool or ()) for pool in pools)
    if name not in POOL_KEYS or (name in TOP_KEYS and not is_stated):
        return Override(place, tuple(name.split(".")), value)
    if len(pools) > 1:
        rule = f"is a key of each pool, and the scenario has {len(pools)} of them"
        remedy = f'give **{{"cluster.pools.0.{name}": {value!r}}}'
        wrong.append(Problem(f"argument {name}", rule, None, remedy))
    return Override(place, ("cluster", "pools", "0", name), value)


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


def read_document(content: bytes, place: str) -> YamlDocument:
    """Parse the YAML document. Raises ScenarioError if there is none."""
    if FilePath(place).suffix in (".csv", ".json", ".jsonl", ".parquet") and b"schema" not in content:  # JSON is YAML
        remedy = "a log of requests is workload.trace.path of a scenario, or the --log of `simserve twin`"
        raise ScenarioError([Problem(place, "is not a scenario", None, remedy)])
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


def parse_override(text: str) -> Override:
    """Parse `key.path=value`, with the value as YAML. Raises BadOverride."""
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in re.sub(r"\[(\d*)\]", r".\1", key).split("."))  # pools[0] is pools.0
    if not equals or not all(keys):
        raise BadOverride(
            ValueProblem((), "must be key.path=value", shown(text), "for example cluster.pools.0.replicas=4")
        )
    if len(keys) > MOST_LEVELS:
        raise BadOverride(ValueProblem((), f"must have at most {MOST_LEVELS} keys", shown(text), "shorten the path"))
    try:
        return Override(f"command line --set {text}", keys, scalar(value))
    except NotYaml as error:
        raise BadOverride(ValueProblem((), f"its value {error.rule}", shown(value), "quote it")) from error


def apply_override(data: Any, override: Override) -> tuple[Any, Path]:
    """Return a copy of the data with the override applied, and the path of the new value. Missing keys are created and
    checked later, with all others. Raises BadOverride."""
    return _with(data, override.keys, override.value, ())


def _with(data: Any, keys: Sequence[str], value: Any, path: Path) -> tuple[Any, Path]:
    if not keys:
        return value, path
    key, *rest = keys
    data = ([] if key == "0" else {}) if data is None else data
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
    remedy = f"{dotted(path)} has {len(data)} {what}, counted from 0: {dotted((*path, 0))}"
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise BadOverride(ValueProblem((*path, key), "must be the index of a list item", shown(key), remedy))
    if int(key) >= max(1, len(data)):
        raise BadOverride(ValueProblem((*path, int(key)), "there is no such item", key, remedy))
    return int(key)
