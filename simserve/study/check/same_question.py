"""The same question: what two sides must have in common for their p99 goodputs to be held against each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from simserve.scenario import Scenario

ASKED = ("name", "model", "workload", "slo", "measure")
"""Keys of a scenario that are the question; all others are what a change may change."""

NO_PART = ("schema", "seed")
"""Keys that are neither: another seed is other luck, which the rule allows for."""


@dataclass(frozen=True)
class ScenarioDifference:
    """A key that does not have the same value on both sides; None: it is not there."""

    key: str
    baseline: Any
    candidate: Any


def portable(scenario: Scenario) -> dict[str, Any]:
    """Its resolved data without the folders of this machine: a file that it names is known by its name and SHA-256."""
    data: dict[str, Any] = _portable(scenario.to_dict())
    data.get("measure", {}).pop("replays", None)  # which the gate does not run
    return data


def differences(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any]
) -> tuple[list[ScenarioDifference], list[ScenarioDifference]]:
    """Of two portable scenarios: in the question, and in what a change may change."""
    a, b = _flat(baseline), _flat(candidate)
    sides = [_long(a, b), _long(b, a)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    result = [ScenarioDifference(key, *(side.get(key) for side in sides)) for key in keys]
    differing = [each for each in result if each.baseline != each.candidate and _top(each.key) not in NO_PART]
    requested = [each for each in differing if _top(each.key) in ASKED]
    return requested, [each for each in differing if each not in requested]


def _long(side: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What is only a name as the other side writes it, with arguments: `engine.name`, `cluster.router.kind`."""
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
    """Values by dotted key; lists of plain values stay whole."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        inner = list(enumerate(value))
    if not inner:
        return {key: value}
    return {name: leaf for part, each in inner for name, leaf in _flat(each, f"{key}.{part}".lstrip(".")).items()}
