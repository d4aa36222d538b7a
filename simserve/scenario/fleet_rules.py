"""Rules of fleets that change: budgets that hold their replicas, graces that are long enough, failures that can be."""

from collections.abc import Iterable, Iterator

from simserve.scenario.cluster import ClusterSection
from simserve.scenario.fleet import Failure, OnFailure, Passing, Shutdown, Spares, Startup
from simserve.scenario.pool import Defaults, Pool
from simserve.scenario.setup import pool_setup
from simserve.scenario.typical_steps import StepTimes, all_decodes
from simserve.units import to_s

Place = tuple[str | int, ...]
Finding = tuple[Place, str, object, str]
"""Place, rule, value and remedy."""


def findings(cluster: ClusterSection) -> Iterator[Finding]:
    """Yield what cannot be of a fleet that changes."""
    yield from _of_budget(cluster)
    yield from _of_graces(cluster)
    yield from _of_losses(cluster)
    names = [pool.name for pool in cluster.pools]
    for index, failure in enumerate(cluster.failures or ()):
        here = ("failures", index)
        if (failure.at_s is None) == (failure.mtbf_s is None):
            remedy = "at_s is the instant of one failure, mtbf_s the mean time between failures of a unit"
            yield here, "needs either at_s or mtbf_s", None, remedy
        if failure.member is not None and failure.mtbf_s is not None:
            yield (*here, "member"), "is for one failure, at at_s", failure.member, "leave it out, or give at_s"
        if failure.pool is not None and failure.pool not in names:
            yield (*here, "pool"), "there is no such pool", failure.pool, f"use {' or '.join(names)}"
        match failure:
            case Passing():
                yield from _of_passing(cluster, failure, here)
            case _:
                yield from _of_ending(cluster, failure, here)


def _of_budget(cluster: ClusterSection) -> Iterator[Finding]:
    """Yield a budget that is too small for the replicas, or for those that a roll-out begins with."""
    least = [max(pool.replicas, (pool.autoscaler or {}).get("min_replicas", 0)) for pool in cluster.pools]
    pools = zip(least, cluster.pools, strict=True)
    n_gpus = sum((n + (pool.spares or Spares()).n) * pool.parallel.n_gpus for n, pool in pools)
    rule = f"must hold the {n_gpus} GPUs of the replicas at the start and at least, spares included"
    remedy, rollout = "raise it, or lower replicas or min_replicas", cluster.rollout
    if rollout is not None and (cluster.gpu_budget or 0) >= n_gpus:
        wanted = sum(n for n, pool in zip(least, cluster.pools, strict=True) if pool.name == rollout.pool)
        beyond = [step.n_of(wanted) for step in rollout.steps if step.traffic_frac is not None]
        n_new = max(beyond, default=0 if rollout.max_unavailable else 1) * rollout.to.parallel.n_gpus
        n_gpus, remedy = n_gpus + n_new, "raise it, or replace replicas in place by max_unavailable"
        rule = f"must hold the {n_gpus} GPUs that the roll-out begins with, {n_new} of them beyond the others"
    if cluster.gpu_budget is not None and cluster.gpu_budget < n_gpus:
        yield ("gpu_budget",), rule, cluster.gpu_budget, remedy


def _of_graces(cluster: ClusterSection) -> Iterator[Finding]:
    """Yield graces that end before `pre_stop_s`."""
    for index, shutdown in enumerate(pool.shutdown or Shutdown() for pool in cluster.pools):
        if shutdown.grace_s is not None and shutdown.grace_s < shutdown.pre_stop_s:
            rule = f"must be at least pre_stop_s, {shutdown.pre_stop_s:g} s, which is a part of it"
            yield ("pools", index, "shutdown", "grace_s"), rule, shutdown.grace_s, "raise it, or lower pre_stop_s"


