"""Tables with one request per row: CSV, JSON lines or parquet, under common column names."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.tables.columns import Floats, Ints, taken
from simserve.workload.readers import cells
from simserve.workload.readers.base import MS, NS, US, Place, checked, items, names_shown, shown
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.readers.json_rows import cells_of_lines
from simserve.workload.readers.logs import bench
from simserve.workload.readers.logs.base import METRICS, Log, filled_in
from simserve.workload.readers.logs.glossary import NOTHING, LogColumn, LogReading
from simserve.workload.readers.logs.records import LogRecords, flat
from simserve.workload.readers.simserve import PREFIXES, is_given, parquet_columns, prefixes_of
from simserve.workload.trace import MOST_TOKENS, Trace

STATUS = {"finished", "rejected", "timed_out", "failed", "unfinished", ""}
"""Values of `status` that identify a simulated run."""

KINDS: Mapping[str, cells.CellKind] = {
    **dict.fromkeys((*METRICS, "max_tokens"), cells.TIME),
    **dict.fromkeys(("first_token_s", "end_s"), cells.LATER),
    **dict.fromkeys(("session_id", "model", "pod", "version"), cells.TEXT),
    "turn": cells.AMOUNT,
    "arrival_s": cells.INSTANT,
    "prompt_tokens": cells.NUMBER,
    "output_tokens": cells.NUMBER,
}
MORE = {"status": cells.LABEL, "cache_hit": cells.FLAG} | PREFIXES
"""Columns that are read by these names alone."""

FAILED = ("failure", "failed", "error")
"""Values of `status` of requests without an answer, in logs that have others than a simulated run."""

EPOCHS = ((1e17, NS), (1e14, US), (1e11, MS))
"""Sizes from which an epoch without a unit is in nano-, micro- and milliseconds."""

OTHERS_SHOWN = 8
"""Columns without a meaning that a note names."""

MOST_KEYS = 1000
"""Limit on the different keys of a file of JSON lines."""


def read_parquet(path: Path, reading: LogReading = NOTHING) -> Log:
    """Read a log from parquet, for example simserve's `requests.parquet`. Raises TraceError."""
    names = parquet_columns(path, lambda _: None)[1]
    kinds = _kinds(path, names, reading)
    columns, _ = parquet_columns(path, kinds.get)
    place = items(path, len(next(iter(columns.values()))), "row")
    return _log(place, {name: kinds[name].read(place, name, own) for name, own in columns.items()}, names, reading)


def read_csv_table(path: Path, first: str, reading: LogReading = NOTHING) -> Log:
    """Read a log from CSV with a header, which is the first line with text. Raises TraceError."""
    try:
        header = [name.strip() for name in next(csv.reader([first]))]
    except csv.Error as error:
        raise TraceError(f"{path}: must be CSV ({error}); is it a log?") from None
    kinds = _kinds(path, header, reading)
    place, columns, names = read_csv(path, kinds, kinds)
    return _log(place, columns, names, reading)


def read_lines(path: Path, reading: LogReading = NOTHING) -> Log:
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
    kinds = _kinds(path, list(names), reading)
    return _log(*cells.read_pieces(path, cells_of_lines(path, _row, kinds), kinds), list(names), reading)


def of_records(path: Path, records: LogRecords, reading: LogReading = NOTHING) -> Log:
    """Read a log from rows of our columns, or of others. Raises TraceError."""
    names = list(dict.fromkeys(name for row in records.rows for name in row))
    kinds = _kinds(path, names, reading)
    place = Place(path, np.array(records.numbers, np.int64), records.word)
    columns = {name: kind.read(place, name, [row.get(name) for row in records.rows]) for name, kind in kinds.items()}
    log = _log(place, columns, names, reading)
    return replace(log, assumed=(*log.assumed, *(f"{n} left out: {why}" for why, n in records.left_out.items())))


def of_row(path: Path, row: Mapping[str, Any], reading: LogReading = NOTHING) -> Log:
    """Read a log of one request. Raises TraceError."""
    return of_records(path, LogRecords([flat(row)], [1], word="row"), reading)


def _kinds(path: Path, header: Sequence[str], reading: LogReading) -> dict[str, cells.CellKind]:
    """Return the kinds of the columns that are read. Raises TraceError if a required one is missing."""
    others = {name: kind for name, kind in MORE.items() if name in header}
    return {column.name: KINDS[ours] for ours, column in reading.matched(path, header).items()} | others


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: must be one JSON object per line ({error.msg}); was it cut?") from None
    if not isinstance(row, dict):
        raise TraceError(f"{path}:{number}: must be one JSON object per line, got {shown(row)}; correct the line")
    if bench.is_result(row):
        raise TraceError(f"{path}:{number}: must be a request, got the result of a benchmark; give one result per file")
    return flat(row)


