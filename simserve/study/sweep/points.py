"""Points of a sweep: combinations of values; the first key varies slowest."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any

from simserve.errors import Problem, ScenarioError
from simserve.plugins.validation import UNKNOWN_KEY
from simserve.scenario import Scenario
from simserve.scenario.dump import flow, given
from simserve.scenario.template import Override, Template
from simserve.scenario.yaml_lines import NotYaml, scalar

MOST_RUNS = 100_000
"""Limit against typing errors."""

RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?")
"""`1..8` or `0.5..2:0.25`; no value of a scenario has this form."""


@dataclass(frozen=True)
class SweepAxis:
    """A key and the values that it takes."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One combination of values."""

    number: int
    overrides: tuple[Override, ...]
    scenario: Scenario | None = None
    """Scenario of the point; None if its values conflict or it is not resolved yet."""
    reason: str | None = None
    """Reason why the values conflict."""
    problems: tuple[Problem, ...] = field(default=(), repr=False)

    @property
    def values(self) -> dict[str, Any]:
        """Return the values by key, as given."""
        return {".".join(override.keys): override.value for override in self.overrides}


def parse_axis(text: str) -> SweepAxis:
    """Parse `key.path=value,...`, with YAML values or inclusive ranges; raise ScenarioError."""
    key, equals, given = text.partition("=")
    place = f"command line --vary {text}"
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        raise _problem(place, "must be key.path=value,value,...", None, "for example cluster.pools.0.replicas=1,2,4")
    try:
        values = scalar(f"[{given}]")
    except NotYaml:
        remedy = "separate them by commas, quote text that holds some, and write lists as [8,40]"
        raise _problem(place, "its values cannot be read as YAML", given, remedy) from None
    return axis_of(".".join(keys), values, place)


def axis_of(key: str, values: Iterable[Any], place: str) -> SweepAxis:
    """Return the axis of a key, with ranges spread out; raise ScenarioError for no value, or one twice."""
    spread = [each for value in values for each in _spread(value, place)]
    if not spread:
        raise _problem(place, "needs at least one value", None, "for example 1,2,4 or 1..8")
    known: set[str] = set()
    for value in spread:
        if _identity(value) in known:
            raise _problem(place, "each value must be given once", flow(value), "leave one out")
        known.add(_identity(value))
    return SweepAxis(key, tuple(spread))


def _identity(value: Any) -> str:
    """Return the identity of a value: equal numbers are one value; 1, true and '1' differ."""
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _spread(value: Any, place: str) -> list[Any]:
    """Return the numbers of a range; any other value is itself."""
    result = RANGE.fullmatch(value) if isinstance(value, str) else None
    if result is None:
        return [value]
    first, last, step = (Decimal(part) for part in (result[1], result[2], result[3] or "1"))
    if step == 0 or last < first:
        raise _problem(place, "a range goes upwards: first..last or first..last:step", value, "for example 4..32:4")
    n = int((last - first) / step) + 1
    if n > MOST_RUNS:
        raise _problem(place, f"a sweep has at most {MOST_RUNS:,} runs", value, "use a larger step")
    kind = float if "." in value.replace("..", " ") else int
    return [kind(first + step * place) for place in range(n)]


def grid(
    axes: Sequence[SweepAxis], listed: Sequence[tuple[Override, ...]], n_seeds: int, option: str = "command line --vary"
) -> tuple[SweepPoint, ...]:
    """Combine each listed point, or the unchanged scenario, with each point of the grid. Raise ScenarioError for a key
    that is varied twice or is the seed, and for no point or too many."""
    _check_keys([axis.key for axis in axes], {".".join(each.keys) for point in listed for each in point})
    n_points = prod(len(axis.values) for axis in axes) * max(1, len(listed))
    if not axes and not listed:
        raise _problem(
            "command line", "a sweep needs keys to vary", None, "for example --vary cluster.pools.0.replicas=1,2,4"
        )
    if n_points * n_seeds > MOST_RUNS:
        rule = f"a sweep has at most {MOST_RUNS:,} runs"
        raise _problem("command line", rule, f"{n_points * n_seeds:,}", "vary fewer keys or values, or use fewer seeds")
    choices = [
        [Override(f"{option} {axis.key}={flow(value)}", tuple(axis.key.split(".")), value) for value in axis.values]
        for axis in axes
    ]
    combined = ((*own, *chosen) for own in listed or [()] for chosen in product(*choices))
    return tuple(SweepPoint(number, overrides) for number, overrides in enumerate(combined))


def _check_keys(varied: Sequence[str], listed: Iterable[str]) -> None:
    """Raise ScenarioError for a repeated key or the seed."""
    keys = [*varied, *listed]
    if "seed" in keys:
        remedy = "use --replications R for R seeds per point, and --seed for the first"
        raise _problem("command line", "all points share the same seeds, so that they are comparable", "seed", remedy)
    doubled = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
    if doubled is not None:
        raise _problem("command line", "each key is varied once", doubled, "put all its values into one --vary")


def axes_of(template: Template, vary: Iterable[tuple[str, Iterable[Any]]]) -> list[SweepAxis]:
    """Return the axes of keyword arguments, with the keys that `Template.changes` takes."""
    axes = template.changes({name: [*given(values)] for name, values in vary})
    return [axis_of(".".join(axis.keys), axis.value, axis.place) for axis in axes]


def resolved(template: Template, points: Iterable[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Resolve the points, or give the reason why their values conflict. Raise ScenarioError for a value that is invalid
    at every point, and if no point is valid."""
    result = tuple(_resolved(template, point) for point in points)
    hopeless = _hopeless(result)
    if hopeless or not any(point.scenario for point in result):
        line = hopeless or {str(each): each for point in result for each in point.problems}
        raise ScenarioError(dict.fromkeys(map(_of_key, line.values())))
    return result


def _resolved(template: Template, point: SweepPoint) -> SweepPoint:
    try:
        return SweepPoint(point.number, point.overrides, Scenario.of(template.with_options(point.overrides)))
    except ScenarioError as error:
        reason = "; ".join(str(problem) for problem in error.problems)
        return SweepPoint(point.number, point.overrides, None, reason, error.problems)


def _hopeless(points: Sequence[SweepPoint]) -> Mapping[str, Problem]:
    """Return problems of values that are malformed or unknown at every point with them."""
    malformed = [{str(each): each for each in point.problems if not each.is_conflict} for point in points]
    shared: dict[str, set[str]] = {}
    for point, problems in zip(points, malformed, strict=True):
        for override in point.overrides:
            sentence = shared.setdefault(f"{'.'.join(override.keys)}={flow(override.value)}", set(problems))
            sentence.intersection_update(problems)
    always = set().union(*shared.values())
    return {sentence: each for problems in malformed for sentence, each in problems.items() if sentence in always}


def _of_key(problem: Problem) -> Problem:
    """Return the problem of an unknown key as that of the key alone, whatever its values."""
    if problem.rule != UNKNOWN_KEY:
        return problem
    return replace(problem, place=problem.place.partition("=")[0])


def _problem(place: str, rule: str, value: str | None, remedy: str) -> ScenarioError:
    return ScenarioError([Problem(place, rule, value, remedy)])
