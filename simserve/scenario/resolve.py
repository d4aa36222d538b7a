"""Resolve plain data into an Experiment with every default filled in, or raise all problems at once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from simserve.catalog.hub import PRECISIONS
from simserve.plugins.validation import (
    RULES,
    Path,
    ValueProblem,
    as_json,
    closest,
    did_you_mean,
    dotted,
    infinities,
    problems_of,
    shown,
)
from simserve.scenario.cluster import ClusterSection, check_sessions, resolve_cluster, scaled_by
from simserve.scenario.draft import Draft, Problems, leaves
from simserve.scenario.dump import scenario_data
from simserve.scenario.experiment import Experiment, ExperimentT, check_slo_classes, resolve_weight_dtype
from simserve.scenario.fleet import AnyFailure, Failure, OnFailure, Scrape, Shutdown, Spares, Startup
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
    scenario.set_origins(_origins(scenario, data, draft), folders[0], draft.notes)
    return scenario


def _origins(scenario: Experiment, data: Any, draft: Draft) -> dict[str, str]:
    """Return the origin of each value of the resolved scenario."""
    origins = {}
    for path, value in leaves(scenario_data(scenario), ()):
        origin = "explicit" if _is_written(data, path, value) else draft.origins.get(path, "default")
        origins[dotted(path)] = draft.replaced.get(path, origin)
    return origins


def _is_written(data: Any, path: Path, value: Any) -> bool:
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
    """Return the experiment of the data, with stand-ins for every reported problem.

    Raises ScenarioError only if no part of it can be read.
    """
    if not isinstance(data, Mapping):
        problems.add(ValueProblem((), "a scenario must be a mapping of keys to values", shown(data)))
        raise problems.as_error(remedy_for_unknown)
    problems.extend(problem for problem in infinities(data) if not PLUGIN_KEYS & set(problem.path))
    for _ in range(MOST_ROUNDS):
        try:
            return kind.model_validate_json(as_json(data), strict=True)
        except ValidationError as error:
            for problem in problems_of(error, data):
                if not problems.knows(problem.path):
                    problems.add(_with_remedy(problem, data))
                data = _mended(data, problem)
    raise problems.as_error(remedy_for_unknown)


def _with_remedy(problem: ValueProblem, data: Any) -> ValueProblem:
    """Add the remedy for a missing or unknown key, or for a value that tells what was meant."""
    remedy = problem.remedy
    name, value = str(problem.path[-1]) if problem.path else "", problem.value or ""
    text = value.strip("'")
    if problem.kind == "unknown":
        known = known_keys(problem.path[:-1], data)
        home = None if closest(name, known) else nearest_place(name)
        remedy = f"did you mean {home}?" if home else did_you_mean(name, known)
    elif problem.kind == "missing":
        remedy = MISSING.get(name)
    elif problem.rule == RULES["string_type"] and re.fullmatch(r"[-+.\d]\S*|true|false", value):
        remedy = f'write {name}: "{value}"; on a command line \'{dotted(problem.path)}="{value}"\''
    elif problem.rule == RULES["model_type"] and name in MAIN_KEYS and not value.startswith(("[", "{")):
        remedy = f"write {name}: {{{MAIN_KEYS[name]}: {text}}}"
    elif name in ("weight_dtype", "kv_dtype") and (dtype := DTYPES.get(text.lower(), text)) != text:
        remedy = f"write {dtype}" if re.search(rf"\b{dtype}\b", problem.rule) else remedy
    elif problem.rule == RULES["list_type"] and value == "a mapping":
        remedy = "begin each item with `- `"
    return replace(problem, remedy=remedy)


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


Finding = tuple[tuple[str | int, ...], str, object, str]
"""Place, rule, value and remedy."""

SHORTEST_GRACE_S = 0.1
"""[s] Shorter graces end within a step of a large model."""


def resolve_fleet(draft: Draft, cluster: ClusterSection) -> ClusterSection:
    """Return the cluster with the defaults of a fleet that changes, if it does."""
    failures = cluster.failures or ()
    for path, rule, value, remedy in (*_of_budget(cluster), *_of_failures(cluster, failures)):
        if not draft.touched(*path):
            draft.problem(path, rule, value, remedy)
    if not (cluster.scales or failures or cluster.rollout or any(pool.spares for pool in cluster.pools)):
        return cluster
    pools = tuple(_pool(draft.below("pools", index), pool) for index, pool in enumerate(cluster.pools))
    update: dict[str, Any] = {"pools": pools}
    if cluster.autoscaler is not None:
        update["autoscaler"] = scaled_by(draft.below("autoscaler"), cluster.autoscaler, cluster.pools)
    if cluster.scales:
        update["scrape"] = cluster.scrape or Scrape()
    if failures:
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


def _of_budget(cluster: ClusterSection) -> Iterator[Finding]:
    """Yield a budget that is too small, and graces that end within a step."""
    least = [max(pool.replicas, (pool.autoscaler or {}).get("min_replicas", 0)) for pool in cluster.pools]
    pools = zip(least, cluster.pools, strict=True)
    n_gpus = sum((n + (pool.spares or Spares()).n) * pool.parallel.n_gpus for n, pool in pools)
    if cluster.gpu_budget is not None and cluster.gpu_budget < n_gpus:
        rule = f"must hold the {n_gpus} GPUs of the replicas at the start and at least, spares included"
        yield ("gpu_budget",), rule, cluster.gpu_budget, "raise it, or lower replicas or min_replicas"
    for index, pool in enumerate(cluster.pools):
        shutdown = pool.shutdown or Shutdown()
        if shutdown.drain and shutdown.grace_s is not None and shutdown.grace_s < SHORTEST_GRACE_S:
            rule = f"must be at least {SHORTEST_GRACE_S:g} s, as less ends within a step"
            yield ("pools", index, "shutdown", "grace_s"), rule, shutdown.grace_s, "to cut at once, set drain: false"
        elif shutdown.grace_s is not None and shutdown.grace_s < shutdown.pre_stop_s:
            rule = f"must be at least pre_stop_s, {shutdown.pre_stop_s:g} s, which is a part of it"
            yield ("pools", index, "shutdown", "grace_s"), rule, shutdown.grace_s, "raise it, or lower pre_stop_s"


def _of_failures(cluster: ClusterSection, failures: Sequence[AnyFailure]) -> Iterator[Finding]:
    """Yield failures without a time, of no pool, and of a replica at a rate, and what cannot be saved from them."""
    names = [pool.name for pool in cluster.pools]
    loss = cluster.on_failure or OnFailure()
    for pool in cluster.versions:
        if loss.migrate != "none" and not (pool.scheduler or {}).get("stream", True):
            rule = f"needs tokens that clients have: none before the whole answer in pool {pool.name}"
            yield ("on_failure", "migrate"), rule, loss.migrate, "let its scheduler stream: true"
    tiers = [pool.host_tier.scope for pool in cluster.pools if pool.host_tier is not None]
    if loss.host_tier == "kept" and ("replica" not in tiers or all(each.what != "process" for each in failures)):
        rule = "needs host memory of a replica's own and failures of what: process: other failures take the machine"
        yield ("on_failure", "host_tier"), rule, loss.host_tier, "add a host_tier and such failures, or leave it out"
    for index, failure in enumerate(failures):
        here = ("failures", index)
        if (failure.at_s is None) == (failure.mtbf_s is None):
            remedy = "at_s is the instant of one failure, mtbf_s the mean time between failures of a unit"
            yield here, "needs either at_s or mtbf_s", None, remedy
        if failure.member is not None and failure.mtbf_s is not None:
            yield (*here, "member"), "is for one failure, at at_s", failure.member, "leave it out, or give at_s"
        if failure.pool is not None and failure.pool not in names:
            yield (*here, "pool"), "there is no such pool", failure.pool, f"use {' or '.join(names)}"
        joined = [pool.name for pool in cluster.pools if pool.role != "both"]
        if failure.what == "link":
            if failure.member is not None:
                yield (*here, "member"), "is no part of a link, which is that of a pool", failure.member, "give pool"
            if not joined or failure.pool not in (None, *joined):
                rule = "needs a prefill and a decode pool: else keys and values stay on the GPUs that computed them"
                yield (*here, "what"), rule, "link", "give pools roles, or use what: slow"
            if not failure.speed_frac and failure.for_s is None:
                yield (*here, "for_s"), "is needed, as nothing arrives over a link that stays down", None, "give it"
            continue
        if failure.what == "slow":
            if failure.speed_frac < 0.001:
                rule, remedy = "must be at least 0.001, as a replica that stands still has failed", "use what: process"
                yield (*here, "speed_frac"), rule, failure.speed_frac, remedy
            continue
        if failure.notice_s != Failure.model_fields["notice_s"].default and failure.what != "spot":
            yield (*here, "notice_s"), "is for what: spot", failure.notice_s, "leave it out"
        if failure.repair_s is not None and (cluster.gpu_budget is None or failure.what == "process"):
            rule = "keeps GPUs that fail out of cluster.gpu_budget until then"
            yield (*here, "repair_s"), rule, failure.repair_s, "give cluster.gpu_budget, or leave it out"
        if failure.mtbf_s is not None and failure.recover == "restart":
            yield from _standing(cluster, failure, failure.mtbf_s, here)


def _standing(
    cluster: ClusterSection, failure: Failure, mtbf_s: float, here: tuple[str | int, ...]
) -> Iterator[Finding]:
    """Yield a rate at which replicas live for less than they take to start."""
    for pool in cluster.pools:
        start_s = (pool.startup or Startup()).typical_s(in_place=failure.what == "process")
        n = pool.parallel.n_gpus if failure.what == "gpu" else 1
        if failure.pool in (None, pool.name) and mtbf_s / n < start_s:
            rule = f"must leave replicas of pool {pool.name} standing, which start in {start_s:.3g} s or more"
            yield (*here, "mtbf_s"), rule, mtbf_s, f"give at least {n * start_s:.3g}"
