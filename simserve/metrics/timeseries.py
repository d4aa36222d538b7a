"""Time series: the state of each replica in each interval of a run, one row each."""

from dataclasses import dataclass

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.integrals import Places, counts, next_starts, places, presence
from simserve.metrics.itl import span_ends
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.utilization import WorkDone, shares, work_done
from simserve.tables.columns import Categorical, Columns, Floats, Ints
from simserve.tables.facts import RunFacts
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
    queue = steps["queue_len"].astype(np.float64)
    return np.diff(held.sums((queue + _next(queue, steps)) / 2 * (until_s - steps["start_s"])), axis=1)


def _mean_kv_frac(steps: Columns, until_s: Floats, in_steps: Places, facts: RunFacts) -> Floats:
    """Integrate the share of used or reserved KV blocks; it is zero while the replica is idle."""
    blocks = (steps["kv_blocks_used"] + steps["kv_blocks_reserved"]).astype(np.float64)
    no_pause = until_s <= steps["end_s"]
    means = np.where(no_pause, (blocks + _next(blocks, steps)) / 2, blocks)
    totals = np.array([facts.pools[pool].n_blocks for pool in facts.replica_pool], np.float64)
    return np.diff(in_steps.sums(means * (steps["end_s"] - steps["start_s"])), axis=1) / totals[:, None]


def _next(values: Floats, steps: Columns) -> Floats:
    """Return the value of the next row of the same replica; its last row keeps its own."""
    following = np.array(values)
    same = steps["replica"][1:] == steps["replica"][:-1]
    following[:-1][same] = values[1:][same]
    return following


def _running(tables: RunTables, rows: DecodeRows, n_replicas: int, edges_s: Floats) -> Floats:
    """Return the mean number of running requests: from scheduled_s to the first join_s on the prefill replica, then
    over each span; a span begins with its first token, so handed-over requests count on the decode replica."""
    requests, spans = tables.requests, tables.spans
    joined_s = _first_joins(tables)
    joined_s = np.where(np.isinf(joined_s), requests["gave_up_s"], joined_s)
    known = requests["replica"] >= 0
    enter_s = np.concatenate([requests["scheduled_s"][known], spans["join_s"]])
    leave_s = np.concatenate([joined_s[known], span_ends(rows, spans)])
    group = np.concatenate([_prefilled_at(requests)[known], spans["replica"].astype(np.int64)])
    return presence(enter_s, leave_s, group, n_replicas, edges_s)


def _output_tokens(tables: RunTables, rows: DecodeRows, n_replicas: int, edges_s: Floats) -> Floats:
    """Return the output tokens in each interval: one per completed prefill, one per member and decode step, and
    accepted proposals."""
    spans = tables.spans
    request, join_s = spans["request_id"], spans["join_s"]
    is_first = join_s == _first_joins(tables)[request]
    at: Ints = np.where(is_first, _prefilled_at(tables.requests)[request], spans["replica"].astype(np.int64))
    firsts = counts(join_s, at, n_replicas, edges_s)
    within, _ = rows.members(np.ones(len(join_s), np.bool_))
    of_rows = {"replica": rows.replica, "start_s": rows.start_s}
    in_rows = places(of_rows, rows.end_s, n_replicas, edges_s)
    n_tokens = within * rows.n_steps + rows.accepted_tokens
    return firsts + np.diff(in_rows.sums(_as_floats(n_tokens)), axis=1)


def _first_joins(tables: RunTables) -> Floats:
    """Return the time of each request's first token, `(n_requests,)`; inf without one."""
    joined_s = np.full(len(tables.requests["arrival_s"]), np.inf)
    np.minimum.at(joined_s, tables.spans["request_id"], tables.spans["join_s"])
    return joined_s


def _prefilled_at(requests: Columns) -> Ints:
    """Return the replica that first computed each prompt, `(n_requests,)`."""
    elsewhere, own = requests["prefill_replica"].astype(np.int64), requests["replica"].astype(np.int64)
    at: Ints = np.where(elsewhere >= 0, elsewhere, own)
    return at


def _as_floats(values: Ints) -> Floats:
    return values.astype(np.float64)
