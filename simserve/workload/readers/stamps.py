"""Stamps: UTC dates and times as seconds."""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.workload.readers.base import Place, refuse_rows

RULE = "must be a date and time in UTC like 2023-11-16 18:15:46.6805900"
DATE_CHARACTERS = len("2023-11-16")


def instants(place: Place, name: str, stamps: Sequence[str]) -> NDArray[np.datetime64]:
    """Return stamps as instants, `(n,)`; `name` is the column's. Raises TraceError."""
    every = "".join(stamps)
    is_plain = "+" not in every and "Z" not in every and every.count("-") == 2 * len(stamps)
    plain = stamps if is_plain else [_without_zone(stamp) for stamp in stamps]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of a time zone, and drops it
        try:
            result = np.array(plain, dtype="datetime64[ns]")
        except (ValueError, UserWarning):
            result = np.array([_instant(stamp) for stamp in plain], "datetime64[ns]")
    refuse_rows(place, np.isnat(result), f"{name} {RULE}", stamps)
    return result


def seconds_since_first(instants: NDArray[np.datetime64]) -> NDArray[np.float64]:
    """Return seconds since the earliest instant, `(n,)`."""
    since = instants - instants.min() if len(instants) else instants - instants
    seconds: NDArray[np.float64] = since.astype(np.float64) / 1e9
    return seconds


def _without_zone(stamp: str) -> str:
    """Return the stamp without its UTC mark; empty for another zone."""
    plain = stamp.removesuffix("+00:00").removesuffix("Z")
    time = plain[DATE_CHARACTERS:]
    return "" if "+" in time or "-" in time else plain


def _instant(stamp: str) -> np.datetime64:
    """Return the instant, or not-a-time for an invalid stamp."""
    try:
        return np.datetime64(stamp, "ns")
    except (ValueError, UserWarning):
        return np.datetime64("NaT", "ns")
