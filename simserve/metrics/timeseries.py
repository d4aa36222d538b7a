"""Time series: the state of each replica in each interval of a run, one row each, and of pools of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.integrals import Places, Presences, counts, following, next_starts, places, presence
from simserve.metrics.itl import span_ends
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.utilization import WorkDone, shares, work_done
from simserve.tables.columns import Categorical, Columns, Floats, Ints
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import Rows, column, full, pieces
from simserve.tables.run_tables import RunTables, prefilled_at

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
    tables = replace(tables, requests=tables.requests | {"joined_s": _first_joins(tables)})
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

    def amounts(own: Rows, after: Rows) -> Floats:
        lasts_s: Floats = own["until_s"] - own["start_s"]
        return _halfway("queue_len", own, after) * lasts_s

    return np.diff(held.sums(amounts, steps | {"until_s": until_s}, neighbor=1), axis=1)


def _mean_kv_frac(steps: Columns, until_s: Floats, in_steps: Places, facts: RunFacts) -> Floats:
    """Integrate the share of used or reserved KV blocks; it is zero while the replica is idle."""

    def amounts(own: Rows, after: Rows) -> Floats:
        lasts_s: Floats = own["end_s"] - own["start_s"]
        return lasts_s * np.where(own["until_s"] <= own["end_s"], _halfway("held", own, after), own["held"])

    held = column(lambda part: part["kv_blocks_used"] + part["kv_blocks_reserved"], steps)
    totals = np.array([pool.n_blocks for pool in facts.pools_by_replica], np.float64)
    sums = in_steps.sums(amounts, steps | {"until_s": until_s, "held": held}, neighbor=1)
    return np.diff(sums, axis=1) / totals[:, None]


def _halfway(name: str, own: Rows, after: Rows) -> Floats:
    """Return the mean of each row's value and that of the next row of its replica."""
    values = own[name].astype(np.float64)
    means: Floats = (values + following(name, own, after, values)) / 2
    return means


def _running(tables: RunTables, rows: DecodeRows, n_replicas: int, edges_s: Floats) -> Floats:
    """Return the mean number of running requests: from scheduled_s to the first join_s on the prefill replica, then
    over each span; a span begins with its first token, so handed-over requests count on the decode replica."""

    def parts() -> Presences:
        for part in pieces(tables.requests):
            known = part["replica"] >= 0
            joined_s = np.where(np.isinf(part["joined_s"]), part["gave_up_s"], part["joined_s"])
            yield part["scheduled_s"][known], joined_s[known], prefilled_at(part, known)
        for part in pieces(rows.by_span(tables.spans)):
            yield part["join_s"], span_ends(rows, part), part["replica"].astype(np.int64)

    return presence(parts(), n_replicas, edges_s)


def _output_tokens(tables: RunTables, rows: DecodeRows, n_replicas: int, edges_s: Floats) -> Floats:
    """Return the output tokens in each interval: one per completed prefill, one per member and decode step, and
    accepted proposals."""
    joins_s = tables.requests["joined_s"]
    firsts = np.zeros((n_replicas, len(edges_s) - 1))
    for part in pieces(tables.spans):
        request, join_s = part["request_id"], part["join_s"]
        is_first = join_s == joins_s[request]
        at = np.where(is_first, prefilled_at(tables.requests, request), part["replica"].astype(np.int64))
        firsts += counts(join_s, at, n_replicas, edges_s)
    within, _ = rows.members(np.ones(len(tables.spans["join_s"]), np.bool_))
    in_rows = places(rows.by_row, rows.end_s, n_replicas, edges_s)

    def n_tokens(part: Rows) -> Floats:
        return np.asarray(part["within"] * part["n_steps"] + part["accepted_tokens"], np.float64)

    return firsts + np.diff(in_rows.sums(n_tokens, rows.by_row | {"within": within}), axis=1)


def _first_joins(tables: RunTables) -> Floats:
    """Return the time of each request's first token, `(n_requests,)`; inf without one."""
    joined_s: Floats = full(len(tables.requests["arrival_s"]), np.inf, tables.requests, np.float64)
    for part in pieces(tables.spans):
        np.minimum.at(joined_s, part["request_id"], part["join_s"])
    return joined_s


SUMS = ("queue_len", "running", "prefill_tokens_per_s", "output_tokens_per_s")
MEANS = ("kv_frac", "busy_frac", "mfu", "mbu")
MOST = {"longest_queue": "queue_len", "fullest_kv_frac": "kv_frac"}
"""Columns that show the largest replica's value, with the column that they aggregate."""


def pool_series(timeseries: Columns, pool: str, most_rows: int) -> tuple[dict[str, Floats], int]:
    """Return the columns of a pool, `(n_rows,)` each with n_rows <= most_rows, and the number of intervals per row.
    Rows of several intervals are time-weighted means, except for the columns of MOST, which are maxima."""
    of_pool = timeseries["pool"].is_(pool)
    names = ("start_s", "end_s", *SUMS, *MEANS)
    table: dict[str, Floats] = {name: timeseries[name][of_pool] for name in names}
    numbers, interval = np.unique(interval_numbers(timeseries)[of_pool], return_inverse=True)
    n = len(numbers)
    starts, ends = -_most(-table["start_s"], interval, n), _most(table["end_s"], interval, n)
    lived = (table["end_s"] - table["start_s"]) / (ends - starts)[interval]
    n_replicas = np.bincount(interval, lived, n)
    summed = {name: np.bincount(interval, table[name] * lived, n).astype(np.float64) for name in (*SUMS, *MEANS)}
    means = {name: values / n_replicas if name in MEANS else values for name, values in summed.items()}
    n_merged = max(1, -(-n // most_rows))
    first = np.arange(0, n, n_merged)
    last = np.minimum(first + n_merged, n) - 1
    lasts_s = ends - starts
    merged_s = _reduced(np.add, lasts_s, first)
    return {
        "start_s": starts[first],
        "end_s": ends[last],
        **{name: _reduced(np.add, values * lasts_s, first) / merged_s for name, values in means.items()},
        **{name: _reduced(np.maximum, _most(table[of], interval, n), first) for name, of in MOST.items()},
    }, n_merged


def interval_numbers(timeseries: Mapping[str, Any]) -> Ints:
    """Return the number of the interval in which each row starts, `(n_rows,)`; one that joins starts within it."""
    numbers: Ints = np.floor(timeseries["start_s"] / interval_s(timeseries) + 1e-6).astype(np.int64)
    return numbers


def interval_s(timeseries: Mapping[str, Any]) -> float:
    """Return the width of the intervals (the last may be shorter), 1 s where there are none."""
    return float((timeseries["end_s"] - timeseries["start_s"]).max(initial=0.0)) or 1.0


def _reduced(how: Any, values: Floats, first: Ints) -> Floats:
    """Aggregate the rows from each of `first` to the next."""
    return how.reduceat(values, first) if len(first) else values


def _most(values: Floats, interval: Ints, n: int) -> Floats:
    """Return the maximum of each interval."""
    result = np.full(n, -np.inf)
    np.maximum.at(result, interval, values)
    return result
