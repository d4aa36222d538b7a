"""Resolving prefill and decode pools: that there are both, that they go together, and the link between them."""

from collections.abc import Sequence

from simserve import catalog, plugins
from simserve.cost.comm import NIC_LATENCY_S
from simserve.errors import CatalogError
from simserve.plugins.flaws import Path
from simserve.scenario.draft import Draft
from simserve.scenario.models import Cluster, KvLink, Pool
from simserve.schedulers.base import Scheduler

LINK: Path = ("cluster", "kv_link")


def resolve_disaggregation(draft: Draft, pools: Sequence[Pool]) -> dict[str, object]:
    """What changes of the cluster: its link and the router of decode pools, where pools have roles."""
    cluster = draft.scenario.cluster
    roles = [pool.role for pool in pools]
    if set(roles) == {"both"}:
        for key, given in (("kv_link", cluster.kv_link), ("decode_router", cluster.decode_router)):
            if given is not None:
                draft.flaw(("cluster", key), "is for pools with role prefill and decode", None, "leave it out")
        return {}
    _check_roles(draft, roles)
    for index, pool in enumerate(pools):
        if pool.role != "both":
            _check_scheduler(draft, index, pool)
    _check_models(draft, pools)
    return {"kv_link": _link(draft, cluster, pools), "decode_router": _decode_router(draft, cluster)}


def _check_roles(draft: Draft, roles: Sequence[str]) -> None:
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            remedy = f"add one with role: {other}, or use role: both"
            draft.flaw(_at(roles.index(role), "role"), f"a {role} pool needs a {other} pool", role, remedy)
            return
    if "both" in roles:
        rule = "pools of role both beside prefill and decode pools are not there yet"
        draft.flaw(_at(roles.index("both"), "role"), rule, "both", "make it prefill or decode, or make all both")


def _check_scheduler(draft: Draft, index: int, pool: Pool) -> None:
    """Prompts and answers of one request are at different replicas, so no policy can hold both as one."""
    at = _at(index, "scheduler")
    if pool.scheduler is None or draft.mistakes.touch(at):
        return
    policy, flaws = plugins.check("schedulers", pool.scheduler)
    if flaws or not isinstance(policy, Scheduler):
        return
    kind = pool.scheduler["kind"]
    if policy.orders and pool.role == "decode":
        rule = "a decode pool takes requests in as their prompts are computed, whoever sent them"
        draft.flaw((*at, "kind"), rule, kind, "use chunked with policy: fcfs there, and an order in the prefill pool")
    if policy.runs_to_completion:
        rule = f"a {pool.role} pool takes requests in and lets them go one at a time, and {kind} runs whole batches"
        draft.flaw((*at, "kind"), rule, kind, "use chunked, prefill_first or sglang")
    elif policy.reserves:
        rule = f"a {pool.role} pool holds a prompt or an answer, and this policy sets blocks aside for both"
        trtllm = "use scheduler: {kind: trtllm, capacity_scheduler_policy: max_utilization}"
        remedy = trtllm if kind == "trtllm" else "use chunked or sglang"
        draft.flaw((*at, "kind"), rule, kind, remedy)


def _check_models(draft: Draft, pools: Sequence[Pool]) -> None:
    models = [pool.model or draft.scenario.model for pool in pools]
    for index, model in enumerate(models):
        if model != models[0]:
            rule = "prefill and decode pools must run one model, for one computes the keys and values of the other"
            draft.flaw(_at(index, "model"), rule, model, f"use {models[0]}")
            return


def _link(draft: Draft, cluster: Cluster, pools: Sequence[Pool]) -> KvLink | None:
    """As given, else the network adapters of a replica's GPUs, those of the slower side."""
    if cluster.kv_link is not None:
        return cluster.kv_link
    try:
        cards = [catalog.load_gpu(pool.gpu or draft.scenario.gpu) for pool in pools]
    except CatalogError:  # said already
        return None
    speeds = [pool.parallel.tensor * card.nic_bytes_per_s for pool, card in zip(pools, cards, strict=True)]
    for key in ("bytes_per_s", "latency_s"):
        draft.origins[*LINK, key] = "network adapters of the GPUs"
    return KvLink(bytes_per_s=min(speeds), latency_s=NIC_LATENCY_S)


def _decode_router(draft: Draft, cluster: Cluster) -> dict[str, object] | None:
    """As given, else the same as for arrivals."""
    at = ("cluster", "decode_router")
    spec = cluster.decode_router
    if spec is None:
        spec = dict(cluster.router)
        for key in spec:
            draft.origins[*at, key] = "cluster.router"
    router, flaws = plugins.check("routers", spec)
    if cluster.decode_router is not None:
        draft.mistakes.extend(flaws, at)
    return spec if router is None else {"kind": spec["kind"], **plugins.spelled_out(router)}


def _at(index: int, key: str) -> Path:
    return ("cluster", "pools", index, key)
