"""Tabulate: what the recorder stored, as tables in seconds."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simserve.engine.cluster import Cluster
from simserve.engine.recorder import FAILED, NEVER, REJECTED, STATUS, TIMED_OUT
from simserve.engine.session_sender import SessionSender
from simserve.engine.step_table import blocked_by, replica_of_rows, step_table
from simserve.tables.columns import Categorical, Columns
from simserve.tables.facts import MemberFacts
from simserve.tables.pieces import column
from simserve.tables.run_tables import ExtraColumns, RunTables
from simserve.units import PS_PER_S, array_to_s, to_s
from simserve.workload.trace import MOST_TOKENS

GIVEN = ("request_id", "session_id", "turn", "priority", "slo_class", "tenant", "max_tokens")
"""Columns of the load that the tables pass through, null if the load lacks them."""

WITHOUT_ANSWER = (REJECTED, TIMED_OUT, FAILED)
"""Ends of requests for which all that was computed was in vain."""

DURATIONS = ("preempted", "transfer", "transfer_wait")
COUNTS = ("n_preemptions", "n_swaps", "n_failures", "n_migrations")
TOKENS = ("n_recomputed_tokens", "cached_tokens", "host_cached_tokens", "disk_cached_tokens", "decode_cached_tokens")


def tabulate(cluster: Cluster, replica_pool: NDArray[np.int32], pool_names: tuple[str, ...]) -> RunTables:
    """Return the tables of a finished run, requests in the order of sending; unsent rows are left out.

    replica_pool: `(n_replicas,)`, the pool of each replica.
    """
    sent = _Sent(cluster)
    replica = sent.recorded(cluster, "replica", np.int32)
    pool_of = np.append(replica_pool, np.int32(NEVER))  # NEVER takes the last
    pool = sent.column(lambda cells: pool_of[cells], cluster.recorder.columns["replica"])
    requests = _requests(cluster, sent) | {
        "replica": replica,
        "prefill_replica": sent.recorded(cluster, "prefill_replica", np.int32),
        "pool": Categorical(pool, pool_names),
        **attempt_columns(cluster),
    }
    return RunTables(requests, step_table(cluster), _spans(cluster, sent), _extra(cluster, sent))


class _Sent:
    """The rows sent, in the order of sending."""

    def __init__(self, cluster: Cluster) -> None:
        self.rows = cluster.sender.rows_sent
        self.n = cluster.sender.n_sent
        self.scratch = cluster.scratch
        self._n_rows = cluster.rows.capacity

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        place = self.scratch.empty(self._n_rows, np.int64)
        place[self.rows] = np.arange(self.n)
        return place

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of rows in the order of sending."""
        return np.array(rows) if isinstance(self.rows, slice) else self._place[rows]

    def of(self, piece: slice) -> slice | NDArray[np.int64]:
        """Return the rows of a piece of the table."""
        return piece if isinstance(self.rows, slice) else self.rows[piece]

    def column(self, convert: Callable[..., NDArray[Any]], *columns: NDArray[np.int64]) -> NDArray[Any]:
        """Return what a function makes of these rows of columns, `(n_requests,)`."""
        return self.scratch.built(self.n, lambda piece: convert(*(column[self.of(piece)] for column in columns)))

    def recorded(self, cluster: Cluster, name: str, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """Return a column of the recorder, `(n_requests,)`."""
        return self.column(lambda cells: cells.astype(dtype), cluster.recorder.columns[name])


def _requests(cluster: Cluster, sent: _Sent) -> Columns:
    sender = cluster.sender
    recorded, rows, respond_ps = cluster.recorder.columns, cluster.rows, cluster.front_end.respond_ps
    given = _with_nulls({name: rows.given(name, sent.rows) for name in GIVEN})
    if given["request_id"] is None:
        given["request_id"] = _numbers(cluster)
    if given["priority"] is None:
        given["priority"] = sent.scratch.full(sent.n, 0, np.int32)

    def categorical(name: str, words: tuple[str, ...]) -> Categorical:
        return Categorical(sent.recorded(cluster, name, np.int32), words)

    return given | {
        "arrival_s": sent.column(array_to_s, rows.arrivals),
        "prompt_tokens": sent.column(np.copy, rows.prompts),
        "output_tokens": sent.column(np.copy, rows.outputs),
        "status": categorical("status", STATUS),
        "status_reason": categorical("status_reason", tuple(cluster.recorder.reasons)),
        "scheduled_s": sent.column(_instants, recorded["scheduled_ps"]),
        "first_token_s": sent.column(lambda ps: _instants(ps, respond_ps), recorded["first_token_ps"]),
        "finish_s": sent.column(lambda ps: _instants(ps, respond_ps), recorded["finish_ps"]),
        **{f"{name}_s": sent.column(array_to_s, recorded[f"{name}_ps"]) for name in DURATIONS},
        **{name: sent.recorded(cluster, name, np.int32) for name in COUNTS},
        **{name: sent.recorded(cluster, name) for name in TOKENS},
        "session_requests": sender.session_requests,
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
            tuple(each.reasons),
            None if rank.stepping.first_lane == rank.id else rank.stepping.first_lane,
            instant_s(each.called_ps),
        )
        for each in cluster.members
        for rank in each.ranks
    )
    return tuple(lives)


