"""load_scenario: a YAML file, changed by overrides, checked and resolved."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from simserve.errors import Mistake, ScenarioError
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
    path = Path(path)
    return scenario_of(_content(path), path, overrides=overrides, seed=seed)


def scenario_of(
    content: bytes, path: Path, *, place: str | None = None, overrides: Iterable[str] = (), seed: int | None = None
) -> Scenario:
    """Likewise, of what a file holds, or held, that lies at `path`; mistakes call it `place` if that is given."""
    place = place or str(path)
    document = _document(content, place)
    source = Source(place, document.lines)
    mistakes = Mistakes(source)
    for flaw, line in document.flaws:
        mistakes.add(flaw, line)
    data = document.data
    for override in _parsed(overrides, seed, mistakes):
        try:
            data, changed = apply_override(data, override)
            source.override(changed, override.option)
        except BadOverride as error:
            source.override(error.flaw.path, override.option)
            mistakes.add(error.flaw)
    if isinstance(data, dict):
        data.setdefault("name", _name_of(path))
    return resolve(data, mistakes, (path.parent.resolve(), Path.cwd()))


def _parsed(overrides: Iterable[str], seed: int | None, mistakes: Mistakes) -> list[Override]:
    found = []
    for text in overrides:
        try:
            found.append(parse_override(text))
        except BadOverride as error:
            mistakes.add_option(f"--set {text}", error.flaw)
    return found if seed is None else [*found, override_seed(seed)]


def _content(path: Path) -> bytes:
    """What a file holds. Raises ScenarioError if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ScenarioError([Mistake(str(path), "there is no such file", None, _similar(path))]) from None
    except IsADirectoryError:
        raise ScenarioError([Mistake(str(path), "is a folder", None, "name a scenario file in it")]) from None
    except OSError as error:
        raise ScenarioError([Mistake(str(path), f"cannot be read: {error.strerror}")]) from None


def _document(content: bytes, place: str) -> Document:
    """The document in it. Raises ScenarioError if there is none."""
    try:
        document = read_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ScenarioError([Mistake(place, f"is not UTF-8 text (byte {error.start})")]) from None
    except NotYaml as error:
        raise ScenarioError([Mistake(place if error.line is None else f"{place}:{error.line}", error.rule)]) from None
    if document.data is None:
        raise ScenarioError([Mistake(place, "is empty", None, "`simserve init` writes one to start from")])
    return document


def _similar(path: Path) -> str | None:
    """A file of nearly that name beside it."""
    there = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, sorted(there), n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _name_of(path: Path) -> str:
    """The file's name as that of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "scenario"
