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
    document = _read(path)
    source = Source(str(path), document.lines)
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
