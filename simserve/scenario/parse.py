"""Parse plain data into the models, past the first problem: wrong values are reported and replaced by stand-ins."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from simserve.plugins.validation import ValueProblem, as_json, did_you_mean, infinities, problems_of, shown
from simserve.scenario.keys import known_keys
from simserve.scenario.models import Experiment
from simserve.scenario.problems import Problems

ExperimentT = TypeVar("ExperimentT", bound=Experiment)

STAND_INS: Mapping[str, Any] = {"schema": "simserve/1", "workload": {}, "bytes_per_s": 1.0}
"""Stand-ins for required values that are missing or wrong; the default is an empty text."""

MISSING = {
    "schema": "begin the file with `schema: simserve/1`",
    "model": "name one: `simserve catalog models` lists them",
    "gpu": "name one: `simserve catalog gpus` lists them",
    "workload": "give arrivals, a trace or a client",
}
"""Remedies for missing required keys."""

PLUGIN_KEYS = {"router", "admission", "scheduler", "arrivals", "lengths", "prefixes"}
"""Keys that plug-ins check themselves, as some of them accept infinity."""

MOST_ROUNDS = 8
"""Rounds of removing wrong values, which can reveal others; nesting is not deeper than this."""


def parse(kind: type[ExperimentT], data: Any, problems: Problems) -> ExperimentT:
    """Return the experiment of the data, with stand-ins for every reported problem.

    Raises ScenarioError only if no part of it can be read.
    """
    if not isinstance(data, Mapping):
        problems.add(ValueProblem((), "a scenario must be a mapping of keys to values", shown(data)))
        raise problems.as_error()
    problems.extend(problem for problem in infinities(data) if not PLUGIN_KEYS & set(problem.path))
    for _ in range(MOST_ROUNDS):
        try:
            return kind.model_validate_json(as_json(data), strict=True)
        except ValidationError as error:
            for problem in problems_of(error, data):
                if not problems.knows(problem.path):
                    problems.add(_with_remedy(problem, data))
                data = _mended(data, problem)
    raise problems.as_error()


def _with_remedy(problem: ValueProblem, data: Any) -> ValueProblem:
    """Add the remedy for a missing or unknown key."""
    if problem.kind == "unknown":
        return replace(problem, remedy=did_you_mean(str(problem.path[-1]), known_keys(problem.path[:-1], data)))
    if problem.kind == "missing":
        return replace(problem, remedy=MISSING.get(str(problem.path[-1])))
    return problem


def _mended(data: Any, problem: ValueProblem, depth: int = 0) -> Any:
    """Return a copy of the data with a stand-in in place of the problem."""
    key = problem.path[depth] if depth < len(problem.path) else None
    is_here = depth == len(problem.path) - 1
    if isinstance(data, list) and isinstance(key, int) and key < len(data):
        item = {} if is_here else _mended(data[key], problem, depth + 1)
        return [*data[:key], item, *data[key + 1 :]]
    if not isinstance(data, Mapping) or (key not in data and not is_here):
        return data
    if not is_here:
        return {**data, key: _mended(data[key], problem, depth + 1)}
    if problem.kind == "missing":
        return {**data, key: STAND_INS.get(str(key), "")}
    return {name: value for name, value in data.items() if name != key}
