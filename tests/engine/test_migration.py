"""Requests that go on elsewhere after they lost their replica, worked out by hand: prompts of 1 ms a token, and an
answer of 1 ms a token."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.engine.cluster import Cluster
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Patience
from simserve.engine.recorder import FAILED, FINISHED, TIMED_OUT
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import assert_agreement, run_both, token_times
from tests.conservation import assert_tokens_are_conserved, wasted_tokens
from tests.doubles import MS, LineCost, instants, replica_setup, trace
from tests.oracle_fleet import Change, Kind

ALONE = replica_setup(Chunked(max_num_batched_tokens=100, max_num_seqs=4), LineCost(token=MS), block_size=1)
KINDS: list[tuple[Kind, list[int]]] = [
    ("move", [FINISHED, FAILED]),
    ("resend", [FAILED, FINISHED]),
    ("rescue", [FINISHED, FINISHED]),
]
JUST_LATER = Change(6 * MS + MS // 2, "move", 0)
ONE = trace([0.0], [5], [4])


def serve(setups: list[ReplicaSetup], load: Trace, *changes: Change, **more: Any) -> Cluster:
    """Serve a load, compare it with the oracle, and return the cluster."""
    cluster, truth = run_both(setups, RoundRobin, load, None, changes=changes, **more)
    assert_agreement([each.setup for each in cluster.members], cluster, truth)
    return cluster


def column(cluster: Cluster, name: str) -> list[int]:
    values: list[int] = cluster.recorder.columns[name].tolist()
    return values


def token_ms(cluster: Cluster, row: int = 0) -> list[float]:
    """Return when the client of a row had its tokens."""
    return [at_ps / MS for at_ps in sorted(token_times(cluster)[row])]


def test_prompt_and_tokens_sent_so_far_are_the_new_prompt() -> None:
    """The prompt of 5 is computed at 5 ms and a token follows at 6; the replica is lost at 6.5. Elsewhere the 7 tokens
    take until 13.5, which is the third token."""
    cluster = serve([ALONE, ALONE], ONE, JUST_LATER)
    assert token_ms(cluster) == [5, 6, 13.5, 14.5]
    assert (instants(cluster, "first_token_ps"), instants(cluster, "finish_ps")) == ([5], [14.5])
    assert (column(cluster, "n_failures"), column(cluster, "n_migrations")) == ([1], [1])
    assert column(cluster, "n_recomputed_tokens") == [6]  # what was stored of the prompt and its first token
    assert wasted_tokens(cluster) == {0: 0}


def test_without_another_replica_it_waits_at_the_gateway_and_the_wait_is_a_pause() -> None:
    """A replica is ready at 10 ms: 3.5 ms after the loss."""
    cluster = serve([ALONE], ONE, JUST_LATER, Change(10 * MS, "join", 0))
    assert token_ms(cluster) == [5, 6, 17, 18]
    assert (instants(cluster, "preempted_ps"), instants(cluster, "scheduled_ps")) == ([3.5], [0])


def test_the_cache_of_the_new_replica_has_the_prompt() -> None:
    """Another request with the same prompt was there: 5 of the 7 tokens are found, and 2 take until 20.5."""
    cached = replace(ALONE, caches_prefixes=True)
    both = Prefixes.from_ids(1, np.tile(np.arange(1, 6), 2), np.array([0, 5, 10]))
    load = replace(trace([0.0, 0.012], [5, 5], [1, 4]), prefixes=both)
    lost = Change(18 * MS + MS // 2, "move", 1)
    cluster = serve([cached, cached], load, lost)
    assert token_ms(cluster, 1) == [17, 18, 20.5, 21.5]
    assert (column(cluster, "cached_tokens"), column(cluster, "n_recomputed_tokens")) == ([0, 0], [0, 6 - 5])


def test_it_is_lost_again_before_and_after_it_has_a_token_elsewhere() -> None:
    """Lost at 6.5, at 10 during its second prompt, and at 17.5 with 3 tokens: the prompt of 8 ends at 25.5."""
    again = (Change(10 * MS, "move", 0), Change(17 * MS + MS // 2, "move", 0))
    cluster = serve([ALONE] * 4, ONE, JUST_LATER, *again)
    assert token_ms(cluster) == [5, 6, 17, 25.5]
    assert column(cluster, "n_migrations") == [3]
    assert column(cluster, "n_recomputed_tokens") == [6 + 0 + 7]  # the step in flight at 10 was never computed


def test_what_has_no_token_is_sent_again_or_fails_and_what_was_sent_too_often_fails() -> None:
    """At 6.5 ms the second request has no token."""
    load = trace([0.0, 0.006], [5, 5], [4, 4])
    for kind, status in KINDS:
        cluster = serve([ALONE], load, Change(6 * MS + MS // 2, kind, 0), Change(8 * MS, "join", 0))
        assert column(cluster, "status") == status
        assert column(cluster, "n_failures") == [1, 1]
    cluster = serve([ALONE] * 3, ONE, JUST_LATER, Change(10 * MS, "move", 0, most_sends=2))
    assert (column(cluster, "status"), column(cluster, "n_migrations")) == ([FAILED], [1])
    assert wasted_tokens(cluster) == {0: 6}
    assert_tokens_are_conserved(cluster)


def test_it_fails_where_the_longer_prompt_has_no_room() -> None:
    small = replace(ALONE, max_model_len=7)
    cluster = serve([ALONE, small], ONE, JUST_LATER)
    assert (column(cluster, "status"), instants(cluster, "first_token_ps")) == ([FAILED], [5])
    assert wasted_tokens(cluster) == {0: 6}
    assert "no room" in cluster.recorder.reasons[-1]
    cut = serve([ALONE, replace(small, max_model_len=8)], ONE, JUST_LATER)
    assert token_ms(cut) == [5, 6, 13.5]  # one more token fits


def test_a_client_that_waits_for_the_rest_gives_up() -> None:
    """Nothing comes after 6 ms; at 9 its patience ends, at the gateway or during the longer prompt."""
    for setups in ([ALONE], [ALONE, ALONE]):
        cluster = serve(setups, ONE, JUST_LATER, Change(10 * MS, "join", 0), patience=Patience(7 * MS, 9 * MS))
        assert (column(cluster, "status"), instants(cluster, "first_token_ps")) == ([TIMED_OUT], [5])


@pytest.mark.parametrize("is_pushed", [False, True])
@pytest.mark.parametrize("which", [1, 0], ids=["decode", "prefill"])
def test_a_longer_prompt_goes_through_prefill_and_the_link_again(which: int, is_pushed: bool) -> None:
    """Of a decode replica: the prompt of 5 is there at 5 + 2.5 ms, and tokens follow at 8.5 and 9.5. After the loss at
    9.75 the 8 tokens take until 17.75, 4 on the link, and the last follows at 22.75. Lost with its prefill replica in
    transfer at 6 ms, the 6 tokens take until 12, and 3 on the link."""
    roles: list[ReplicaSetup] = [replace(ALONE, role="prefill"), replace(ALONE, role="decode")]
    load = trace([0.0], [5], [4 if which else 3])
    at_ps = (9 * MS + 3 * MS // 4) if which else 6 * MS
    how: dict[str, Any] = {"link": LinkSpec(0.5e-3, 0), "is_pushed": is_pushed}
    cluster = serve([*roles, roles[which]], load, Change(at_ps, "move", which), **how)
    expected = [5, 8.5, 9.5, 17.75, 22.75] if which else [5, 12, 16]
    assert token_ms(cluster) == pytest.approx(expected[: 4 if which else 3], abs=1e-5)
    assert column(cluster, "n_migrations") == [1]


@pytest.mark.parametrize("n_layers", [None, 1, 4], ids=["push", "by_chunk", "by_layer"])
def test_a_chunk_of_the_longer_prompt_that_loses_its_decode_replica_is_computed_anew(n_layers: int | None) -> None:
    in_chunks = replace(ALONE, scheduler=Chunked(max_num_batched_tokens=4, max_num_seqs=4))
    roles: list[ReplicaSetup] = [replace(in_chunks, role="prefill"), *[replace(ALONE, role="decode")] * 3]
    how: dict[str, Any] = {"link": LinkSpec(1e-9, 0, n_layers=n_layers), "is_pushed": True}
    changes = [Change(6 * MS + MS // 2, "move", 1), Change(8 * MS + MS // 2, "move", 1)]
    cluster = serve(roles, trace([0.0], [5], [4]), *changes, **how)
    assert column(cluster, "n_migrations") == [2]
    assert column(cluster, "n_recomputed_tokens") == [6 + 4]
