"""Overrides: `cluster.pools.0.replicas=4` changes one value of a scenario's data before the checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.plugins.validation import Path, ValueProblem, dotted, shown
from simserve.scenario.yaml_lines import MOST_LEVELS, NotYaml, scalar

SHORT_FORMS = {"engine": "name"} | dict.fromkeys(("router", "scheduler", "arrivals", "lengths", "prefixes"), "kind")
"""Keys with a bare name as short form, and the key that the name stands for."""


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


def override_seed(seed: int) -> Override:
    """Return the override of `--seed`, short for `--set seed=...`."""
    return Override(f"--seed {seed}", ("seed",), seed)


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
