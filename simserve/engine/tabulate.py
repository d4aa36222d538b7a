"""Tabulate: what the recorder stored, as tables in seconds."""

import numpy as np
from numpy.typing import NDArray

from simserve.engine.cluster import Cluster
from simserve.engine.interference import interference_ps
from simserve.engine.recorder import BLOCKED_BY, NEVER, STATUS
from simserve.engine.session_sender import SessionSender
from simserve.tables.columns import Categorical, Columns
from simserve.tables.facts import MemberFacts
from simserve.tables.run_tables import ExtraColumns, RunTables
from simserve.units import PS_PER_S, array_to_s, to_s

GIVEN = ("request_id", "session_id", "turn", "priority", "slo_class", "tenant", "max_tokens")
"""Columns of the load that the tables pass through, null if the load lacks them."""


def tabulate(cluster: Cluster, replica_pool: NDArray[np.int32], pool_names: tuple[str, ...]) -> RunTables:
    """Return the tables of a finished run, requests in the order of sending; unsent rows are left out.

    replica_pool: `(n_replicas,)`, the pool of each replica.
    """
    sent = cluster.sender.rows_sent
    replica = cluster.recorder.columns["replica"][sent].astype(np.int32)
    pool = np.where(replica == NEVER, NEVER, replica_pool[replica]).astype(np.int32)
    requests = _requests(cluster, sent) | {
        "replica": replica,
        "prefill_replica": cluster.recorder.columns["prefill_replica"][sent].astype(np.int32),
        "pool": Categorical(pool, pool_names),
        **attempt_columns(cluster),
    }
    return RunTables(requests, _steps(cluster), _spans(cluster), _extra(cluster, sent))


def _requests(cluster: Cluster, sent: slice | NDArray[np.int64]) -> Columns:
    sender = cluster.sender
    recorded, rows, respond_ps = cluster.recorder.columns, cluster.rows, cluster.front_end.respond_ps
    given = {name: rows.given(name, sent) for name in GIVEN}
    if given["request_id"] is None:
        given["request_id"] = _numbers(cluster)
    if given["priority"] is None:
        given["priority"] = np.zeros(cluster.sender.n_sent, np.int32)
    return given | {
        "arrival_s": array_to_s(rows.arrivals[sent]),
        "prompt_tokens": rows.prompts[sent],
        "output_tokens": rows.outputs[sent],
        "max_tokens": None if given["max_tokens"] is None else rows.most[sent],
        "status": Categorical(recorded["status"][sent].astype(np.int32), STATUS),
        "status_reason": Categorical(recorded["status_reason"][sent].astype(np.int32), tuple(cluster.recorder.reasons)),
        "scheduled_s": _instants(recorded["scheduled_ps"][sent]),
        "first_token_s": _instants(recorded["first_token_ps"][sent], respond_ps),
        "finish_s": _instants(recorded["finish_ps"][sent], respond_ps),
        "preempted_s": array_to_s(recorded["preempted_ps"][sent]),
        "transfer_s": array_to_s(recorded["transfer_ps"][sent]),
        "transfer_wait_s": array_to_s(recorded["transfer_wait_ps"][sent]),
        "n_preemptions": recorded["n_preemptions"][sent].astype(np.int32),
        "n_recomputed_tokens": recorded["n_recomputed_tokens"][sent],
        "cached_tokens": recorded["cached_tokens"][sent],
        "n_swaps": recorded["n_swaps"][sent].astype(np.int32),
        "host_cached_tokens": recorded["host_cached_tokens"][sent],
        "disk_cached_tokens": recorded["disk_cached_tokens"][sent],
        "decode_cached_tokens": recorded["decode_cached_tokens"][sent],
        "session_requests": sender.session_requests if isinstance(sender, SessionSender) else None,
    }


def member_facts(cluster: Cluster) -> tuple[MemberFacts, ...]:
    """Return when each rank was in the fleet."""

    def instant_s(at_ps: int | None) -> float | None:
        return None if at_ps is None else to_s(at_ps)

    lives = (
        MemberFacts(
            to_s(each.ordered_ps),
            instant_s(each.ready_ps),
            instant_s(each.draining_ps),
            instant_s(each.gone_ps),
            each.why,
            None if rank.stepping.first_lane == rank.id else rank.stepping.first_lane,
        )
        for each in cluster.members
        for rank in each.ranks
    )
    return tuple(lives)


def attempt_columns(cluster: Cluster) -> Columns:
    """Return columns, in the order of sending: attempt number, first send time, give-up time, and tokens computed in
    vain."""
    sender, arrivals = cluster.sender, cluster.rows.arrivals
    sent = sender.rows_sent
    columns: Columns = {
        "attempt": np.ones(sender.n_sent, np.int32),
        "first_sent_s": array_to_s(arrivals[cluster.rows.originals(sent)]),
        "gave_up_s": np.full(sender.n_sent, np.nan),
        "wasted_tokens": np.zeros(sender.n_sent, np.int64),
    }
    deadlines = None
    if isinstance(sender, SessionSender):
        columns["attempt"] = sender.attempts
        deadlines = sender.deadlines
    gave_up_ps, wasted_tokens = cluster.failures()
    if deadlines is not None:
        gave_up_ps |= deadlines.gave_up_ps
        wasted_tokens |= deadlines.wasted_tokens()
    place = _places(cluster) if gave_up_ps else np.empty(0, np.int64)
    for row, at_ps in gave_up_ps.items():
        columns["gave_up_s"][place[row]] = at_ps / PS_PER_S
    for row, n_tokens in wasted_tokens.items():
        columns["wasted_tokens"][place[row]] = n_tokens
    return columns