def short_graces(scenario: Defaults, pools: Iterable[Pool]) -> Iterator[Finding]:
    """Yield graces that end within the largest decode step of a pool that is otherwise right."""
    for index, (pool, stops) in enumerate((pool, pool.shutdown or Shutdown()) for pool in pools):
        if not stops.drain or stops.grace_s is None or "grace_s" not in stops.model_fields_set:
            continue
        setup = pool_setup(scenario, pool)
        for n, shape in [*all_decodes(setup).items()][-1:]:
            step_s, step = to_s(StepTimes(setup).ps(shape)), f"a decode step of {n:,} x {shape.kv_tokens // n:,} tokens"
            if stops.grace_s < step_s:
                rule = f"must be at least {step_s:.3g} s, as less ends within {step}"
                yield ("pools", index, "shutdown", "grace_s"), rule, stops.grace_s, "to cut at once, set drain: false"


def _of_losses(cluster: ClusterSection) -> Iterator[Finding]:
    """Yield what cannot be saved from failures."""
    loss, failures = cluster.on_failure or OnFailure(), cluster.failures or ()
    for pool in cluster.versions:
        if loss.migrate != "none" and not (pool.scheduler or {}).get("stream", True):
            rule = f"needs tokens that clients have: none before the whole answer in pool {pool.name}"
            yield ("on_failure", "migrate"), rule, loss.migrate, "let its scheduler stream: true"
    if cluster.moves_kv and not cluster.has_roles:
        link = cluster.kv_link
        if link is None:
            rule, remedy = "needs the link that keys and values cross", "give cluster.kv_link: {bytes_per_s: 50.0e9}"
            yield ("on_failure", "migrate"), rule, loss.migrate, remedy
        elif (link.how, link.transfer) != ("pull", "whole"):
            rule = "needs pools with roles, as requests that leave have all their keys and values"
            yield ("kv_link", "how"), rule, link.how, "leave how and transfer out"
    tiers = [pool.host_tier.scope for pool in cluster.pools if pool.host_tier is not None]
    if loss.host_tier == "kept" and ("replica" not in tiers or all(each.what != "process" for each in failures)):
        rule = "needs host memory of a replica's own and failures of what: process: other failures take the machine"
        yield ("on_failure", "host_tier"), rule, loss.host_tier, "add a host_tier and such failures, or leave it out"


def _of_passing(cluster: ClusterSection, failure: Passing, here: Place) -> Iterator[Finding]:
    """Yield links that there are not or that stay down, and replicas that stand still."""
    named = [pool.name for pool in cluster.pools if pool.role != "both" or (cluster.moves_kv and not cluster.has_roles)]
    is_link = failure.what == "link"
    if not is_link and failure.speed_frac < 0.001:
        rule, remedy = "must be at least 0.001, as a replica that stands still has failed", "use what: process"
        yield (*here, "speed_frac"), rule, failure.speed_frac, remedy
    if is_link and failure.member is not None:
        yield (*here, "member"), "is no part of a link, which is that of a pool", failure.member, "give pool"
    if is_link and (not named or failure.pool not in (None, *named)):
        rule = "needs a prefill and a decode pool: else keys and values stay on the GPUs that computed them"
        yield (*here, "what"), rule, "link", "give pools roles, or use what: slow"
    if is_link and not failure.speed_frac and failure.for_s is None:
        yield (*here, "for_s"), "is needed, as nothing arrives over a link that stays down", None, "give it"


def _of_ending(cluster: ClusterSection, failure: Failure, here: Place) -> Iterator[Finding]:
    """Yield keys of other failures, and a rate at which replicas live for less than they take to start."""
    if failure.notice_s != Failure.model_fields["notice_s"].default and failure.what != "spot":
        yield (*here, "notice_s"), "is for what: spot", failure.notice_s, "leave it out"
    if failure.repair_s is not None and (cluster.gpu_budget is None or failure.what == "process"):
        rule = "keeps GPUs that fail out of cluster.gpu_budget until then"
        yield (*here, "repair_s"), rule, failure.repair_s, "give cluster.gpu_budget, or leave it out"
    if failure.mtbf_s is None or failure.recover != "restart":
        return
    for pool in cluster.pools:
        start_s = (pool.startup or Startup()).typical_s(in_place=failure.what == "process")
        n = pool.parallel.n_gpus if failure.what == "gpu" else 1
        if failure.pool in (None, pool.name) and failure.mtbf_s / n < start_s:
            rule = f"must leave replicas of pool {pool.name} standing, which start in {start_s:.3g} s or more"
            yield (*here, "mtbf_s"), rule, failure.mtbf_s, f"give at least {n * start_s:.3g}"
