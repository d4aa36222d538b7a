"""Requests that leave a replica with their keys and values, worked out by hand: prompts of 1 ms a token, an answer of
1 ms a token, and half a millisecond on the link for a token."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve import simulate
from simserve.engine.cluster import Cluster
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Patience
from simserve.engine.recorder import FAILED, TIMED_OUT
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import assert_agreement, run_both
from tests.conservation import wasted_tokens
from tests.doubles import MS, LineCost, instants, replica_setup, trace
from tests.engine.test_migration import column, token_ms
from tests.engine.test_scaling import FAST, scenario, steps
from tests.oracle_fleet import Change

ALONE = replica_setup(Chunked(max_num_batched_tokens=100, max_num_seqs=4), LineCost(token=MS), block_size=1)
ONE = trace([0.0], [5], [5])
CUT = Change(6 * MS + MS // 2, "move", 0, with_kv=True)
LINK = LinkSpec(0.5e-3, 0)
KV_BYTES = 32 * 2 * 8 * 128 * 2
"""[bytes] Keys and values of a token in all layers of Llama-3.1-8B."""
SPOT = {"what": "spot", "at_s": 10, "notice_s": 0.4, "member": 1}


def serve(setups: list[ReplicaSetup], load: Trace, *changes: Change, **more: Any) -> Cluster:
    """Serve a load, compare it with the oracle, and return the cluster."""
    cluster, truth = run_both(setups, RoundRobin, load, None, changes=changes, **{"link": LINK} | more)
    assert_agreement([each.setup for each in cluster.members], cluster, truth)
    return cluster


def gone_ms(cluster: Cluster, member: int = 0) -> float | None:
    gone_ps = cluster.members[member].gone_ps
    return None if gone_ps is None else gone_ps / MS


def test_it_decodes_on_once_its_keys_and_values_have_crossed() -> None:
    """The prompt of 5 is computed at 5 ms, a token follows at 6, and the replica is cut at 6.5. The keys and values of
    6 tokens are on the link for 3 ms, and tokens follow at 10.5, 11.5 and 12.5."""
    cluster = serve([ALONE, ALONE], ONE, CUT)
    assert token_ms(cluster) == [5, 6, 10.5, 11.5, 12.5]
    assert (instants(cluster, "first_token_ps"), instants(cluster, "preempted_ps")) == ([5], [3])
    assert (column(cluster, "n_failures"), column(cluster, "n_migrations")) == ([1], [1])
    assert column(cluster, "n_recomputed_tokens") == [0]
    assert gone_ms(cluster) == 9.5


def test_it_waits_for_a_slot_before_the_transfer_begins() -> None:
    """The other replica decodes a request of its own until 10 ms; the transfer lasts until 13."""
    single = replace(ALONE, scheduler=Chunked(max_num_batched_tokens=100, max_num_seqs=1))
    cluster = serve([single, single], trace([0.0, 0.0], [5, 5], [5, 6]), CUT)
    assert token_ms(cluster) == [5, 6, 14, 15, 16]
    assert token_ms(cluster, 1) == [5, 6, 7, 8, 9, 10]
    assert gone_ms(cluster) == 13


def test_what_the_new_replica_has_of_the_prompt_does_not_cross() -> None:
    """Of the 6 tokens stored at 18.5 ms, 5 are in the prefix cache of the other replica: one crosses in 0.5 ms."""
    cached = replace(ALONE, caches_prefixes=True)
    both = Prefixes.from_ids(1, np.tile(np.arange(1, 6), 2), np.array([0, 5, 10]))
    load = replace(trace([0.0, 0.012], [5, 5], [1, 4]), prefixes=both)
    cluster = serve([cached, cached], load, Change(18 * MS + MS // 2, "move", 1, with_kv=True))
    assert token_ms(cluster, 1) == [17, 18, 20, 21]
    assert (column(cluster, "cached_tokens"), column(cluster, "n_recomputed_tokens")) == ([0, 0], [0, 0])


@pytest.mark.parametrize("which", [1, 0], ids=["old", "new"])
def test_a_transfer_that_loses_a_side_falls_back_to_the_prompt(which: int) -> None:
    """At 8 ms one side dies; elsewhere the prompt and the 2 tokens sent take until 15, which is the third token."""
    cluster = serve([ALONE] * (3 - which), ONE, CUT, Change(8 * MS, "move", which))
    assert token_ms(cluster) == [5, 6, 15, 16, 17]
    assert (column(cluster, "n_migrations"), column(cluster, "n_recomputed_tokens")) == ([2], [6])
    assert gone_ms(cluster) == 8


@pytest.mark.parametrize("new", [[replace(ALONE, has_common_kv=False)], []], ids=["other model", "none ready"])
def test_where_no_replica_can_use_them_it_recomputes(new: list[ReplicaSetup]) -> None:
    """The 7 tokens take from 6.5 ms, or from 10 when a replica is ready, until the third token."""
    cluster = serve([ALONE, *new], ONE, CUT, Change(10 * MS, "join", 0))
    first_ms = 6.5 if new else 10
    assert token_ms(cluster) == [5, 6, first_ms + 7, first_ms + 8, first_ms + 9]
    assert (column(cluster, "n_migrations"), column(cluster, "n_recomputed_tokens")) == ([1], [6])
    assert gone_ms(cluster) == 6.5


def test_it_fails_where_the_longer_prompt_has_no_room() -> None:
    cluster = serve([ALONE, replace(ALONE, max_model_len=7)], ONE, CUT)
    assert (column(cluster, "status"), instants(cluster, "first_token_ps")) == ([FAILED], [5])
    assert wasted_tokens(cluster) == {0: 6}


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_decode_replica_sends_to_another_one(is_pushed: bool) -> None:
    """The prompt of 5 is there at 5 + 2.5 ms, and tokens follow at 8.5 and 9.5. After the cut at 9.75 the 7 tokens
    stored are 3.5 ms on the link."""
    roles: list[ReplicaSetup] = [replace(ALONE, role="prefill"), *[replace(ALONE, role="decode")] * 2]
    cut = Change(9 * MS + 3 * MS // 4, "move", 1, with_kv=True)
    cluster = serve(roles, ONE, cut, is_pushed=is_pushed)
    assert token_ms(cluster) == pytest.approx([5, 8.5, 9.5, 14.25, 15.25], abs=1e-5)
    assert (instants(cluster, "transfer_ps"), column(cluster, "n_migrations")) == ([2.5], [1])
    assert (column(cluster, "prefill_replica"), column(cluster, "replica")) == ([0], [1])


def test_a_client_gives_up_while_they_cross() -> None:
    """Its patience ends at 9 ms; the old replica is gone when the transfer ends, at 9.5."""
    cluster = serve([ALONE, ALONE], ONE, CUT, patience=Patience(7 * MS, 9 * MS))
    assert (column(cluster, "status"), instants(cluster, "first_token_ps")) == ([TIMED_OUT], [5])
    assert gone_ms(cluster) == 9.5


def test_it_goes_on_twice() -> None:
    """Of the new replica it leaves again at 11 ms with 7 tokens stored, 3.5 ms on the link."""
    cluster = serve([ALONE] * 3, ONE, CUT, Change(11 * MS, "move", 0, with_kv=True))
    assert token_ms(cluster) == [5, 6, 10.5, 15.5, 16.5]
    assert (column(cluster, "n_migrations"), instants(cluster, "preempted_ps")) == ([2], [3 + 3.5])


@pytest.mark.parametrize(
    ("shutdown", "failures", "why", "begin_s", "end_s"),
    [
        ({"grace_s": 0.3}, [], "its grace ended", 0.3, None),
        ({"timeout_s": 0.3, "grace_s": 0.5}, [], "its server timed out; its grace ended", 0.3, 0.5),
        ({"drain": False, "grace_s": 0.2}, [], "it does not drain; its grace ended", 0.0, 0.2),
        ({"timeout_s": 0.3}, [SPOT], "its server timed out; its node is gone", 0.3, 0.4),
    ],
)
def test_a_replica_stays_until_the_last_has_crossed_unless_it_dies(
    shutdown: dict[str, Any], failures: list[dict[str, Any]], why: str, begin_s: float, end_s: float | None
) -> None:
    """About 8 requests of 26 MB or more take a fifth of a second at 1 GB/s. What has not crossed by the end is computed
    again."""
    pool: dict[str, Any] = {"replicas": 2, "shutdown": shutdown, "startup": FAST}
    pool |= {} if failures else {"autoscaler": steps((10, 1))}
    how: dict[str, Any] = {"on_failure": {"migrate": "with_kv", "clients": "retry"}, "kv_link": {"bytes_per_s": 1e9}}
    results = simulate(scenario(pool, 30.0, 600, failures=failures, placement={"gpus_per_node": 1}, **how))
    table = results.members
    (old,) = table.index[table["why"].str.endswith(why)]
    left_s = float(table["gone_s"][old] - table["draining_s"][old])
    moved = results.requests[results.requests["n_migrations"] > 0]
    assert results.requests["status"].eq("finished").all() and len(moved) > 5
    if end_s is None:
        assert left_s > begin_s + 0.1
        assert moved["n_migrations"].eq(1).all() and moved["recompute_s"].eq(0).all()
        own = results.spans[results.spans["replica"] == old]
        own = own[own["request_id"].isin(moved.index)]
        n_stored = (200 + own["last_step"] - own["first_step"] + 1).sum()
        boundary_s = left_s - begin_s - n_stored * KV_BYTES / 1e9
        assert 0 <= boundary_s < 0.01  # the first begins with a step of the other replica
    else:
        assert left_s == pytest.approx(end_s)
        assert {*moved["n_migrations"]} == {1, 2}
        assert (moved["recompute_s"].gt(0) == moved["n_migrations"].eq(2)).all()
