"""Time series: the state of each replica in each interval of a run, one row each."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.integrals import Places, Presences, counts, following, next_starts, places, presence
from simserve.metrics.itl import span_ends
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.utilization import WorkDone, shares, work_done
from simserve.tables.columns import Categorical, Columns, Floats, Ints
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import column, full, pieces
from simserve.tables.run_tables import RunTables

MOST_INTERVALS = 600
"""Intervals per replica: enough for a chart, few enough to write."""


@dataclass(frozen=True)
class TimeSeries:
    """The series, and the work done in the measured window, `(n_replicas, 1)`, from the same pass over steps."""

    columns: Columns
    window_work: WorkDone


def time_series(tables: RunTables, rows: DecodeRows, facts: RunFacts, window_s: tuple[float, float]) -> TimeSeries:
    """Return means over intervals of 1, 2 or 5 × 10^k seconds, at most MOST_INTERVALS; the last may be shorter.

    queue_len and the KV share are values at the start of steps, interpolated linearly. running counts requests from the
    start of their prefill to their last token, without recomputation after a preemption. A replica that was ready in a
    part of an interval has a row for that part, and none for an interval in which it was not.
    """
    edges_s, lives = interval_edges(facts.end_s), Lifetimes(facts)
    n_replicas, lived_s = len(facts.replica_pool), lives.lived_s(edges_s)
    was_there = lived_s > 0
    lasts_s = np.where(was_there, lived_s, np.nan)
    steps = tables.steps
    at_s = np.append(edges_s, window_s)
    in_steps = places(steps, steps["end_s"], n_replicas, at_s)
    work = work_done(steps, in_steps, facts)
    grid = WorkDone(*(amount[:, :-2] for amount in vars(work).values())).between()
    busy, mfu, mbu = shares(grid, lasts_s, facts)
    until_s = next_starts(steps, np.minimum(lives.at_s("gone_s"), facts.end_s))
    held = places(steps, until_s, n_replicas, edges_s)
    n_intervals = len(edges_s) - 1
    grids = {
        "queue_len": _mean_queue(steps, until_s, held) / lasts_s,
        "running": _running(tables, rows, n_replicas, edges_s) * (np.diff(edges_s) / lasts_s),
        "kv_frac": _mean_kv_frac(steps, until_s, in_steps, facts)[:, :-2] / lasts_s,
        "prefill_tokens_per_s": grid.prefill_tokens / lasts_s,
        "output_tokens_per_s": _output_tokens(tables, rows, n_replicas, edges_s) / lasts_s,
        "mfu": mfu,
        "mbu": mbu,
        "busy_frac": busy,
    }
    pool = np.repeat(np.array(facts.replica_pool, np.int32), n_intervals)
    chosen = was_there.ravel()
    columns: Columns = {
        "replica": np.repeat(np.arange(n_replicas, dtype=np.int32), n_intervals)[chosen],
        "pool": Categorical(pool[chosen], tuple(each.name for each in facts.pools)),
        "start_s": np.maximum(edges_s[:-1], lives.at_s("ready_s")[:, None])[was_there],
        "end_s": np.minimum(edges_s[1:], lives.at_s("gone_s")[:, None])[was_there],
        **{name: values[was_there] for name, values in grids.items()},
    }
    return TimeSeries(columns, WorkDone(*(amount[:, -2:] for amount in vars(work).values())).between())


def interval_edges(end_s: float) -> Floats:
    """Return the edges of intervals from 0 to the end of the run, at least one."""
    if not end_s > 0:
        return np.array([0.0, 1.0])
    least_s = end_s / MOST_INTERVALS
    decade = 10.0 ** np.floor(np.log10(least_s))
    width_s = next(factor * decade for factor in (1, 2, 5, 10, 20) if factor * decade >= least_s)
    edges_s: Floats = np.arange(int(np.ceil(end_s / width_s)) + 1) * width_s
    edges_s[-1] = end_s
    return edges_s if edges_s[-1] > edges_s[-2] else edges_s[:-1]


def _mean_queue(steps: Columns, until_s: Floats, held: Places) -> Floats:
    """Integrate the queue length over each interval, linear from one row's start to the next's."""

    def amounts(own: Columns, after: Columns) -> Floats:
        queue = own["queue_len"].astype(np.float64)
        coming = following("queue_len", own, after, queue)
        result: Floats = (queue + coming) / 2 * (own["until_s"] - own["start_s"])
        return result

    return np.diff(held.sums(amounts, steps | {"until_s": until_s}, beside=1), axis=1)


def _mean_kv_frac(steps: Columns, until_s: Floats, in_steps: Places, facts: RunFacts) -> Floats:
    """Integrate the share of used or reserved KV blocks; it is zero while the replica is idle."""

    def amounts(own: Columns, after: Columns) -> Floats:
        blocks = own["held"].astype(np.float64)
        coming = following("held", own, after, blocks)
        means = np.where(own["until_s"] <= own["end_s"], (blocks + coming) / 2, blocks)
        result: Floats = means * (own["end_s"] - own["start_s"])
        return result

    held = column(lambda part: part["kv_blocks_used"] + part["kv_blocks_reserved"], steps)
    totals = np.array([facts.pools[pool].n_blocks for pool in facts.replica_pool], np.float64)
    sums = in_steps.sums(amounts, steps | {"until_s": until_s, "held": held}, beside=1)
    return np.diff(sums, axis=1) / totals[:, None]


def _running(tables: RunTables, rows: DecodeRows, n_replicas: int, edges_s: Floats) -> Floats:
    """Return the mean number of running requests: from scheduled_s to the first join_s on the prefill replica, then
    over each span; a span begins with its first token, so handed-over requests count on the decode replica."""
    requests = tables.requests | {"joined_s": _first_joins(tables)}

    def parts() -> Presences:
        for part in pieces(requests):
            known = part["replica"] >= 0
            joined_s = np.where(np.isinf(part["joined_s"]), part["gave_up_s"], part["joined_s"])
            yield part["scheduled_s"][known], joined_s[known], _prefilled_at(part, known)
        for part in pieces(rows.by_span(tables.spans)):
            yield part["join_s"], span_ends(rows, part), part["replica"].astype(np.int64)

    return presence(parts(), n_replicas, edges_s)


def _output_tokens(tables: RunTables, rows: DecodeRows, n_replicas: int, edges_s: Floats) -> Floats:
    """Return the output tokens in each interval: one per completed prefill, one per member and decode step, and
    accepted proposals."""
    joins_s = _first_joins(tables)
    firsts = np.zeros((n_replicas, len(edges_s) - 1))
    for part in pieces(tables.spans):
        request, join_s = part["request_id"], part["join_s"]
        is_first = join_s == joins_s[request]
        at = np.where(is_first, _prefilled_at(tables.requests, request), part["replica"].astype(np.int64))
        firsts += counts(join_s, at, n_replicas, edges_s)
    within, _ = rows.members(np.ones(len(tables.spans["join_s"]), np.bool_))
    in_rows = places(rows.by_row, rows.end_s, n_replicas, edges_s)

    def n_tokens(part: Columns) -> Floats:
        return np.asarray(part["within"] * part["n_steps"] + part["accepted_tokens"], np.float64)

    return firsts + np.diff(in_rows.sums(n_tokens, rows.by_row | {"within": within}), axis=1)


def _first_joins(tables: RunTables) -> Floats:
    """Return the time of each request's first token, `(n_requests,)`; inf without one."""
    joined_s: Floats = full(len(tables.requests["arrival_s"]), np.inf, tables.requests, np.float64)
    for part in pieces(tables.spans):
        np.minimum.at(joined_s, part["request_id"], part["join_s"])
    return joined_s


def _prefilled_at(requests: Columns, rows: Any) -> Ints:
    """Return the replica that first computed the prompts of some requests, `(n,)`."""
    elsewhere, own = (requests[name][rows].astype(np.int64) for name in ("prefill_replica", "replica"))
    at: Ints = np.where(elsewhere >= 0, elsewhere, own)
    return at
