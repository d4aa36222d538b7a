"""Resolve what changes a fleet: autoscalers, starts and stops, scrapes, failures; and check them against each other."""

from collections.abc import Iterator, Sequence
from typing import Any

from simserve import plugins
from simserve.plugins.validation import Path
from simserve.scenario.cluster import ClusterSection
from simserve.scenario.draft import Draft, leaves
from simserve.scenario.fleet import Failure, OnFailure, Scrape, Shutdown, Startup
from simserve.scenario.manifest import ManifestError
from simserve.scenario.manifest_kinds import read_manifest
from simserve.scenario.pool import Pool

Finding = tuple[tuple[str | int, ...], str, object, str]
"""Place, rule, value and remedy."""

FAILURES_ONLY = ("placement", "on_failure")


def resolve_fleet(draft: Draft, cluster: ClusterSection) -> ClusterSection:
    """Return the cluster with the defaults of a fleet that changes, if it does."""
    failures, scales = cluster.failures or (), any(pool.autoscaler for pool in cluster.pools)
    for path, rule, value, remedy in (*_of_cluster(cluster, scales=scales), *_of_failures(cluster, failures)):
        if not draft.touched(*path):
            draft.problem(path, rule, value, remedy)
    if not scales and not failures:
        return cluster
    pools = tuple(_pool(draft.below("pools", index), pool) for index, pool in enumerate(cluster.pools))
    update: dict[str, Any] = {"pools": pools}
    if scales:
        update["scrape"] = cluster.scrape or Scrape()
    if failures:
        update["on_failure"] = cluster.on_failure or OnFailure()
    return cluster.model_copy(update=update)


def _pool(draft: Draft, pool: Pool) -> Pool:
    """Return a pool with its autoscaler spelled out, and how its replicas start and stop."""
    autoscaler = pool.autoscaler
    if autoscaler is not None:
        here = draft.below("autoscaler")
        by_manifest = "manifest" in autoscaler
        autoscaler = _of_manifest(here, autoscaler) if by_manifest else here.spelled_out("autoscalers", autoscaler)
    starts, stops = pool.startup or Startup(), pool.shutdown or Shutdown()
    return pool.model_copy(update={"autoscaler": autoscaler, "startup": starts, "shutdown": stops})


def _of_manifest(draft: Draft, given: dict[str, Any]) -> dict[str, Any]:
    """Return the policy of a manifest with the keys that the scenario gives, or what it gives after its problems."""
    file, name = given["manifest"], given.get("name")
    for key, value in (("manifest", file), ("name", name)):
        if type(value) is not str and (key == "manifest" or value is not None):
            draft.problem((key,), "must be text", value, "give the path of a file" if key == "manifest" else "quote it")
            return given
    path = draft.find_file(file)
    if path is None:
        draft.problem(("manifest",), "there is no such file", file, f"looked in {draft.looked_in()}")
        return given
    try:
        manifest = read_manifest(path, file, name)
    except ManifestError as error:
        draft.problems.extend((each if each.path else each.below(("manifest",)) for each in error.problems), draft.at)
        return given
    own = {key: value for key, value in given.items() if key not in ("manifest", "name")}
    kind = manifest.spec["kind"]
    if own.get("kind", kind) != kind:
        draft.problem(("kind",), f"must be {kind}, as {file} is of that kind", own["kind"], "leave it out")
        return given
    spec = _over(manifest.spec, own)
    policy, problems = plugins.check("autoscalers", spec)
    located = (each if _has(own, each.path) else manifest.located(each).below(("manifest",)) for each in problems)
    draft.problems.extend(located, draft.at)
    for place, _ in leaves(manifest.spec, ()):
        if not _has(own, place):
            draft.set_origin(place, path.name)
    if manifest.note is not None:
        draft.notes[draft.at] = manifest.note
    return spec if policy is None else {"kind": kind, **plugins.spelled_out(policy)}


def _over(below: Any, above: Any) -> Any:
    """Return a value with what another one says over it: mappings by key, others as a whole."""
    match below, above:
        case {**lower}, {**upper}:
            return lower | {key: _over(lower.get(key), value) for key, value in upper.items()}
    return above


def _has(given: Any, path: Path) -> bool:
    """Return whether what the scenario gives reaches a path, or replaces what is there."""
    for key in path:
        match given:
            case {**keys} if key in keys:
                given = keys[key]
            case {**_keys}:
                return False
            case _:
                return True
    return bool(path)


def _of_cluster(cluster: ClusterSection, *, scales: bool) -> Iterator[Finding]:
    """Yield sections without use, and a budget that is too small."""
    fails = bool(cluster.failures)
    for key in FAILURES_ONLY:
        if getattr(cluster, key) is not None and not fails:
            yield (key,), "is for replicas that fail", None, "give failures, or leave it out"
    if cluster.scrape is not None and not scales:
        yield ("scrape",), "is what autoscalers see", None, "give a pool an autoscaler, or leave it out"
    if cluster.gpu_budget is not None and not scales and not fails:
        yield ("gpu_budget",), "is for fleets that change", None, "give a pool an autoscaler, or leave it out"
    for index, pool in enumerate(cluster.pools):
        for key in ("startup", "shutdown"):
            if getattr(pool, key) is not None and not scales and not fails:
                rule = "is for replicas that come and go"
                yield ("pools", index, key), rule, None, "give the pool an autoscaler, or leave it out"
    n_gpus = sum(pool.replicas * pool.parallel.n_gpus for pool in cluster.pools)
    if cluster.gpu_budget is not None and cluster.gpu_budget < n_gpus:
        rule = f"must hold the {n_gpus} GPUs of the replicas at the start"
        yield ("gpu_budget",), rule, cluster.gpu_budget, "raise it, or lower replicas"


def _of_failures(cluster: ClusterSection, failures: Sequence[Failure]) -> Iterator[Finding]:
    """Yield failures without a time, of pools that there are not, and of a replica at a rate."""
    names = [pool.name for pool in cluster.pools]
    for index, failure in enumerate(failures):
        here = ("failures", index)
        if (failure.at_s is None) == (failure.mtbf_s is None):
            remedy = "at_s is the instant of one failure, mtbf_s the mean time between failures of a unit"
            yield here, "needs either at_s or mtbf_s", None, remedy
        if failure.member is not None and failure.mtbf_s is not None:
            yield (*here, "member"), "is for one failure, at at_s", failure.member, "leave it out, or give at_s"
        if failure.pool is not None and failure.pool not in names:
            yield (*here, "pool"), "there is no such pool", failure.pool, f"use {' or '.join(names)}"
