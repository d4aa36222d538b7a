"""Same question: what two sides must share for their p99 goodputs to be comparable."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from simserve.metrics.answers.check import ScenarioDifference
from simserve.scenario import Scenario

ASKED = ("name", "model", "workload", "slo", "measure")
"""Keys of a scenario that are the question; all others are what a change may change."""

NO_PART = ("schema", "seed")
"""Keys that are neither: the rule allows for other seeds."""


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
