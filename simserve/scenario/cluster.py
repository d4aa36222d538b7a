"""The cluster section: pools, the routers and the admission policy before them, and what joins pools with roles."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from simserve import plugins
from simserve.autoscalers.base import Autoscaler
from simserve.catalog.types import Count, PluginSpec, Section
from simserve.cost.comm import NIC_LATENCY_S
from simserve.errors import CatalogError
from simserve.routers.base import Router
from simserve.scenario.cards import load_gpu
from simserve.scenario.draft import Draft
from simserve.scenario.fleet import AnyFailure, OnFailure, PlacementSection, Scrape
from simserve.scenario.pool import Defaults, KvLink, Pool, Views
from simserve.scenario.resolve_pool import resolve_pool
from simserve.scenario.rollout import RolloutSection, resolve_rollout
from simserve.scenario.scheduler_rules import check_role
from simserve.scenario.workload import Workload
from simserve.splitters.base import Splitter

DISAGGREGATED_ONLY = ("kv_link", "decode_router", "disaggregate")
"""Cluster keys that need pools with roles."""


class ClusterSection(Section):
    """Pools behind a router."""

    router: PluginSpec = {"kind": "round_robin"}
    """Policy that picks the replica of each request, in pools with roles the prefill replica."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = (Pool(),)
    """Groups of identical replicas; by default one pool of one replica."""
    kv_link: KvLink | None = None
    """Link that carries KV blocks from prefill to decode replicas, null: the GPUs' network adapters; or for `migrate:
    with_kv`."""
    admission: PluginSpec | None = None
    """Admission policy, applied before the router; null: every request is admitted."""
    decode_router: PluginSpec | None = None
    """Router to decode replicas after prefill; null: as `router`."""
    views: Views | None = None
    """Staleness of what both routers see; null: they see the current state."""
    disaggregate: PluginSpec | None = None
    """Requests that go to prefill replicas; null: all. Others go to `role: both` pools, or without any to decode
    replicas, which then also prefill them."""
    autoscaler: PluginSpec | None = None
    """Policy that scales several pools together, such as a prefill and a decode pool; null: pools have their own."""
    gpu_budget: Count | None = None
    """GPUs that all pools share: replicas beyond it wait for others to go; null: no limit."""
    scrape: Scrape | None = None
    """What autoscalers see of replicas, and when; null: samples each 15 s, a second later."""
    placement: PlacementSection | None = None
    """Nodes and racks; null: nodes of the card's size, all in one rack."""
    failures: tuple[AnyFailure, ...] | None = None
    """Failures of processes, GPUs, nodes, racks and links, and slow replicas; null: none."""
    on_failure: OnFailure | None = None
    """What becomes of the requests of a replica that fails; null: they fail."""
    rollout: RolloutSection | None = None
    """Replacement of a pool's replicas by those of another version; null: none."""

    @property
    def versions(self) -> tuple[Pool, ...]:
        """All pools, and last the one that a roll-out turns one of them into."""
        return self.pools if self.rollout is None else (*self.pools, self.rollout.to)

    @property
    def has_roles(self) -> bool:
        """Whether prefill replicas hand over to decode replicas."""
        return any(pool.role != "both" for pool in self.pools)

    @property
    def moves_kv(self) -> bool:
        """Whether requests take keys and values along from a replica that leaves."""
        return self.on_failure is not None and self.on_failure.migrate == "with_kv"

    @property
    def scales(self) -> bool:
        """Whether an autoscaler changes the number of replicas of some pool."""
        return self.autoscaler is not None or any(pool.autoscaler for pool in self.pools)

    @property
    def changes(self) -> bool:
        """Whether replicas come or go during a run, or are slow."""
        return bool(self.failures or self.scales or self.rollout or any(pool.spares for pool in self.pools))


