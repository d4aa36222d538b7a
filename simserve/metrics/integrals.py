"""Integrals: amounts per row of steps, summed up to given instants for each replica, without expanding the rows."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Flags, Floats, Ints


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

    def sums(self, amounts: Floats) -> Floats:
        """Sum amounts `(n_rows,)`, spread evenly over their rows, up to each instant."""
        if not len(amounts):
            return np.zeros(self.row.shape)
        upto = np.cumsum(amounts)
        sums = upto[self.row] - amounts[self.row] * (1 - self.over_frac)
        sums -= np.where(self.before >= 0, upto[self.before], 0.0)
        return np.where(self.has_begun, sums, 0.0)


def places(steps: Columns, until_s: Floats, n_replicas: int, at_s: Floats) -> Places:
    """Locate instants `(n_instants,)` in rows that last from start_s until `until_s`, `(n_rows,)`."""
    bounds = np.searchsorted(steps["replica"], np.arange(n_replicas + 1))
    start_s = steps["start_s"]
    row = np.empty((n_replicas, len(at_s)), np.int64)
    for replica in range(n_replicas):
        first, stop = bounds[replica : replica + 2]
        row[replica] = first - 1 + np.searchsorted(start_s[first:stop], at_s, side="right")
    before = bounds[:-1, None] - 1
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
    replica = steps["replica"]
    following: Floats = gone_s[replica]
    same = replica[1:] == replica[:-1]
    following[:-1][same] = steps["start_s"][1:][same]
    return following


def presence(enter_s: Floats, leave_s: Floats, group: Ints, n_groups: int, edges_s: Floats) -> Floats:
    """Return the mean number present in each interval, `(n_groups, n_intervals)`.

    enter_s, leave_s, group: `(n,)`; leave_s NaN never leaves, enter_s NaN never enters. edges_s: evenly spaced,
    except for the last interval, which may be shorter.
    """
    area = _area(enter_s, group, n_groups, edges_s) - _area(leave_s, group, n_groups, edges_s, only=~np.isnan(enter_s))
    return area / np.diff(edges_s)


def counts(at_s: Floats, group: Ints, n_groups: int, edges_s: Floats) -> Floats:
    """Count the instants in each interval, `(n_groups, n_intervals)`."""
    n = len(edges_s) - 1
    return np.bincount(group * n + _interval(at_s, edges_s), minlength=n_groups * n).reshape(n_groups, n).astype(float)


def _area(at_s: Floats, group: Ints, n_groups: int, edges_s: Floats, only: Flags | None = None) -> Floats:
    """Integrate the number of past instants over each interval, `(n_groups, n_intervals)`."""
    known = ~np.isnan(at_s) if only is None else ~np.isnan(at_s) & only
    at_s, group = at_s[known], group[known]
    n = len(edges_s) - 1
    place = group * n + _interval(at_s, edges_s)
    passed = np.bincount(place, minlength=n_groups * n).reshape(n_groups, n)
    sums = np.bincount(place, at_s, minlength=n_groups * n).reshape(n_groups, n)
    earlier = np.cumsum(passed, axis=1) - passed
    area: Floats = earlier * np.diff(edges_s) + passed * edges_s[1:] - sums
    return area


def _interval(at_s: Floats, edges_s: Floats) -> Ints:
    """Return the interval of each instant, clipped to the first and last."""
    width_s = edges_s[1] - edges_s[0]
    interval: Ints = np.clip(((at_s - edges_s[0]) / width_s).astype(np.int64), 0, len(edges_s) - 2)
    return interval
