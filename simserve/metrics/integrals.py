"""Integrals: amounts per row of steps, summed up to given instants for each replica, without expanding the rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Flags, Floats, Ints, bounds
from simserve.tables.pieces import Rows, column, running_sums, with_neighbors


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
    mean: Floats = (areas[0] - areas[1]) / np.diff(edges_s)
    return mean


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
    area: Floats = earlier * np.diff(edges_s) + passed * edges_s[1:] - sums_s
    return area


def _interval(at_s: Floats, edges_s: Floats) -> Ints:
    """Return the interval of each instant, clipped to the first and last."""
    width_s = edges_s[1] - edges_s[0]
    interval: Ints = np.clip(((at_s - edges_s[0]) / width_s).astype(np.int64), 0, len(edges_s) - 2)
    return interval