def resolve_cluster(draft: Draft, cluster: ClusterSection, defaults: Defaults) -> ClusterSection:
    """Return the cluster with every default filled in, as far as it has no problems."""
    router = draft.below("router").spelled_out("routers", cluster.router)
    _check_names(draft, cluster.pools)
    pools = tuple(resolve_pool(draft.below("pools", i), defaults, pool) for i, pool in enumerate(cluster.pools))
    admission = cluster.admission
    if admission is not None:
        admission = draft.below("admission").spelled_out("admission", admission)
    update: dict[str, Any] = {"router": router, "pools": pools, "admission": admission}
    if cluster.rollout is not None:
        update["rollout"] = resolve_rollout(draft.below("rollout"), cluster.rollout, cluster.pools, defaults)
    return cluster.model_copy(update=update | _of_roles(draft, cluster, pools, defaults))


def _check_names(draft: Draft, pools: Sequence[Pool]) -> None:
    names = [pool.name for pool in pools]
    for index, name in enumerate(names):
        if names.index(name) != index:
            draft.problem(("pools", index, "name"), "must differ from other pools' names", name, "rename it")


def check_sessions(draft: Draft, cluster: ClusterSection, workload: Workload) -> None:
    """Report a router that needs sessions for a generated load without any; traces are checked when they are read."""
    if workload.trace is not None or draft.problems.touch(("workload", "prefixes"), ("workload", "client")):
        return
    prefixes, _ = (None, []) if workload.prefixes is None else plugins.check("workload.prefixes", workload.prefixes)
    if getattr(prefixes, "makes_sessions", False):
        return
    for key in ("router", "decode_router"):
        spec = getattr(cluster, key)
        if spec is None or draft.touched(key):
            continue
        router, _ = plugins.check("routers", spec)
        if isinstance(router, Router) and router.needs_sessions:
            rule = "keeps the requests of a session together, and this workload has no sessions"
            remedy = "give workload.prefixes: {kind: conversations, ...} or agents, or a trace with a session_id"
            by_weight = spec.get("session")
            what, got = ("kind", spec["kind"]) if by_weight is None else ("session", by_weight)
            draft.problem((key, what), rule, got, remedy)


def scaled_by(draft: Draft, spec: PluginSpec, pools: Sequence[Pool], *, is_own: bool = False) -> PluginSpec:
    """Return an autoscaler spelled out, after a check against the pool that it belongs to, or those that it names."""
    spec = draft.spelled_out("autoscalers", spec)
    if draft.touched():
        return spec
    policy: Autoscaler = plugins.build("autoscalers", spec)
    named, there = policy.pools_by_role, {pool.name: index for index, pool in enumerate(pools)}
    if is_own and named:
        draft.problem(("pools",), "is for cluster.autoscaler, which scales several pools", None, "move it there")
        return spec
    if not is_own and not named:
        places = " or ".join(f"cluster.pools.{index}.autoscaler" for index in there.values())
        draft.problem((), "must name the pools that it scales", None, f"move it to {places}, or give a planner `pools`")
    for role, name in named.items():
        if name not in there:
            draft.problem(("pools", role), "there is no such pool", name, f"use {' or '.join(there)}")
        elif (pool := pools[there[name]]).role != role:
            draft.problem(("pools", role), f"must be a pool with role: {role}", name, f"its role is {pool.role}")
        elif pool.autoscaler is not None:
            place = draft.root.below("cluster", "pools", there[name])
            place.problem(("autoscaler",), "cluster.autoscaler scales this pool, too", None, "leave one of the two out")
    if not draft.touched():
        scaled = pools if is_own else [pools[there[name]] for name in named.values()]
        try:
            policy.check_pools([pool.role for pool in scaled], [pool.parallel.n_gpus for pool in scaled])
        except ValueError as error:
            draft.problem((), str(error))
    return spec


