"""Resolve the cluster: its pools, the routers and the admission policy before them, and what joins pools with roles."""

from collections.abc import Sequence

from simserve import plugins
from simserve.cost.comm import NIC_LATENCY_S
from simserve.errors import CatalogError
from simserve.plugins.validation import Path
from simserve.routers.base import Router
from simserve.scenario.cards import load_gpu
from simserve.scenario.draft import Draft
from simserve.scenario.pools import resolve_pool
from simserve.scenario.servers import ClusterSection, KvLink, Pool
from simserve.schedulers.base import Scheduler
from simserve.splitters.base import Splitter

LINK: Path = ("cluster", "kv_link")

DISAGGREGATED_ONLY = ("kv_link", "decode_router", "disaggregate")
"""Cluster keys that need pools with roles."""


def resolve_cluster(draft: Draft) -> ClusterSection:
    """Return the cluster with every default filled in, as far as it has no problems."""
    cluster = draft.scenario.cluster
    router = draft.spelled_out("routers", cluster.router, ("cluster", "router"))
    _check_names(draft)
    pools = tuple(resolve_pool(draft, index) for index in range(len(cluster.pools)))
    admission = cluster.admission
    if admission is not None:
        admission = draft.spelled_out("admission", admission, ("cluster", "admission"))
    update = {"router": router, "pools": pools, "admission": admission}
    return cluster.model_copy(update=update | _disaggregation(draft, pools))


def _check_names(draft: Draft) -> None:
    names = [pool.name for pool in draft.scenario.cluster.pools]
    for index, name in enumerate(names):
        if names.index(name) != index:
            draft.problem(("cluster", "pools", index, "name"), "must differ from other pools' names", name, "rename it")


def check_sessions(draft: Draft) -> None:
    """Report a router that needs sessions for a generated load without any; traces are checked when they are read."""
    cluster, workload = draft.scenario.cluster, draft.scenario.workload
    if workload.trace is not None or draft.problems.touch(("workload", "prefixes"), ("workload", "client")):
        return
    prefixes, _ = (None, []) if workload.prefixes is None else plugins.check("workload.prefixes", workload.prefixes)
    if getattr(prefixes, "makes_sessions", False):
        return
    for key in ("router", "decode_router"):
        at: Path = ("cluster", key)
        spec = getattr(cluster, key)
        if spec is None or draft.problems.touch(at):
            continue
        router, _ = plugins.check("routers", spec)
        if isinstance(router, Router) and router.needs_sessions:
            rule = "keeps the requests of a session together, and this workload has no sessions"
            remedy = "give workload.prefixes: {kind: conversations, ...} or agents, or a trace with a session_id"
            by_weight = spec.get("session")
            what, got = ("kind", spec["kind"]) if by_weight is None else ("session", by_weight)
            draft.problem((*at, what), rule, got, remedy)


def _disaggregation(draft: Draft, pools: Sequence[Pool]) -> dict[str, object]:
    """Return the cluster's updated keys for pools with roles: link, decode router and splitter."""
    cluster = draft.scenario.cluster
    roles = [pool.role for pool in pools]
    if set(roles) == {"both"}:
        for key in DISAGGREGATED_ONLY:
            if getattr(cluster, key) is not None:
                draft.problem(("cluster", key), "is for pools with role prefill and decode", None, "leave it out")
        return {}
    _check_roles(draft, roles)
    for index, pool in enumerate(pools):
        if pool.role != "both":
            _check_scheduler(draft, index, pool)
    _check_models(draft, pools)
    _check_local_decode(draft, pools)
    splitter = {"kind": "always"} if cluster.disaggregate is None else cluster.disaggregate
    return {
        "kv_link": _link(draft, cluster, pools),
        "decode_router": _decode_router(draft, cluster),
        "disaggregate": draft.spelled_out("splitters", splitter, ("cluster", "disaggregate")),
    }


def _check_roles(draft: Draft, roles: Sequence[str]) -> None:
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            remedy = f"add one with role: {other}, or use role: both"
            draft.problem(_at(roles.index(role), "role"), f"a {role} pool needs a {other} pool", role, remedy)
            return
    spec = draft.scenario.cluster.disaggregate
    if "both" in roles and (spec is None or spec.get("kind") == "always"):
        rule = "a role: both pool needs requests that are not disaggregated, and all are"
        remedy = "set cluster.disaggregate: {kind: prompt_length, min_prompt_tokens: 1000}, or leave the pool out"
        draft.problem(_at(roles.index("both"), "role"), rule, "both", remedy)


