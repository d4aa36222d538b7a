"""Base of all readers: places and checks of rows, and the trace of valid rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.tables.columns import Flags, Ints, Lists
from simserve.workload.trace import MOST_TOKENS, Trace

MOST_SHOWN = 40
"""Maximum characters of a field that a message quotes."""

MOST_NAMED_ROWS = 5
"""Maximum bad rows that a message lists by number."""

LEAST = {"prompt_tokens": 1, "output_tokens": 1, "max_tokens": 1, "turn": 0, "priority": -MOST_TOKENS}
"""Integer columns, and their minimum values."""

MOST_S = 1e11
"""Largest stamp in seconds, the year 5138 since 1970; a larger one is in finer units."""

MS, US, NS = 1e-3, 1e-6, 1e-9
SECONDS = {"s": 1.0, "ms": MS, "us": US, "ns": NS} | dict.fromkeys(("sec", "secs", "seconds"), 1.0)
"""Seconds of units of time, as logs write them."""


def without_unit(name: str) -> tuple[str, float | None]:
    """Return a name without the unit that it ends with, as `ttft_ms` does, and that in seconds; None: it has none."""
    stem, _, unit = name.rpartition("_")
    return (stem, SECONDS[unit]) if stem and unit in SECONDS else (name, None)


class Texts(tuple[str, ...]):
    """Cells of CSV, where a number is written as text and nothing as an empty cell."""


Cells = Sequence[Any] | NDArray[Any]
"""Cells of one column: Texts, values of JSON, or what `tables/foreign.py` has read from parquet by its type."""


@dataclass(frozen=True)
class Place:
    """Place of rows for messages: the file, and the line (or item) number of each row, `(n_rows,)`."""

    path: Path
    numbers: Ints
    word: str = "line"
    is_part: bool = False
    """Whether the file may have further rows."""

    def take(self, rows: Ints) -> "Place":
        """Select rows."""
        return replace(self, numbers=self.numbers[rows])


def items(path: Path, n_rows: int, word: str) -> Place:
    """Return the place of rows without lines: they are counted from 1."""
    return Place(path, np.arange(1, n_rows + 1), word)


def refuse_rows(place: Place, is_bad: Flags, rule: str, values: Cells | Lists) -> None:
    """Raise TraceError that names the first few bad rows by their place in the file, and their count."""
    bad = np.flatnonzero(is_bad)
    if len(bad):
        named = ", ".join(map(str, place.numbers[bad[:MOST_NAMED_ROWS]].tolist()))
        n_more = "" if place.is_part else f"{len(bad) - MOST_NAMED_ROWS} "
        more = f" and {n_more}more" if len(bad) > MOST_NAMED_ROWS else ""
        value = shown(values[int(bad[0])])
        raise TraceError(
            f"{place.path}: {place.word} {named}{more}: {rule}, got {value}; correct or remove these {place.word}s"
        )


def shown(value: Any) -> str:
    """Return a value as a message quotes it: short, and `nothing` for a missing one."""
    if value is None or value == "" or (isinstance(value, np.floating) and np.isnan(value)):  # NaN: null in parquet
        return "nothing"
    text = f"{value:.15g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def names_shown(header: Sequence[str]) -> str:
    """Return the columns of a file as a message quotes them: names only, as any file may be given for a trace."""
    names = [name for name in header if re.fullmatch(r"[\w .-]{1,32}", name)]
    others = len(header) - len(names)
    return ", ".join([*names, *([f"{others} that are no names"] if others else [])]) or "none"


def checked(place: Place, trace: Trace, put_prefixes: Callable[[Place, Trace], Trace] | None = None) -> Trace:
    """Return the rows of a file as a trace that starts at its first stamp, in order of arrival, with integer counts.

    Prefixes are added to rows with valid lengths, still in file order. Raises TraceError for rows that cannot be
    served.
    """
    if not len(trace):
        raise TraceError(f"{place.path}: must hold at least one request, got none; is it the right file?")
    refuse_rows(place, trace.arrival_s < 0, "an arrival must not be negative", trace.arrival_s)
    late = f"an arrival must be at most {MOST_S:g} s (are the stamps in other units?)"
    refuse_rows(place, trace.arrival_s > MOST_S, late, trace.arrival_s)
    for name in LEAST:
        if (column := getattr(trace, name)) is not None:
            whole: Any = {name: _whole(place, name, column)}
            trace = replace(trace, **whole)  # the numbers as read are no longer held
    if put_prefixes is not None:
        trace = put_prefixes(place, trace)
    trace = _in_order(trace)
    return replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def answered(place: Place, trace: Trace, failed: str) -> Trace:
    """Return the rows with an answer, checked; a note counts the others, such as `calls (no response tokens)`."""
    kept = np.flatnonzero(trace.output_tokens != 0)
    n_failed = len(trace) - len(kept)
    notes = (f"{n_failed} failed {failed} were left out",) if n_failed else ()
    return checked(place.take(kept), replace(trace.take(kept), notes=notes))


def _whole(place: Place, name: str, values: NDArray[Any]) -> Ints:
    refuse_rows(place, values < LEAST[name], f"{name} must be at least {LEAST[name]}", values)
    refuse_rows(place, values > MOST_TOKENS, f"{name} must be at most {MOST_TOKENS}", values)
    refuse_rows(place, values != np.floor(values), f"{name} must be whole", values)
    return values.astype(np.int64)


def _in_order(trace: Trace) -> Trace:
    n_back = int((np.diff(trace.arrival_s) < 0).sum())
    if not n_back:
        return trace
    sentence = "1 row was out of order" if n_back == 1 else f"{n_back} rows were out of order"
    note = f"{sentence}; the trace was sorted by arrival"
    return replace(trace.take(np.argsort(trace.arrival_s, kind="stable")), notes=(*trace.notes, note))
