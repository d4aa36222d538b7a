"""Pool series: the time series of a pool, aggregated over its replicas and, where there are many, over intervals."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.tables.columns import Columns, Floats, Ints

SUMS = ("queue_len", "running", "prefill_tokens_per_s", "output_tokens_per_s")
MEANS = ("kv_frac", "busy_frac", "mfu", "mbu")
MOST = {"longest_queue": "queue_len", "fullest_kv_frac": "kv_frac"}
"""Columns that show the largest replica's value, with the column that they aggregate."""


def pool_series(timeseries: Columns, pool: str, most_rows: int) -> tuple[dict[str, Floats], int]:
    """Return the columns of a pool, `(n_rows,)` each with n_rows <= most_rows, and the number of intervals per row.

    Rows of several intervals are time-weighted means, except for the columns of MOST, which are maxima.
    """
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
    return {
        "start_s": starts[first],
        "end_s": ends[last],
        **{name: _mean(values, ends - starts, first) for name, values in means.items()},
        **{name: _reduced(np.maximum, _most(table[of], interval, n), first) for name, of in MOST.items()},
    }, n_merged


def interval_numbers(timeseries: Mapping[str, Any]) -> Ints:
    """Return the number of the interval in which each row starts, `(n_rows,)`; one that joins starts within it."""
    numbers: Ints = np.floor(timeseries["start_s"] / interval_s(timeseries) + 1e-6).astype(np.int64)
    return numbers


def interval_s(timeseries: Mapping[str, Any]) -> float:
    """Return the width of the intervals (the last may be shorter), 1 s where there are none."""
    return float((timeseries["end_s"] - timeseries["start_s"]).max(initial=0.0)) or 1.0


def _mean(values: Floats, lengths: Floats, first: Ints) -> Floats:
    return _reduced(np.add, values * lengths, first) / _reduced(np.add, lengths, first)


def _reduced(how: Any, values: Floats, first: Ints) -> Floats:
    """Aggregate the rows from each of `first` to the next."""
    reduced: Floats = how.reduceat(values, first) if len(first) else values
    return reduced


def _most(values: Floats, interval: Ints, n: int) -> Floats:
    """Return the maximum of each interval."""
    result = np.full(n, -np.inf)
    np.maximum.at(result, interval, values)
    return result