def _numbers(cluster: Cluster) -> NDArray[np.int64]:
    """Return ids for requests without one: their index in the order of sending; retries share the id of the first
    attempt."""
    sender = cluster.sender
    if isinstance(sender, SessionSender) and sender.has_attempts:
        return np.arange(len(cluster.rows))[cluster.rows.originals(sender.rows_sent)]
    return np.arange(sender.n_sent)


def _instants(ps: NDArray[np.int64], later_ps: int = 0) -> NDArray[np.float64]:
    seconds = array_to_s(ps + later_ps)
    seconds[ps == NEVER] = np.nan
    return seconds


def _steps(cluster: Cluster) -> Columns:
    per_replica = [cluster.recorder.step_runs(replica.id) for replica in cluster.replicas]
    lengths = list(map(len, per_replica))
    rows = _columns(per_replica)
    n_steps, first_ps, growth_ps = rows["n_steps"].astype(np.int64), rows["first_ps"], rows["growth_ps"]
    end_ps = rows["start_ps"] + n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
    lasts_ps, copies_ps = end_ps - rows["start_ps"], _copies(cluster, lengths)
    counters = ("prefill_tokens", "prefill_pairs", "decode_requests", "kv_tokens", "kv_blocks_used")
    return {
        "replica": np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        "step": _before(n_steps, lengths),
        "decode_step": _before(np.where(rows["decode_requests"] > 0, n_steps, 0), lengths),
        "n_steps": n_steps,
        "start_s": array_to_s(rows["start_ps"]),
        "end_s": array_to_s(end_ps),
        "first_step_s": array_to_s(first_ps),
        "last_step_s": array_to_s(first_ps + growth_ps * (n_steps - 1)),
        **{name: rows[name] for name in (*counters, "kv_blocks_reserved", "queue_len")},
        "blocked_by": _blocked_by(rows["blocked_by"]),
        "accepted_tokens": rows["accepted_tokens"],
        "interference_s": array_to_s(interference_ps(cluster.replicas, per_replica, lasts_ps - copies_ps)),
        "copy_s": array_to_s(copies_ps),
    }


def _blocked_by(codes: NDArray[np.int64]) -> Categorical:
    return Categorical(codes.astype(np.int32), tuple(name or "" for name in BLOCKED_BY))


def _copies(cluster: Cluster, lengths: list[int]) -> NDArray[np.int64]:
    """Return the time each row waited for copies."""
    waits_ps = np.zeros(sum(lengths), np.int64)
    for index, (first, n_rows) in enumerate(zip(np.cumsum(lengths) - lengths, lengths, strict=True)):
        copies = cluster.recorder.copies(index)
        copies = copies[copies["row"] < n_rows]  # the run may have ended before that step
        waits_ps[first + copies["row"]] = copies["wait_ps"]
    return waits_ps


def _columns(per_replica: list[NDArray[np.void]]) -> Columns:
    """Concatenate each field of packed rows, replica after replica."""
    return {name: np.concatenate([rows[name] for rows in per_replica]) for name in per_replica[0].dtype.names or ()}


def _before(counts: NDArray[np.int64], lengths: list[int]) -> NDArray[np.int64]:
    """Return the count before each row, from each replica's first row."""
    before = np.cumsum(counts) - counts
    starts = np.cumsum([0, *lengths])[:-1]
    offsets = [int(before[start]) if length else 0 for start, length in zip(starts, lengths, strict=True)]
    since: NDArray[np.int64] = before - np.repeat(offsets, lengths)
    return since


def _spans(cluster: Cluster) -> Columns:
    per_replica = [cluster.recorder.spans(replica.id) for replica in cluster.replicas]
    rows = _columns(per_replica)
    return {
        "request_id": _places(cluster)[rows["request_id"]],
        "replica": np.repeat(np.arange(len(per_replica), dtype=np.int32), list(map(len, per_replica))),
        "first_step": rows["first_step"],
        "last_step": rows["last_step"],
        "join_s": array_to_s(rows["join_ps"]),
    }


def _extra(cluster: Cluster, sent: slice | NDArray[np.int64]) -> ExtraColumns:
    recorder = cluster.recorder
    routed_ps, arrival_ps = recorder.columns["routed_ps"][sent], cluster.rows.arrivals[sent]
    stalls = [recorder.stalls(replica.id) for replica in cluster.replicas]
    pauses, stalled = recorder.pauses(), _columns(stalls)
    return ExtraColumns(
        routed_s=array_to_s(np.where(routed_ps == NEVER, arrival_ps, routed_ps)),
        notice_s=array_to_s(recorder.columns["notice_ps"][sent]),
        chunks_s=array_to_s(recorder.columns["chunks_ps"][sent]),
        pauses={
            "request_id": _places(cluster)[pauses["request_id"]],
            "left_s": array_to_s(pauses["left_ps"]),
            "back_s": array_to_s(pauses["back_ps"]),
            "is_swapped": pauses["is_swapped"] > 0,
        },
        stalls={
            "replica": np.repeat(np.arange(len(stalls), dtype=np.int32), list(map(len, stalls))),
            "at_s": array_to_s(stalled["at_ps"]),
            "blocked_by": _blocked_by(stalled["blocked_by"]),
        },
    )


def _places(cluster: Cluster) -> NDArray[np.int64]:
    """Return the index of each row in the order of sending."""
    place = np.empty(cluster.rows.capacity, np.int64)
    place[cluster.sender.rows_sent] = np.arange(cluster.sender.n_sent)
    return place