def _log(place: Place, columns: dict[str, Any], header: Sequence[str], reading: LogReading) -> Log:
    """Build the log from a table's columns, dropped one by one; rows without a token, or a prompt, are of failures."""
    at = reading.matched(place.path, header)
    read = {ours: columns[column.name] for ours, column in at.items()}
    more = {name: columns[name] for name in MORE if name in columns}
    columns.clear()
    origin = read["arrival_s"].min() if read["arrival_s"].dtype.kind == "M" and len(read["arrival_s"]) else 0
    rows: dict[str, Any] = {"arrival_s": _seconds(read.pop("arrival_s"), at["arrival_s"].scale, origin)}
    rows["prompt_tokens"] = read.pop("prompt_tokens")
    rows["output_tokens"] = read.pop("output_tokens")
    is_done, status = np.ones(len(rows["output_tokens"]), np.bool_), more.get("status", ())
    if len(status) and set(np.unique(status)) <= STATUS:
        is_done = status == "finished"  # as a simulated run says
    elif len(status):
        rows["output_tokens"] = np.where(np.isin(np.char.lower(status), FAILED), 0.0, rows["output_tokens"])
    given = {name: read.pop(name) * (at[name].scale or 1.0) for name in METRICS if name in read}
    for ours, stamps in (("ttft_s", "first_token_s"), ("e2e_s", "end_s")):
        if stamps in read and ours not in given:
            given[ours] = _seconds(read.pop(stamps), at[stamps].scale, origin) - rows["arrival_s"]
    given = {name: np.where(is_done, column, np.nan) for name, column in given.items()}
    rows["max_tokens"], sentence = _limits(read.pop("max_tokens", None), rows["output_tokens"])
    rows |= _sessions(read, given)
    is_cached = more.get("cache_hit", np.zeros(len(is_done), np.bool_))
    gave_up = (rows["prompt_tokens"] == 0) & np.isnan(given.get("ttft_s", 0.0))  # before an answer began
    kept = np.flatnonzero((rows["output_tokens"] != 0) & ~is_cached & ~gave_up)
    kept = kept[np.argsort(rows["arrival_s"][kept], kind="stable")]
    place, rows = place.take(kept), {name: rows.pop(name)[kept] for name in list(rows)}
    shared = {name: taken(more[name], kept) for name in PREFIXES if name in more and is_given(more[name])}
    put_prefixes = prefixes_of(place, shared)
    prefixes = ("requests share prefixes as the log says",) if put_prefixes else ()
    renamed = [f"{column.name} as {ours}" for ours, column in at.items() if column.name != ours]
    n_cached, models = int(is_cached.sum()), _names(read["model"], kept) if "model" in read else ()
    return Log(
        place,
        measured=filled_in(place, rows["output_tokens"], {name: column[kept] for name, column in given.items()}),
        n_failed=len(is_done) - n_cached - len(kept),
        n_unfinished=int(np.count_nonzero(~is_done[kept])),
        assumed=(
            "requests are sent at the times of the log",
            sentence,
            *prefixes,
            *([f"columns read under other names: {', '.join(renamed)}"] if renamed else []),
            *_not_read(header, at),
            *([f"{n_cached} left out: a cache before the server answered"] if n_cached else []),
        ),
        model=models[0] if len(models) == 1 else None,  # none where the log has several
        servers={name: _names(read[name], kept) for name in ("pod", "version") if name in read},
        trace=checked(place, Trace(**{name: rows.pop(name) for name in list(rows)}), put_prefixes),
    )


def _seconds(values: NDArray[Any], scale: float | None, origin: Any) -> Floats:
    """Return instants as seconds, dates since an origin; an epoch without a unit by its size."""
    if values.dtype.kind == "M":
        since: Floats = np.where(np.isnat(values), np.nan, (values - origin).astype(np.float64) / 1e9)
        return since
    if scale is None:
        largest = float(np.nanmax(values, initial=0.0))
        scale = next((factor for least, factor in EPOCHS if largest > least), 1.0)
    return values * scale


def _sessions(read: dict[str, Any], given: Mapping[str, Floats]) -> dict[str, Any]:
    """Return the columns of sessions, with how long answers took, for a trace."""
    if "session_id" not in read:
        return {}
    turns = {"turn": np.nan_to_num(read.pop("turn"))} if "turn" in read else {}
    answers = {"e2e_s": given["e2e_s"]} if "e2e_s" in given else {}
    return {"session_id": read.pop("session_id"), **turns, **answers}


def _names(names: NDArray[np.str_], kept: Ints) -> tuple[str, ...]:
    """Return the different names of all requests."""
    return tuple(each for each in np.unique(names[kept]).tolist() if each)


def _not_read(header: Sequence[str], at: Mapping[str, LogColumn]) -> tuple[str, ...]:
    """Return a note of the columns without a meaning."""
    read = {column.name for column in at.values()} | MORE.keys()
    above = {name.rpartition(".")[0] for name in header}
    others = [name for name in header if name not in read | above]
    more = f" and {len(others) - OTHERS_SHOWN} more" if len(others) > OTHERS_SHOWN else ""
    return (f"columns not read: {names_shown(others[:OTHERS_SHOWN])}{more}",) if others else ()


def _limits(most: Floats | None, outputs: Floats) -> tuple[NDArray[Any], str]:
    """Return max_tokens of each request and its origin; requests without one are limited by the model."""
    if most is None:
        return outputs, "max_tokens of each request is its output length, as benchmarks ignore the end of sequence"
    if np.isnan(most).all():
        return np.full(len(most), MOST_TOKENS), "no request has max_tokens: the model's limit applies"
    return np.where(np.isnan(most), MOST_TOKENS, most), "max_tokens is the log's"