def _check_scheduler(draft: Draft, index: int, pool: Pool) -> None:
    """Check policies against roles: a request's prompt and answer live on different replicas."""
    at = _at(index, "scheduler")
    if pool.scheduler is None or draft.problems.touch(at):
        return
    policy, problems = plugins.check("schedulers", pool.scheduler)
    if problems or not isinstance(policy, Scheduler):
        return
    kind = pool.scheduler["kind"]
    if policy.runs_to_completion:
        rule = f"a {pool.role} pool exchanges requests one at a time, and {kind} runs whole batches"
        draft.problem((*at, "kind"), rule, kind, "use chunked, prefill_first or sglang")
    elif policy.reserves:
        rule = f"a {pool.role} pool holds a prompt or an answer, and this policy reserves blocks for both"
        trtllm = "use scheduler: {kind: trtllm, capacity_scheduler_policy: max_utilization}"
        remedy = trtllm if kind == "trtllm" else "use chunked or sglang"
        draft.problem((*at, "kind"), rule, kind, remedy)


def _check_local_decode(draft: Draft, pools: Sequence[Pool]) -> None:
    """Check pools against a splitter that lets prefill replicas decode some requests."""
    cluster, at = draft.scenario.cluster, ("cluster", "disaggregate", "kind")
    splitter = None if cluster.disaggregate is None else plugins.check("splitters", cluster.disaggregate)[0]
    if cluster.disaggregate is None or not isinstance(splitter, Splitter) or not splitter.keeps:
        return
    kind = cluster.disaggregate["kind"]
    for pool in pools:
        if pool.role == "both":
            rule = "never sends requests to a role: both pool"
            draft.problem(at, rule, kind, f"leave pool {pool.name} out, or use {{kind: load, max_outstanding: 4}}")


def _check_models(draft: Draft, pools: Sequence[Pool]) -> None:
    models = [pool.model or draft.scenario.model for pool in pools]
    for index, model in enumerate(models):
        if model != models[0]:
            rule = "prefill and decode pools must run the same model, as the KV cache of one serves the other"
            draft.problem(_at(index, "model"), rule, model, f"use {models[0]}")
            return


def _link(draft: Draft, cluster: ClusterSection, pools: Sequence[Pool]) -> KvLink | None:
    """Return the link as given, else the network adapters of a replica's GPUs on the slower side."""
    if cluster.kv_link is not None:
        _check_transfer(draft, cluster.kv_link)
        return cluster.kv_link
    pools = [pool for pool in pools if pool.role != "both"]
    try:
        cards = [load_gpu(draft.absolute_gpu(pool.gpu or draft.scenario.gpu)) for pool in pools]
    except CatalogError:  # already reported
        return None
    n_gpus = [pool.parallel.tensor * pool.parallel.pipeline for pool in pools]
    speeds = [n * card.nic_bytes_per_s for n, card in zip(n_gpus, cards, strict=True)]
    for key in ("bytes_per_s", "latency_s"):
        draft.origins[*LINK, key] = "network adapters of the GPUs"
    return KvLink(bytes_per_s=min(speeds), latency_s=NIC_LATENCY_S)


def _check_transfer(draft: Draft, link: KvLink) -> None:
    """Check that transfers by chunk or layer are pushed."""
    if link.transfer == "whole" or draft.problems.touch((*LINK, "how"), (*LINK, "transfer")):
        return
    if link.how == "pull":
        rule = "a pull transfers the whole KV cache of a prompt after its prefill"
        draft.problem((*LINK, "transfer"), rule, link.transfer, "add how: push, or use transfer: whole")


def _decode_router(draft: Draft, cluster: ClusterSection) -> dict[str, object] | None:
    """Return the decode router as given, else a copy of the router for arrivals."""
    at = ("cluster", "decode_router")
    if cluster.decode_router is not None:
        return draft.spelled_out("routers", cluster.decode_router, at)
    copy = dict(cluster.router)
    for key in copy:
        draft.origins[*at, key] = "cluster.router"
    router, _ = plugins.check("routers", copy)
    return copy if router is None else {"kind": copy["kind"], **plugins.spelled_out(router)}


def _at(index: int, key: str) -> Path:
    return ("cluster", "pools", index, key)
