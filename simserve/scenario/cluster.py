"""Resolve the cluster: its pools, and the routers and admission policy before them."""

from simserve import plugins
from simserve.plugins.validation import Path
from simserve.routers.base import Router
from simserve.scenario.disaggregation import resolve_disaggregation
from simserve.scenario.draft import Draft
from simserve.scenario.pools import resolve_pool
from simserve.scenario.servers import ClusterSection


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
    return cluster.model_copy(update=update | resolve_disaggregation(draft, pools))


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
