"""Integrals: amounts per row of steps, summed up to given instants for each replica, without expanding the rows; mean
numbers of requests; and how long each cause blocked a queue."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Flags, Floats, Ints, bounds
from simserve.tables.pieces import (
    Rows,
    column,
    computed,
    cumulated,
    cut,
    full,
    pieces,
    rows_where,
    running_sums,
    with_neighbors,
)
from simserve.units import array_to_ps

REASONS = ("seats", "blocks", "budget")
"""Causes that a scheduler reports for a blocked head of the queue."""


@dataclass(frozen=True)
class Places:
    """The rows that contain given instants on each replica, `(n_replicas, n_instants)`."""

    row: Ints
    """The last row that begins at or before the instant."""
    has_begun: Flags
    """Whether the replica has begun any row by then."""
    over_frac: Floats
    """Elapsed share of that row."""
    before: Ints
    """The row before each replica's first, `(n_replicas, 1)`; -1 for none."""

    def sums(self, amounts: Callable[..., Floats], rows: Columns, neighbor: int = 0) -> Floats:
        """Sum the amounts that a formula gives rows, spread evenly over them, up to each instant."""
        upto, own, before = np.zeros(self.row.shape), np.zeros(self.row.shape), np.zeros(self.before.shape)
        so_far: Floats | None = None
        start = 0
        for tables in with_neighbors(rows, neighbor):
            values = amounts(*tables)
            sums = running_sums(values, so_far)
            so_far = sums[-1:]
            for rows_at, results in ((self.row, ((upto, sums), (own, values))), (self.before, ((before, sums),))):
                inside = (rows_at >= start) & (rows_at < start + len(values))
                place = rows_at[inside] - start
                for result, source in results:
                    result[inside] = source[place]
            start += len(values)
        total = upto - own * (1 - self.over_frac)
        total -= np.where(self.before >= 0, before, 0.0)
        return np.where(self.has_begun, total, 0.0)


def places(steps: Columns, until_s: Floats, n_replicas: int, at_s: Floats) -> Places:
    """Locate instants `(n_instants,)` in rows that last from start_s until `until_s`, `(n_rows,)`."""
    edges = bounds(steps["replica"], n_replicas)
    start_s = steps["start_s"]
    row = np.empty((n_replicas, len(at_s)), np.int64)
    for replica in range(n_replicas):
        first, stop = edges[replica : replica + 2]
        row[replica] = first - 1 + np.searchsorted(start_s[first:stop], at_s, side="right")
    before = edges[:-1, None] - 1
    has_begun = row > before
    if not len(start_s):
        return Places(row, has_begun, np.zeros(row.shape), before)
    lasts_s = until_s[row] - start_s[row]
    over_s = at_s - start_s[row]
    over_frac = np.ones(row.shape)
    np.divide(over_s, lasts_s, out=over_frac, where=lasts_s > 0)
    return Places(row, has_begun, np.clip(over_frac, 0.0, 1.0), before)


def next_starts(steps: Columns, gone_s: Floats) -> Floats:
    """Return the start of the next row of the same replica, `(n_rows,)`; after the last, when the replica is gone."""

    def formula(own: Rows, after: Rows) -> Floats:
        return following("start_s", own, after, gone_s[own["replica"]])

    return column(formula, {name: steps[name] for name in ("replica", "start_s")}, neighbor=1)


def following(name: str, own: Rows, after: Rows, last: Floats) -> Floats:
    """Return the value of the next row of the same replica, or that of `last`; after: the rows after the own ones."""
    result = np.array(last)
    same = np.flatnonzero(after["replica"] == own["replica"][: len(after["replica"])])
    result[same] = after[name][same]
    return result


Presences = Iterable[tuple[Floats, Floats, Ints]]
"""Parts of the instants at which requests enter and leave, and their groups; `(n,)` each."""


def presence(parts: Presences, n_groups: int, edges_s: Floats) -> Floats:
    """Return the mean number present in each interval, `(n_groups, n_intervals)`.

    Those that leave at NaN never do, and those that enter at NaN were never there. edges_s: evenly spaced, except for
    the last interval, which may be shorter.
    """
    n = len(edges_s) - 1
    passed, sums = np.zeros((2, n_groups * n), np.int64), np.zeros((2, n_groups * n))
    for enter_s, leave_s, group in parts:
        enters = ~np.isnan(enter_s)
        for index, at_s, known in ((0, enter_s, enters), (1, leave_s, enters & ~np.isnan(leave_s))):
            place = group[known] * n + _interval(at_s[known], edges_s)
            passed[index] += np.bincount(place, minlength=n_groups * n)
            np.add.at(sums[index], place, at_s[known])
    areas = [_area(*each, edges_s) for each in zip(passed, sums, strict=True)]
    return (areas[0] - areas[1]) / np.diff(edges_s)


def counts(at_s: Floats, group: Ints, n_groups: int, edges_s: Floats) -> Floats:
    """Count the instants in each interval, `(n_groups, n_intervals)`."""
    n = len(edges_s) - 1
    return np.bincount(group * n + _interval(at_s, edges_s), minlength=n_groups * n).reshape(n_groups, n).astype(float)


