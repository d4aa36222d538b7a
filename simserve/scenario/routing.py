"""Check routers against the load: session affinity needs sessions."""

from simserve import plugins
from simserve.plugins.validation import Path
from simserve.routers.base import Router
from simserve.scenario.draft import Draft

KEYS = ("router", "decode_router")


def check_sessions(draft: Draft) -> None:
    """Report a router that needs sessions for a generated load without any; traces are checked when they are read."""
    cluster, workload = draft.scenario.cluster, draft.scenario.workload
    if workload.trace is not None or draft.problems.touch(("workload", "prefixes"), ("workload", "client")):
        return
    prefixes, _ = (None, []) if workload.prefixes is None else plugins.check("workload.prefixes", workload.prefixes)
    if getattr(prefixes, "makes_sessions", False):
        return
    for key in KEYS:
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
