"""Load a scenario: from a YAML file, by the name of a shipped one, or from plain data."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from simserve.errors import Problem, ScenarioError, did_you_mean
from simserve.scenario.scenario import Scenario
from simserve.scenario.shipped import shipped
from simserve.scenario.template import Template, read_document

AnyScenario = Scenario | str | PathLike[str] | Mapping[str, Any]
"""A scenario, the path of its file, the name of a shipped one, or plain data shaped like the YAML."""

FORMS = "must be the path of a file, the name of a shipped scenario, a dict or a Scenario"


def load_scenario(path: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> Scenario:
    """Return the resolved scenario of a file.

    `overrides` are `key.path=value`, applied in order; `seed` replaces the file's. Relative paths in the scenario
    are looked up next to the file, then in the current directory. Raises ScenarioError with every problem at once.
    """
    return Scenario.of(Template.of(path, overrides, seed))


def scenario_of(content: bytes, path: Path, place: str, seed: int | None = None) -> Scenario:
    """Return the resolved scenario of a file's earlier content; problems name it `place`."""
    template = Template(read_document(content, place), path.parent.resolve(), place, path)
    return Scenario.of(template.with_options(template.changes({} if seed is None else {"seed": seed})))


def template_from(source: AnyScenario, changes: Mapping[str, object]) -> Template:
    """Return any form of a scenario as a template, with what keyword arguments change. Raises ScenarioError."""
    match source:
        case Scenario():
            template = source.template
        case Mapping():
            template = Template.of_data(source)
        case str() | PathLike():
            template = Template.of(_place_of(Path(source)))
        case _:
            raise ScenarioError([Problem("scenario", FORMS, repr(source))])
    return template.with_options(template.changes(changes))


def scenario_from(source: AnyScenario, changes: Mapping[str, object] = {}) -> Scenario:
    """Return the resolved scenario of any form, with what keyword arguments change. Raises ScenarioError."""
    match source:
        case Scenario() if not changes:
            return source
    return Scenario.of(template_from(source, changes))


def _place_of(path: Path) -> Path:
    """Return the file of a path, or of the name of a shipped scenario. Raises ScenarioError for an unknown name."""
    if path.suffix or len(path.parts) != 1 or path.exists():
        return path
    names = shipped()
    file = names.get(path.name.removeprefix("@").replace("-", "_"))
    if file is not None:
        return file
    remedy = did_you_mean(path.name, names) if names else "this install ships no scenarios: give the path of a file"
    raise ScenarioError([Problem("scenario", FORMS, path.name, remedy)])
