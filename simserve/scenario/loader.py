"""load_scenario: a YAML file, changed by overrides, checked and resolved."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import Mistake, ScenarioError
from simserve.plugins.flaws import Flaw
from simserve.scenario.marks import Document, NotYaml, read_yaml
from simserve.scenario.mistakes import Mistakes, Source
from simserve.scenario.models import Scenario
from simserve.scenario.overrides import BadOverride, Override, apply_override, override_seed, parse_override
from simserve.scenario.resolve import resolve


def load_scenario(path: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> Scenario:
    """The scenario of a file, resolved.

    `overrides` are `key.path=value`, applied in order; `seed` replaces the file's. Relative paths in the scenario
    are looked up beside the file, then in the current directory. Raises ScenarioError with every mistake at once.
    """
    return Template.of(path, overrides, seed).resolved()


@dataclass(frozen=True)
class UnreadOption:
    """An option that is no `key.path=value`."""

    text: str
    flaw: Flaw


@dataclass(frozen=True)
class Template:
    """A scenario's file and the options given with it, read once, to be resolved as it is or with other values."""

    path: Path
    document: Document
    options: tuple[Override | UnreadOption, ...]

    @classmethod
    def of(cls, path: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> "Template":
        """Raises ScenarioError if there is no such document; options that make no sense are told when resolving."""
        given = [_parsed(text) for text in overrides]
        return cls(Path(path), _read(Path(path)), (*given, *([] if seed is None else [override_seed(seed)])))

    def resolved(self, more: Iterable[Override] = ()) -> Scenario:
        """The scenario, with `more` applied after the options. Raises ScenarioError with every mistake at once."""
        source = Source(str(self.path), dict(self.document.lines))
        mistakes = Mistakes(source)
        for flaw, line in self.document.flaws:
            mistakes.add(flaw, line)
        data = self.document.data
        for option in (*self.options, *more):
            if isinstance(option, UnreadOption):
                mistakes.add_option(option.text, option.flaw)
                continue
            try:
                data, changed = apply_override(data, option)
                source.override(changed, option.option)
            except BadOverride as error:
                source.override(error.flaw.path, option.option)
                mistakes.add(error.flaw)
        if isinstance(data, dict):
            data = {"name": _name_of(self.path)} | data
        return resolve(data, mistakes, (self.path.parent.resolve(), Path.cwd()))


def _parsed(text: str) -> Override | UnreadOption:
    try:
        return parse_override(text)
    except BadOverride as error:
        return UnreadOption(f"--set {text}", error.flaw)


def _read(path: Path) -> Document:
    """The document in a file. Raises ScenarioError if there is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        document = read_yaml(text)
    except FileNotFoundError:
        raise ScenarioError([Mistake(str(path), "there is no such file", None, _similar(path))]) from None
    except IsADirectoryError:
        raise ScenarioError([Mistake(str(path), "is a folder", None, "name a scenario file in it")]) from None
    except OSError as error:
        raise ScenarioError([Mistake(str(path), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ScenarioError([Mistake(str(path), f"is not UTF-8 text (byte {error.start})")]) from None
    except NotYaml as error:
        place = str(path) if error.line is None else f"{path}:{error.line}"
        raise ScenarioError([Mistake(place, error.rule)]) from None
    if document.data is None:
        raise ScenarioError([Mistake(str(path), "is empty", None, "`simserve init` writes one to start from")])
    return document


def _similar(path: Path) -> str | None:
    """A file of nearly that name beside it."""
    there = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, sorted(there), n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _name_of(path: Path) -> str:
    """The file's name as that of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "scenario"