def _area(passed: Ints, sums_s: Floats, edges_s: Floats) -> Floats:
    """Integrate the number of past instants over each interval, `(n_groups, n_intervals)`, from how many lie in each
    and their sum."""
    shape = (-1, len(edges_s) - 1)
    passed, sums_s = passed.reshape(shape), sums_s.reshape(shape)
    earlier = np.cumsum(passed, axis=1) - passed
    return earlier * np.diff(edges_s) + passed * edges_s[1:] - sums_s


def _interval(at_s: Floats, edges_s: Floats) -> Ints:
    """Return the interval of each instant, clipped to the first and last."""
    width_s = edges_s[1] - edges_s[0]
    interval: Ints = np.clip(((at_s - edges_s[0]) / width_s).astype(np.int64), 0, len(edges_s) - 2)
    return interval


@dataclass(frozen=True)
class Waits:
    """Waits at replicas, `(n_waits,)` each: replica, start and end."""

    replica: Ints
    from_ps: Ints
    until_ps: Ints


@dataclass(frozen=True)
class _Timeline:
    """The time of one replica in disjoint parts, in order; between them it is idle and blocks no request."""

    start_ps: Ints
    lasts_ps: Ints
    reason: Ints
    """Index into REASONS, or its length for none."""


def kept_out_ps(steps: Columns, start_ps: Ints, stalls: Columns, waits: Waits) -> list[Ints]:
    """Return how long each of REASONS blocked the head of the queue during each wait, `(n_waits,)` each.

    start_ps: of each row of steps. A row has one cause for all its time, and so does a stalled replica until its next
    row.
    """
    table = vars(waits)
    result = [full(len(waits.replica), 0, table) for _ in REASONS]
    chosen = rows_where(lambda part: part["until_ps"] != part["from_ps"], table)
    replica = column(lambda part: waits.replica[part["chosen"]], {"chosen": chosen})
    order = np.argsort(replica, kind="stable")
    chosen, replica = chosen[order], replica[order]
    n_replicas = int(replica[-1]) + 1 if len(replica) else 0
    edges = [bounds(of, n_replicas) for of in (replica, steps["replica"], stalls["replica"])]
    blocked = {name: steps[name] for name in ("blocked_by", "end_s")} | {"start_ps": start_ps}
    for each in range(n_replicas):
        mine, rows, idle = (slice(*of[each : each + 2].tolist()) for of in edges)
        timeline = _timeline(cut(blocked, rows), cut(stalls, idle))
        for place, kept_ps in enumerate(result):
            _add_kept_out(kept_ps, chosen[mine], timeline, place, waits)
    return result


def _timeline(steps: Rows, stalls: Rows) -> _Timeline:
    """Return the timeline of one replica, from its own rows of steps and stalls."""
    own = computed(
        lambda part: {"reason": _reasons(part), "lasts_ps": array_to_ps(part["end_s"]) - part["start_ps"]}, steps
    )
    timeline = _Timeline(steps["start_ps"], **own)
    if not len(stalls["at_s"]):
        return timeline
    return _with_stalls(timeline, array_to_ps(stalls["at_s"]), _reasons(stalls))


def _reasons(table: Rows) -> Ints:
    """Return the index into REASONS of each row's cause, or its length for none."""
    causes = table["blocked_by"]
    none = len(REASONS)
    of_code = [REASONS.index(name) if name in REASONS else none for name in causes.categories]
    result: Ints = np.array([*of_code, none], np.int64)[causes.codes]  # code -1 takes the last
    return result


def _with_stalls(timeline: _Timeline, at_ps: Ints, reasons: Ints) -> _Timeline:
    """Add the stalls of the replica, each until the next piece begins; after the last row nothing waits."""
    start_ps = np.concatenate([timeline.start_ps, at_ps])
    order = np.argsort(start_ps, kind="stable")
    lasts_ps = np.concatenate([timeline.lasts_ps, np.zeros(len(at_ps), np.int64)])[order]
    is_stall = order >= len(timeline.start_ps)
    start_ps = start_ps[order]
    until_next_ps = np.diff(start_ps, append=start_ps[-1:])
    lasts_ps[is_stall] = until_next_ps[is_stall]
    return _Timeline(start_ps, lasts_ps, np.concatenate([timeline.reason, reasons])[order])


def _add_kept_out(kept_ps: Ints, wait: Ints, blocked: _Timeline, place: int, waits: Waits) -> None:
    """Add how long one cause, by its index, blocked the queue during some waits."""
    table = vars(blocked)
    if not any((part["reason"] == place).any() for part in pieces(table)):
        return
    sums_ps = cumulated(lambda part: np.where(part["reason"] == place, part["lasts_ps"], 0), table)

    def upto_ps(at_ps: Ints) -> Ints:
        """Return how long it had blocked the queue by each instant."""
        piece = np.searchsorted(blocked.start_ps, at_ps, side="right") - 1
        is_it = blocked.reason[piece] == place
        left_ps = np.maximum(blocked.lasts_ps[piece] - (at_ps - blocked.start_ps[piece]), 0)
        return np.where(piece >= 0, sums_ps[piece] - np.where(is_it, left_ps, 0), 0)

    for part in pieces({"wait": wait}, run=table):
        own = part["wait"]
        kept_ps[own] = upto_ps(waits.until_ps[own]) - upto_ps(waits.from_ps[own])
