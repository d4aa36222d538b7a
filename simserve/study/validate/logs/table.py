"""Tables with one request per row: CSV, JSON lines or parquet, under common column names."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import OutputError, TraceError
from simserve.input_files import parse_json
from simserve.study.validate.logs import bench
from simserve.study.validate.logs.base import METRICS, Log, filled_in, in_order, times
from simserve.tables.columns import Flags, Floats
from simserve.workload.readers.base import Place, items, names_shown, numbers, shown
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.readers.simserve import PREFIXES, is_given, prefixes_of
from simserve.workload.readers.stamps import seconds_since_first
from simserve.workload.trace import MOST_TOKENS, Trace

UNITS = {"_s": 1.0, "": 1.0, "_ms": 1e-3}
"""Suffixes of time columns; no suffix is seconds."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "arrival_s": (
        *("arrival", "arrival_time", "arrived_at", "start_time", "request_start_time", "send_time", "sent_at"),
        *("timestamp", "time_stamp", "start"),
    ),
    "prompt_tokens": (
        *("prompt_tokens", "prompt_len", "prompt_length", "num_prompt_tokens", "input_tokens", "input_len"),
        *("input_length", "input_sequence_length", "num_input_tokens", "isl", "num_prefill_tokens"),
        "request_num_prefill_tokens",
    ),
    "output_tokens": (
        *("output_tokens", "output_len", "output_length", "output_sequence_length", "num_output_tokens", "osl"),
        *("num_decode_tokens", "request_num_decode_tokens", "completion_tokens", "generated_tokens"),
        "num_generation_tokens",
    ),
    "max_tokens": ("max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens"),
    "ttft_s": ("ttft", "time_to_first_token", "first_token_latency"),
    "tpot_s": ("tpot", "time_per_output_token", "inter_token_latency"),
    "e2e_s": ("e2e", "e2el", "e2e_latency", "e2e_time", "end_to_end_latency", "latency", "request_latency"),
}
"""Our columns and their other names, in lower case and without a unit; the first match is read."""

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
STATUS = {"finished", "rejected", "timed_out", "failed", "unfinished", ""}
"""Values of `status` that identify a simulated run."""

Values = Sequence[Any] | NDArray[Any]


@dataclass(frozen=True)
class LogColumn:
    """A column of the file that matches one of ours."""

    name: str
    scale: float
    """Factor from its unit to ours."""


def read_parquet(path: Path) -> Log:
    """Read a log from parquet, for example simserve's `requests.parquet`. Raises TraceError."""
    from simserve.tables.parquet import read_columns  # late import: pyarrow

    try:
        columns = read_columns(path)
    except OutputError as error:
        raise TraceError(str(error)) from None
    n_rows = len(next(iter(columns.values()), ()))
    return _log(items(path, n_rows, "row"), columns)


def read_csv_table(path: Path, text: str) -> Log:
    """Read a log from CSV with a header. Raises TraceError."""
    first = next(line for line in text.splitlines() if line.strip())
    header = [name.strip() for name in next(csv.reader([first]))]
    names = [column.name for column in _matched(path, header).values()]
    others = [name for name in ("status", *PREFIXES) if name in header]
    place, columns, _ = read_csv(path, dict.fromkeys([*names, *others], True))
    return _log(place, columns)


