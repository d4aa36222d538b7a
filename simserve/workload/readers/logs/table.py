"""Tables with one request per row: CSV, JSON lines or parquet, under common column names."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.tables.columns import Flags, Floats, taken
from simserve.workload.readers.base import Place, items, names_shown, shown
from simserve.workload.readers.cells import INSTANT, LABEL, NUMBER, TIME, CellKind, read_pieces, seconds_since_first
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.readers.json_rows import cells_of_lines
from simserve.workload.readers.logs import bench
from simserve.workload.readers.logs.base import METRICS, Log, filled_in, in_order
from simserve.workload.readers.simserve import PREFIXES, is_given, parquet_columns, prefixes_of
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

KINDS: Mapping[str, CellKind] = dict.fromkeys((*METRICS, "max_tokens"), TIME) | {
    "arrival_s": INSTANT,
    "prompt_tokens": NUMBER,
    "output_tokens": NUMBER,
}

MOST_KEYS = 1000
"""Limit on the different keys of a file of JSON lines."""


@dataclass(frozen=True)
class LogColumn:
    """A column of the file that matches one of ours."""

    name: str
    scale: float
    """Factor from its unit to ours."""


def read_parquet(path: Path) -> Log:
    """Read a log from parquet, for example simserve's `requests.parquet`. Raises TraceError."""
    names = parquet_columns(path, lambda _: None)[1]
    kinds = _kinds(path, names)
    columns, _ = parquet_columns(path, kinds.get)
    place = items(path, len(next(iter(columns.values()))), "row")
    return _log(place, {name: kinds[name].read(place, name, column) for name, column in columns.items()})


def read_csv_table(path: Path, first: str) -> Log:
    """Read a log from CSV with a header, which is the first line with text. Raises TraceError."""
    kinds = _kinds(path, [name.strip() for name in next(csv.reader([first]))])
    place, columns, _ = read_csv(path, kinds, kinds)
    return _log(place, columns)


def read_lines(path: Path) -> Log:
    """Read a log from JSON lines; keys that a line lacks are missing there. Raises TraceError."""
    names: dict[str, None] = {}

    def noted(path: Path, number: int, line: str) -> Mapping[str, Any]:
        row = _row(path, number, line)
        names.update(dict.fromkeys(row))
        if len(names) > MOST_KEYS:
            raise TraceError(f"{path}:{number}: lines must have at most {MOST_KEYS:,} different keys; is it a log?")
        return row

    for _ in cells_of_lines(path, noted, ()):
        pass
    kinds = _kinds(path, list(names))
    return _log(*read_pieces(path, cells_of_lines(path, _row, kinds), kinds))


def of_row(path: Path, row: Mapping[str, Any]) -> Log:
    """Read a log of one request. Raises TraceError."""
    kinds = _kinds(path, list(row))
    place = items(path, 1, "row")
    return _log(place, {name: kind.read(place, name, [row.get(name)]) for name, kind in kinds.items()})


def _kinds(path: Path, header: Sequence[str]) -> dict[str, CellKind]:
    """Return the kinds of the columns that are read. Raises TraceError if a required one is missing."""
    others = {name: kind for name, kind in ({"status": LABEL} | PREFIXES).items() if name in header}
    return {column.name: KINDS[ours] for ours, column in _matched(path, header).items()} | others


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


def _log(place: Place, columns: Mapping[str, Any]) -> Log:
    """Build the log from a table's columns; rows without an output token are failed requests."""
    matched = _matched(place.path, list(columns))
    read = {ours: columns[column.name] for ours, column in matched.items()}
    is_date = read["arrival_s"].dtype.kind == "M"
    arrival_s = seconds_since_first(read["arrival_s"]) if is_date else read["arrival_s"] * matched["arrival_s"].scale
    prompts, outputs = read["prompt_tokens"], read["output_tokens"]
    is_done = _finished(columns.get("status"), len(outputs))
    given = {name: np.where(is_done, read[name] * matched[name].scale, np.nan) for name in METRICS if name in read}
    most, sentence = _limits(read.get("max_tokens"), outputs)
    kept = np.flatnonzero(outputs != 0)
    kept = kept[np.argsort(arrival_s[kept], kind="stable")]
    measured = {name: column[kept] for name, column in given.items()}
    place, trace = place.take(kept), Trace(arrival_s, prompts, outputs, most).take(kept)
    names = [name for name in PREFIXES if name in columns and is_given(columns[name])]
    shared = {name: taken(columns[name], kept) for name in names}
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


def _finished(status: NDArray[np.str_] | None, n_rows: int) -> Flags:
    """Mark rows that a simulated run answered; all rows of other logs."""
    if status is None or not len(status) or not set(np.unique(status)) <= STATUS:
        return np.ones(n_rows, np.bool_)
    finished: Flags = status == "finished"
    return finished


def _limits(most: Floats | None, outputs: Floats) -> tuple[NDArray[Any], str]:
    """Return max_tokens of each request and its origin; requests without one are limited by the model."""
    if most is None:
        return outputs, "max_tokens of each request is its output length, as benchmarks ignore the end of sequence"
    if np.isnan(most).all():
        return np.full(len(most), MOST_TOKENS), "no request has max_tokens: the model's limit applies"
    return np.where(np.isnan(most), MOST_TOKENS, most), "max_tokens is the log's"


def _renamed(matched: Mapping[str, LogColumn]) -> tuple[str, ...]:
    names = [f"{column.name} as {ours}" for ours, column in matched.items() if column.name != ours]
    return (f"columns read under other names: {', '.join(names)}",) if names else ()
