"""Base of all readers: file text, checks of rows, and the trace of valid rows."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, UnreadableTrace
from simserve.input_files import TRACE_BYTES, read_file
from simserve.workload.size import free_memory_bytes
from simserve.workload.trace import MOST_TOKENS, Trace

COPIES = 4
"""Times that reading a file takes its size in memory, at least: its bytes, its text, its rows."""

MOST_SHOWN = 40
"""Maximum characters of a field that a message quotes."""

MOST_NAMED_ROWS = 5
"""Maximum bad rows that a message lists by number."""

LEAST = {"prompt_tokens": 1, "output_tokens": 1, "max_tokens": 1, "turn": 0, "priority": -MOST_TOKENS}
"""Integer columns, and their minimum values."""

MOST_S = 1e11
"""Largest stamp in seconds, the year 5138 since 1970; a larger one is in finer units."""


@dataclass(frozen=True)
class Place:
    """Place of rows for messages: the file, and the line (or item) number of each row, `(n_rows,)`."""

    path: Path
    numbers: NDArray[np.int64]
    word: str = "line"

    def take(self, rows: NDArray[np.int64]) -> "Place":
        """Select rows."""
        return replace(self, numbers=self.numbers[rows])


def items(path: Path, n_rows: int, word: str) -> Place:
    """Return the place of rows without lines: they are counted from 1."""
    return Place(path, np.arange(1, n_rows + 1), word)


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked if it is gzip. Raises TraceError."""
    free_bytes = free_memory_bytes()
    most_bytes = TRACE_BYTES if free_bytes is None else min(TRACE_BYTES, free_bytes // COPIES)
    try:
        return read_file(path, most_bytes, may_be_gzip=True).decode("utf-8-sig")
    except IsADirectoryError:
        raise UnreadableTrace(f"{path}: must be a file, got a folder; name the file in it") from None
    except FileNotFoundError:
        raise UnreadableTrace(f"{path}: no such file; see traces/README.md for where to get public traces") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: must be UTF-8 text, got byte {error.start} that is not; convert the file") from None
    except (OSError, EOFError, zlib.error) as error:
        text = getattr(error, "strerror", None) or error
        raise UnreadableTrace(f"{path}: cannot be read ({text}); check that it is complete and readable") from None


def numbers(place: Place, name: str, values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Return a column as floats, `(n,)`; missing or non-numeric values are reported by row. Raises TraceError."""
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        column = np.array([_number(value) for value in values])
    if column.ndim != 1:  # every value is a list
        column = np.full(len(values), np.nan)
    refuse_rows(place, ~np.isfinite(column), f"{name} must be a number", values)
    return column


def spans_s(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    """Return a column of seconds, `(n,)`, NaN for anything invalid: few loads need it."""
    found_s = np.array([_number(value) for value in values])
    found_s[~((found_s >= 0) & (found_s <= MOST_S))] = np.nan
    return found_s


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def refuse_rows(place: Place, is_bad: NDArray[np.bool_], rule: str, values: Sequence[Any] | NDArray[Any]) -> None:
    """Raise TraceError that names the first few bad rows by their place in the file, and their count."""
    bad = np.flatnonzero(is_bad)
    if len(bad):
        named = ", ".join(map(str, place.numbers[bad[:MOST_NAMED_ROWS]].tolist()))
        more = f" and {len(bad) - MOST_NAMED_ROWS} more" if len(bad) > MOST_NAMED_ROWS else ""
        value = shown(values[bad[0]])
        raise TraceError(
            f"{place.path}: {place.word} {named}{more}: {rule}, got {value}; correct or remove these {place.word}s"
        )


def shown(value: Any) -> str:
    """Return a value as a message quotes it: short, and `nothing` for a missing one."""
    if value is None or value == "":
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
    given: dict[str, Any] = {name: column for name in LEAST if (column := getattr(trace, name)) is not None}
    whole: dict[str, Any] = {name: _whole(place, name, column) for name, column in given.items()}
    trace = replace(trace, **whole)
    if put_prefixes is not None:
        trace = put_prefixes(place, trace)
    trace = _in_order(trace)
    return replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def _whole(place: Place, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
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