def attempt_columns(cluster: Cluster) -> Columns:
    """Return columns, in the order of sending: attempt number, first send time, give-up time, and tokens computed in
    vain."""
    sender, sent = cluster.sender, _Sent(cluster)
    original = cluster.rows.originals(sent.rows)
    arrivals, is_own = cluster.rows.arrivals, isinstance(original, slice)
    columns: Columns = {
        "attempt": sent.scratch.full(sender.n_sent, 1, np.int32),
        "first_sent_s": sent.column(array_to_s, arrivals) if is_own else array_to_s(arrivals[original]),
        "gave_up_s": sent.scratch.full(sender.n_sent, np.nan, np.float64),
        "wasted_tokens": _wasted_tokens(cluster, sent),
    }
    gave_up_ps = cluster.losses.failed_ps
    if isinstance(sender, SessionSender):
        columns["attempt"] = sender.attempts
        gave_up_ps = gave_up_ps | (sender.deadlines.gave_up_ps if sender.deadlines is not None else {})
    places = sent.places(np.array([*gave_up_ps], np.int64))
    columns["gave_up_s"][places] = np.array([*gave_up_ps.values()], np.int64) / PS_PER_S
    return columns


def _wasted_tokens(cluster: Cluster, sent: _Sent) -> NDArray[np.int64]:
    """Return the tokens computed in vain: lost on the way, or stored when a request ended early and not from a cache;
    0 for one that finished or may still."""
    recorder, stored = cluster.recorder, cluster.recorder.stored_tokens
    names = ("status", "n_recomputed_tokens", "cached_tokens")
    result = sent.column(
        lambda status, lost, cached: np.where(np.isin(status, WITHOUT_ANSWER), lost - cached, 0),
        *(recorder.columns[name] for name in names),
    )
    result[sent.places(np.array([*stored], np.int64))] += np.array([*stored.values()], np.int64)
    return result


def _with_nulls(given: Columns) -> Columns:
    """Return columns of the load, masked in rows that lack a number; None of text that all rows lack."""
    known = {name: column for name, column in given.items() if column is not None}
    known = {name: column for name, column in known.items() if column.dtype.kind != "U" or (column != "").any()}
    if "turn" in known and "session_id" in known:
        known["turn"] = _masked(known["turn"], known["session_id"] == "")
    if "max_tokens" in known:
        known["max_tokens"] = _masked(known["max_tokens"], known["max_tokens"] == MOST_TOKENS)
    return dict.fromkeys(given) | known


def _masked(column: NDArray[Any], is_null: NDArray[np.bool_]) -> NDArray[Any]:
    return np.ma.MaskedArray(column, is_null) if is_null.any() else column


def _numbers(cluster: Cluster) -> NDArray[np.int64]:
    """Return ids for requests without one: their index in the order of sending; retries share the id of the first
    attempt."""
    sender = cluster.sender
    if sender.has_attempts:
        return np.arange(len(cluster.rows))[cluster.rows.originals(sender.rows_sent)]
    return cluster.scratch.built(sender.n_sent, lambda piece: np.arange(piece.start, piece.stop))


def _instants(ps: NDArray[np.int64], later_ps: int = 0) -> NDArray[np.float64]:
    seconds = array_to_s(ps + later_ps)
    seconds[ps == NEVER] = np.nan
    return seconds


def _spans(cluster: Cluster, sent: _Sent) -> Columns:
    rows, lengths = cluster.recorder.all_spans()
    return {"replica": replica_of_rows(lengths, cluster.scratch)} | cluster.scratch.built_all(
        len(rows),
        lambda piece: {
            "request_id": sent.places(rows["request_id"][piece]),
            "first_step": np.ascontiguousarray(rows["first_step"][piece]),
            "last_step": np.ascontiguousarray(rows["last_step"][piece]),
            "join_s": array_to_s(rows["join_ps"][piece]),
        },
    )


def _extra(cluster: Cluster, sent: _Sent) -> ExtraColumns:
    recorder = cluster.recorder
    recorded, pauses, (stalls, lengths) = recorder.columns, recorder.pauses(), recorder.all_stalls()
    of_pauses = sent.scratch.built_all(
        len(pauses),
        lambda piece: {
            "request_id": sent.places(pauses["request_id"][piece]),
            "left_s": array_to_s(pauses["left_ps"][piece]),
            "back_s": array_to_s(pauses["back_ps"][piece]),
            "is_swapped": pauses["is_swapped"][piece] > 0,
        },
    )
    return ExtraColumns(
        routed_s=sent.column(_routed_s, recorded["routed_ps"], cluster.rows.arrivals),
        notice_s=sent.column(array_to_s, recorded["notice_ps"]),
        chunks_s=sent.column(array_to_s, recorded["chunks_ps"]),
        pauses=of_pauses,
        stalls={
            "replica": replica_of_rows(lengths, sent.scratch),
            "at_s": column(lambda part: array_to_s(part["at_ps"]), {"at_ps": stalls["at_ps"]}),
            "blocked_by": blocked_by(column(lambda part: np.copy(part["code"]), {"code": stalls["blocked_by"]})),
        },
    )


def _routed_s(routed_ps: NDArray[np.int64], arrival_ps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return when requests reached the router: at once where no front end takes time."""
    return array_to_s(np.where(routed_ps == NEVER, arrival_ps, routed_ps))
