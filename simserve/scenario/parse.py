"""Plain data -> the models, without stopping at the first mistake: what is wrong is noted and stood in for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from simserve.plugins.validation import ValueProblem, as_json, did_you_mean, infinities, problems_of, shown
from simserve.scenario.keys import known_keys
from simserve.scenario.models import Scenario
from simserve.scenario.problems import Problems

STAND_INS: Mapping[str, Any] = {"schema": "simserve/1", "workload": {}, "bytes_per_s": 1.0}
"""For required values that are missing or wrong, so that the rest can be checked; any other is an empty text."""

MISSING = {
    "schema": "begin the file with `schema: simserve/1`",
    "model": "name one: `simserve catalog models` lists them",
    "gpu": "name one: `simserve catalog gpus` lists them",
    "workload": "give arrivals, a trace or a client",
}
"""What to do about required keys."""

PLUGIN_KEYS = {"router", "admission", "scheduler", "arrivals", "lengths", "prefixes"}
"""What lies inside is checked by the plug-ins, of which some know what to do with infinity."""

MOST_ROUNDS = 8
"""Taking wrong values out can bring others to light; nesting is not deeper than this."""


def parse(data: Any, problems: Problems) -> Scenario:
    """The scenario that the data describes, with stand-ins for all that is noted as wrong.

    Raises ScenarioError only if nothing of it makes sense.
    """
    if not isinstance(data, Mapping):
        problems.add(ValueProblem((), "a scenario must be a mapping of keys to values", shown(data)))
        raise problems.as_error()
    problems.extend(problem for problem in infinities(data) if not PLUGIN_KEYS & set(problem.path))
    for _ in range(MOST_ROUNDS):
        try:
            return Scenario.model_validate_json(as_json(data), strict=True)
        except ValidationError as error:
            for problem in problems_of(error, data):
                if not problems.knows(problem.path):
                    problems.add(_with_remedy(problem, data))
                data = _mended(data, problem)
    raise problems.as_error()


def _with_remedy(problem: ValueProblem, data: Any) -> ValueProblem:
    """The same flaw, and what to do about a missing or unknown key."""
    if problem.kind == "unknown":
        return replace(problem, remedy=did_you_mean(str(problem.path[-1]), known_keys(problem.path[:-1], data)))
    if problem.kind == "missing":
        return replace(problem, remedy=MISSING.get(str(problem.path[-1])))
    return problem


def _mended(data: Any, problem: ValueProblem, depth: int = 0) -> Any:
    """The data with a stand-in where the flaw is; what it was stays as it is."""
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