def _of_roles(draft: Draft, cluster: ClusterSection, pools: Sequence[Pool], defaults: Defaults) -> dict[str, object]:
    """Return the cluster's updated keys for pools with roles: link, decode router and splitter."""
    roles = [pool.role for pool in pools]
    if not cluster.has_roles:
        for key in DISAGGREGATED_ONLY[cluster.moves_kv :]:
            if getattr(cluster, key) is not None:
                draft.problem((key,), "is for pools with role prefill and decode", None, "leave it out")
        for index, pool in enumerate(pools if cluster.moves_kv else ()):
            check_role(draft.below("pools", index, "scheduler"), pool.scheduler, "with_kv")
        if cluster.moves_kv and cluster.rollout is not None:
            check_role(draft.below("rollout", "to", "scheduler"), cluster.rollout.to.scheduler, "with_kv")
        return {}
    _check_roles(draft, cluster, roles)
    for index, pool in enumerate(pools):
        if pool.role != "both":
            check_role(draft.below("pools", index, "scheduler"), pool.scheduler, pool.role)
    _check_models(draft, [pool.model or defaults.model for pool in pools])
    _check_local_decode(draft, cluster, pools)
    splitter = {"kind": "always"} if cluster.disaggregate is None else cluster.disaggregate
    return {
        "kv_link": _link(draft.below("kv_link"), cluster.kv_link, pools, defaults),
        "decode_router": _decode_router(draft.below("decode_router"), cluster),
        "disaggregate": draft.below("disaggregate").spelled_out("splitters", splitter),
    }


def _check_roles(draft: Draft, cluster: ClusterSection, roles: Sequence[str]) -> None:
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            remedy = f"add one with role: {other}, or use role: both"
            draft.problem(("pools", roles.index(role), "role"), f"a {role} pool needs a {other} pool", role, remedy)
            return
    spec = cluster.disaggregate
    if "both" in roles and (spec is None or spec.get("kind") == "always"):
        rule = "a role: both pool needs requests that are not disaggregated, and all are"
        remedy = "set cluster.disaggregate: {kind: prompt_length, min_prompt_tokens: 1000}, or leave the pool out"
        draft.problem(("pools", roles.index("both"), "role"), rule, "both", remedy)


def _check_local_decode(draft: Draft, cluster: ClusterSection, pools: Sequence[Pool]) -> None:
    """Check pools against a splitter that lets prefill replicas decode some requests."""
    splitter = None if cluster.disaggregate is None else plugins.check("splitters", cluster.disaggregate)[0]
    if cluster.disaggregate is None or not isinstance(splitter, Splitter) or not splitter.keeps:
        return
    kind = cluster.disaggregate["kind"]
    for pool in pools:
        if pool.role == "both":
            rule = "never sends requests to a role: both pool"
            remedy = f"leave pool {pool.name} out, or use {{kind: load, max_outstanding: 4}}"
            draft.problem(("disaggregate", "kind"), rule, kind, remedy)


def _check_models(draft: Draft, models: Sequence[str]) -> None:
    for index, model in enumerate(models):
        if model != models[0]:
            rule = "prefill and decode pools must run the same model, as the KV cache of one serves the other"
            draft.problem(("pools", index, "model"), rule, model, f"use {models[0]}")
            return


def _link(draft: Draft, given: KvLink | None, pools: Sequence[Pool], defaults: Defaults) -> KvLink | None:
    """Return the link as given, else the network adapters of a replica's GPUs on the slower side."""
    if given is not None:
        if given.transfer != "whole" and given.how == "pull" and not draft.touched("how", "transfer"):
            rule = "a pull transfers the whole KV cache of a prompt after its prefill"
            draft.problem(("transfer",), rule, given.transfer, "add how: push, or use transfer: whole")
        return given
    pools = [pool for pool in pools if pool.role != "both"]
    try:
        cards = [load_gpu(draft.absolute_gpu(pool.gpu or defaults.gpu)) for pool in pools]
    except CatalogError:  # already reported
        return None
    splits = [pool.parallel.tensor * pool.parallel.pipeline for pool in pools]
    speeds = [n * card.nic_bytes_per_s for n, card in zip(splits, cards, strict=True)]
    for key in ("bytes_per_s", "latency_s"):
        draft.set_origin((key,), "network adapters of the GPUs")
    return KvLink(bytes_per_s=min(speeds), latency_s=NIC_LATENCY_S)


def _decode_router(draft: Draft, cluster: ClusterSection) -> dict[str, object] | None:
    """Return the decode router as given, else a copy of the router for arrivals."""
    if cluster.decode_router is not None:
        return draft.spelled_out("routers", cluster.decode_router)
    copy = dict(cluster.router)
    for key in copy:
        draft.set_origin((key,), "cluster.router")
    router, _ = plugins.check("routers", copy)
    return copy if router is None else {"kind": copy["kind"], **plugins.spelled_out(router)}
