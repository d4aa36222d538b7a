"""Sharding: whether the replicas of a scenario can influence each other."""

from typing import Any

from simserve import plugins
from simserve.scenario.scenario import Scenario


def why_one_process(scenario: Scenario) -> str | None:
    """Return why one process must serve all replicas; None: processes of their own give the same tables."""
    cluster, workload = scenario.cluster, scenario.workload
    if sum(setup.n_replicas * setup.data // setup.n_sharing for setup in scenario.setups) < 2:
        return "there is only one replica"
    if cluster.kv_link is not None:
        return "prefill replicas hand over to decode replicas"
    if scenario.build_router().sees_load:
        return f"the router {cluster.router['kind']} looks at loads or requests"
    if cluster.admission is not None:
        return f"the admission policy {cluster.admission['kind']} looks at all replicas"
    if _waits_for_answers(workload):
        return "clients send requests after answers"
    if workload.timeout is not None or workload.retries is not None:
        return "clients give up or retry"
    shared = [setup.name for setup in scenario.setups if setup.host_tier is not None and setup.host_tier.store]
    if shared:
        return f"the replicas of pool {shared[0]} share host memory"
    return None


def _waits_for_answers(workload: Any) -> bool:
    if workload.client is not None or (workload.trace is not None and workload.trace.next_turn == "after_answer"):
        return True
    if workload.prefixes is None:
        return False
    structure = plugins.build("workload.prefixes", workload.prefixes)
    return structure.makes_sessions and not structure.needs_arrivals