def read_lines(path: Path, text: str) -> Log:
    """Read a log from JSON lines; keys that a line lacks are missing there. Raises TraceError."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows = [_row(path, number, line) for number, line in lines]
    return of_rows(Place(path, np.array([number for number, _ in lines], np.int64)), rows)


def of_rows(place: Place, rows: Sequence[Mapping[str, Any]]) -> Log:
    """Read a log from one mapping per request. Raises TraceError."""
    names = dict.fromkeys(key for row in rows for key in row)
    return _log(place, {name: [row.get(name) for row in rows] for name in names})


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: must be one JSON object per line ({error.msg}); was it cut?") from None
    if not isinstance(row, dict):
        raise TraceError(f"{path}:{number}: must be one JSON object per line, got {shown(row)}; correct the line")
    if bench.is_result(row):
        raise TraceError(f"{path}:{number}: must be a request, got the result of a benchmark; give one result per file")
    return row


def _matched(path: Path, header: Sequence[str]) -> dict[str, LogColumn]:
    """Match columns to ours. Raises TraceError if a required one is missing."""
    plain = {name.lower().replace(" ", "_").replace("-", "_"): name for name in reversed(header)}
    matched = {}
    for ours, aliases in ALIASES.items():
        units = UNITS if ours.endswith("_s") else {"": 1.0}
        there = [(alias + unit, scale) for alias in aliases for unit, scale in units.items() if alias + unit in plain]
        if there:
            matched[ours] = LogColumn(plain[there[0][0]], there[0][1])
    got = names_shown(header)
    missing = [name for name in NEEDED if name not in matched]
    if missing:
        verb = "column {} is" if len(missing) == 1 else "columns {} are"
        remedy = f"{missing[0]} may also be called {', '.join(ALIASES[missing[0]][:6])}"
        raise TraceError(f"{path}: {verb.format(', '.join(missing))} missing, got {got}; {remedy}")
    if not matched.keys() & set(METRICS):
        raise TraceError(f"{path}: must have some of {', '.join(METRICS)}, got {got}; nothing can be compared")
    return matched


def _log(place: Place, columns: Mapping[str, Values]) -> Log:
    """Build the log from a table's columns; rows without an output token are failed requests."""
    matched = _matched(place.path, list(columns))

    def number(ours: str) -> Floats:
        return numbers(place, matched[ours].name, columns[matched[ours].name])

    arrival_s = _instants(place, matched["arrival_s"], columns[matched["arrival_s"].name])
    prompts, outputs = number("prompt_tokens"), number("output_tokens")
    given = {
        name: times(place, matched[name].name, columns[matched[name].name]) * matched[name].scale
        for name in METRICS
        if name in matched
    }
    is_done = _finished(columns, len(outputs))
    given = {name: np.where(is_done, column, np.nan) for name, column in given.items()}
    most, sentence = _limits(place, matched, columns, outputs)
    kept = np.flatnonzero(outputs != 0)
    kept = kept[np.argsort(arrival_s[kept], kind="stable")]
    measured = {name: column[kept] for name, column in given.items()}
    place, trace = place.take(kept), _trace(arrival_s, prompts, outputs, most).take(kept)
    names = [name for name in PREFIXES if name in columns and is_given(columns[name])]
    shared = {name: [columns[name][row] for row in kept.tolist()] for name in names}
    put_prefixes = prefixes_of(place, shared)
    prefixes = ("requests share prefixes as the log says",) if put_prefixes else ()
    return in_order(
        Log(
            place,
            trace,
            filled_in(place, trace.output_tokens.astype(np.float64), measured),
            n_failed=len(outputs) - len(kept),
            n_unfinished=int(np.count_nonzero(~is_done[kept])),
            assumed=("requests are sent at the times of the log", sentence, *prefixes, *_renamed(matched)),
        ),
        put_prefixes,
    )


def _trace(arrival_s: Floats, prompts: Any, outputs: Any, most: Any) -> Trace:
    """Return a trace with counts as read; sorting it converts them to whole numbers."""
    return Trace(arrival_s, prompts, outputs, most)


def _instants(place: Place, column: LogColumn, values: Values) -> Floats:
    """Convert numbers or dates to seconds."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        values = values.astype("datetime64[ns]").astype(str)
    texts = [value for value in values[:1] if isinstance(value, str)]
    if texts and not _is_number(texts[0]):
        return seconds_since_first(place, column.name, [str(value) for value in values])
    seconds: Floats = numbers(place, column.name, values) * column.scale
    return seconds


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text  # an empty text is a missing number, not a date
    return True


def _finished(columns: Mapping[str, Values], n_rows: int) -> Flags:
    """Mark rows that a simulated run answered; all rows of other logs."""
    words = [str(value or "") for value in columns.get("status", ())]
    if not words or not set(words) <= STATUS:
        return np.ones(n_rows, np.bool_)
    finished: Flags = np.array(words) == "finished"
    return finished


def _limits(
    place: Place, matched: Mapping[str, LogColumn], columns: Mapping[str, Values], outputs: Floats
) -> tuple[NDArray[Any], str]:
    """Return max_tokens of each request and its origin; requests without one are limited by the model."""
    if "max_tokens" not in matched:
        return outputs, "max_tokens of each request is its output length, as benchmarks ignore the end of sequence"
    most = times(place, matched["max_tokens"].name, columns[matched["max_tokens"].name])
    if np.isnan(most).all():
        return np.full(len(most), MOST_TOKENS), "no request has max_tokens: the model's limit applies"
    return np.where(np.isnan(most), MOST_TOKENS, most), "max_tokens is the log's"


def _renamed(matched: Mapping[str, LogColumn]) -> tuple[str, ...]:
    names = [f"{column.name} as {ours}" for ours, column in matched.items() if column.name != ours]
    return (f"columns read under other names: {', '.join(names)}",) if names else ()
