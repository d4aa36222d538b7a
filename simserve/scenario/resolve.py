"""Resolve plain data into an Experiment with every default filled in, or raise all problems at once."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from simserve.catalog.hub import PRECISIONS
from simserve.plugins import validation
from simserve.scenario.cluster import ClusterSection, check_sessions, resolve_cluster, scaled_by
from simserve.scenario.draft import Draft, Problems, leaves
from simserve.scenario.dump import scenario_data
from simserve.scenario.experiment import Experiment, ExperimentT, check_slo_classes, resolve_weight_dtype
from simserve.scenario.fleet import OnFailure, Scrape, Shutdown, Startup
from simserve.scenario.fleet_rules import findings, short_graces
from simserve.scenario.glossary import known_keys, nearest_place, remedy_for_unknown
from simserve.scenario.machine import with_version
from simserve.scenario.manifest_kinds import policy_of_file
from simserve.scenario.pool import Pool
from simserve.scenario.workload import resolve_workload

STAND_INS: Mapping[str, Any] = {"schema": "simserve/1", "workload": {}, "bytes_per_s": 1.0}
"""Stand-ins for required values that are missing or wrong; the default is an empty text."""

MISSING = {
    "schema": "begin the file with `schema: simserve/1`",
    "model": "name one: `simserve catalog models` lists them",
    "gpu": "name one: `simserve catalog gpus` lists them",
    "workload": "give arrivals, a trace or a client",
}
"""Remedies for missing required keys."""

MAIN_KEYS = {"trace": "path", "parallel": "tensor", "slo": "ttft_s"}
"""Mappings that people write as the one value they think of, and its key."""

DTYPES = PRECISIONS | {"gptq": "int4", "w4a16": "int4", "fp8_e4m3": "fp8"}
DTYPES |= {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
"""Other names of precisions."""

PLUGIN_KEYS = {"router", "admission", "scheduler", "autoscaler", "arrivals", "lengths", "prefixes"}
"""Keys that plug-ins check themselves, as some of them accept infinity."""

MOST_ROUNDS = 8
"""Rounds of removing wrong values, which can reveal others; nesting is not deeper than this."""


def resolve(kind: type[ExperimentT], data: Any, problems: Problems, folders: tuple[FilePath, ...]) -> ExperimentT:
    """Parse, check and fill in defaults. Raises ScenarioError with all problems, including earlier ones."""
    draft = Draft(problems, folders)
    parsed = resolve_weight_dtype(draft, _parse(kind, data, problems))
    cluster, workload, measure = parsed.cluster, parsed.workload, parsed.measure
    filled_in = {
        "model": draft.absolute_model(parsed.model),
        "gpu": draft.absolute_gpu(parsed.gpu),
        "engine": with_version(draft.below("engine"), parsed.engine),
        "cluster": resolve_fleet(draft.below("cluster"), resolve_cluster(draft.below("cluster"), cluster, parsed)),
        "workload": resolve_workload(draft.below("workload"), workload, measure, cluster.admission),
        "measure": measure.model_copy(update={"warmup_s": 0.0}) if measure.counts_all else measure,
    }
    check_sessions(draft.below("cluster"), cluster, workload)
    check_slo_classes(draft.below("slo", "classes"), parsed.slo, workload)
    if problems:
        raise problems.as_error(remedy_for_unknown)
    scenario = parsed.model_copy(update=filled_in)
    for path, rule, value, remedy in short_graces(scenario, scenario.cluster.pools):
        draft.below("cluster").problem(path, rule, value, remedy)
    if problems:
        raise problems.as_error(remedy_for_unknown)
    scenario.set_origins(_origins(scenario, data, draft), folders[0], draft.notes)
    return scenario


def _origins(scenario: Experiment, data: Any, draft: Draft) -> dict[str, str]:
    """Return the origin of each value of the resolved scenario."""
    origins = {}
    for path, value in leaves(scenario_data(scenario), ()):
        origin = "explicit" if _is_written(data, path, value) else draft.origins.get(path, "default")
        origins[validation.dotted(path)] = draft.replaced.get(path, origin)
    return origins


def _is_written(data: Any, path: validation.Path, value: Any) -> bool:
    """Tell whether the user gave this value, perhaps in a short form."""
    for depth, item in enumerate(path):
        if isinstance(data, str):  # a bare name is short for its kind
            return depth == len(path) - 1 and item in ("kind", "name")
        if isinstance(data, Mapping) and item not in data and path[0] == "slo":
            data = data.get("default")
        try:
            data = data[item]
        except (KeyError, IndexError, TypeError):
            return False
    return data is not None or value is None


def _parse(kind: type[ExperimentT], data: Any, problems: Problems) -> ExperimentT:
    """Return the experiment of the data, with stand-ins for every reported problem. Raises ScenarioError only if no
    part of it can be read."""
    if not isinstance(data, Mapping):
        problems.add(
            validation.ValueProblem((), "a scenario must be a mapping of keys to values", validation.shown(data))
        )
        raise problems.as_error(remedy_for_unknown)
    problems.extend(problem for problem in validation.infinities(data) if not PLUGIN_KEYS & set(problem.path))
    for _ in range(MOST_ROUNDS):
        try:
            return kind.model_validate_json(validation.as_json(data), strict=True)
        except ValidationError as error:
            for problem in validation.problems_of(error, data):
                if not problems.knows(problem.path):
                    problems.add(_with_remedy(problem, data))
                data = _mended(data, problem)
    raise problems.as_error(remedy_for_unknown)


def _with_remedy(problem: validation.ValueProblem, data: Any) -> validation.ValueProblem:
    """Add the remedy for a missing or unknown key, or for a value that tells what was meant."""
    remedy = problem.remedy
    name, value = str(problem.path[-1]) if problem.path else "", problem.value or ""
    text = value.strip("'")
    if problem.kind == "unknown":
        known = known_keys(problem.path[:-1], data)
        home = None if validation.closest(name, known) else nearest_place(name)
        remedy = f"did you mean {home}?" if home else validation.did_you_mean(name, known)
    elif problem.kind == "missing":
        remedy = MISSING.get(name)
    elif problem.rule == validation.RULES["string_type"] and re.fullmatch(r"[-+.\d]\S*|true|false", value):
        remedy = f'write {name}: "{value}"; on a command line \'{validation.dotted(problem.path)}="{value}"\''
    elif problem.rule == validation.RULES["model_type"] and name in MAIN_KEYS and not value.startswith(("[", "{")):
        remedy = f"write {name}: {{{MAIN_KEYS[name]}: {text}}}"
    elif name in ("weight_dtype", "kv_dtype") and (dtype := DTYPES.get(text.lower(), text)) != text:
        remedy = f"write {dtype}" if re.search(rf"\b{dtype}\b", problem.rule) else remedy
    elif problem.rule == validation.RULES["list_type"] and value == "a mapping":
        remedy = "begin each item with `- `"
    return replace(problem, remedy=remedy)


def _mended(data: Any, problem: validation.ValueProblem, depth: int = 0) -> Any:
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


def resolve_fleet(draft: Draft, cluster: ClusterSection) -> ClusterSection:
    """Return the cluster with the defaults of a fleet that changes, if it does."""
    for path, rule, value, remedy in findings(cluster):
        if not draft.touched(*path):
            draft.problem(path, rule, value, remedy)
    if not cluster.changes:
        return cluster
    pools = tuple(_pool(draft.below("pools", index), pool) for index, pool in enumerate(cluster.pools))
    update: dict[str, Any] = {"pools": pools}
    if cluster.autoscaler is not None:
        update["autoscaler"] = scaled_by(draft.below("autoscaler"), cluster.autoscaler, cluster.pools)
    if cluster.scales:
        update["scrape"] = cluster.scrape or Scrape()
    if cluster.failures:
        update["on_failure"] = cluster.on_failure or OnFailure()
    return cluster.model_copy(update=update)


def _pool(draft: Draft, pool: Pool) -> Pool:
    """Return a pool with its autoscaler spelled out, and how its replicas start and stop."""
    autoscaler = pool.autoscaler
    if autoscaler is not None:
        here = draft.below("autoscaler")
        by_file = "manifest" in autoscaler
        autoscaler = policy_of_file(here, autoscaler) if by_file else scaled_by(here, autoscaler, [pool], is_own=True)
    starts, stops = pool.startup or Startup(), pool.shutdown or Shutdown()
    return pool.model_copy(update={"autoscaler": autoscaler, "startup": starts, "shutdown": stops})
