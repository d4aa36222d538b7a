"""Several mechanisms at once, end to end: tables of attempts, classes and sessions; a case worked by hand."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve import Results, Scenario, simulate
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered, Patience
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked, FairShares
from tests.doubles import MS, LineCost, instants, replica_setup, trace

LENGTHS = {
    "kind": "lognormal",
    "prompt_tokens": {"median": 600, "sigma": 0.6, "max": 3000},
    "output_tokens": {"median": 100, "sigma": 0.6, "max": 500},
}
MARKED: dict[str, Any] = {
    "arrivals": {"kind": "poisson", "rate_per_s": 40},
    "lengths": LENGTHS,
    "n_requests": 200,
    "classes": {"chat": {"share": 0.5, "priority": 0}, "jobs": {"share": 0.5, "priority": 5}},
    "tenants": {"large": 0.7, "small": 0.3},
}
IMPATIENT = {
    "timeout": {"ttft_s": 1.0, "e2e_s": 6},
    "retries": {"max_attempts": 3, "backoff_s": 0.3, "multiplier": 2, "max_backoff_s": 4},
}
STALE = {"router": "session_affinity", "views": {"refresh_s": 0.2}}


def run(workload: dict[str, Any], policy: str, **cluster: Any) -> Results:
    pool = {"replicas": 2, "scheduler": {"kind": "chunked", "policy": policy, "max_num_seqs": 12}}
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": MARKED | workload}
    slo = {"classes": {"chat": {"ttft_s": 0.5}, "jobs": {"e2e_s": 20}}}
    measure = {"replays": 0, "warmup_s": 0}
    return simulate(Scenario.from_dict(data | {"cluster": {"pools": [pool]} | cluster, "slo": slo, "measure": measure}))


def assert_classes_add_up(results: Results) -> None:
    """Check that all classes add up to the run, however requests ended."""
    total = Counter[str]()
    for result in results.summary["classes"].values():
        total.update({key: n for key, n in result["requests"].items() if key != "reasons"})
    assert dict(total) == {key: results.summary["requests"][key] for key in total}


@pytest.mark.parametrize("policy", ["priority", "vtc"])
def test_who_asks_again_is_of_the_same_session_class_and_tenant(policy: str) -> None:
    turns = {"kind": "conversations", "turns": 3, "think_s": 1.0, "next_turn": "after_arrival"}
    results = run(IMPATIENT | {"prefixes": turns}, policy, **STALE)
    rows = results.requests
    assert (rows["attempt"] > 1).sum() > 50
    same = ["priority", "tenant", "slo_class", "session_id", "turn", "prompt_tokens", "first_sent_s"]
    assert (rows.groupby("request_id")[same].nunique() == 1).all(axis=None)
    assert (rows.groupby("request_id")["attempt"].max() == rows.groupby("request_id").size()).all()
    assert (rows[rows["attempt"] > 1]["cached_tokens"] > 0).any()
    assert set(rows["status"]) == {"finished", "timed_out"}
    assert results.summary["retries"]["attempts"] == len(rows)
    assert_classes_add_up(results)


def test_who_is_not_admitted_is_counted_in_its_class() -> None:
    results = run(IMPATIENT, "vtc", admission={"kind": "queue_length", "max_outstanding": 32})
    assert sum(result["requests"]["rejected"] for result in results.summary["classes"].values()) > 20
    assert_classes_add_up(results)


def test_sessions_go_on_after_answers_whatever_the_order() -> None:
    turns = {"kind": "conversations", "turns": 3, "think_s": 1.0, "next_turn": "after_answer"}
    results = run({"prefixes": turns}, "priority", **STALE)
    result, rows = results.summary["sessions"], results.requests
    assert (rows["status"] == "finished").all()
    assert (result["finished"], result["refused"], result["cut"]) == (result["n"], 0, 0)
    waits_s = (
        rows.sort_values("turn").groupby("session_id").apply(lambda own: own["arrival_s"] - own["finish_s"].shift())
    )
    assert waits_s.dropna().min() >= 1 - 1e-9
    assert_classes_add_up(results)


def test_a_prompt_given_up_half_done_costs_its_tenant_no_token_out() -> None:
    # The long prompt times out at 95 and leaves at 100. No request has had a token, so the first arrival is first.
    fair = Chunked(1, 1, policy="vtc", vtc=FairShares(input_weight=0.0, output_weight=1.0))
    load = trace([0.0, 0.08, 0.081], [100, 1, 1], [1, 1, 1])
    load = replace(load, tenant=np.array(["a", "a", "b"]))
    setup = replica_setup(fair, LineCost(step=10 * MS), n_blocks=1000, block_size=1)
    cluster = Cluster([setup], RoundRobin(), Offered(load, patience=Patience(ttft_ps=95 * MS)), 0)
    run_cluster(cluster)
    assert instants(cluster, "scheduled_ps") == [0, 100, 110]
