"""Simserve's own format: parquet or CSV with arrival_s, prompt_tokens, output_tokens, and optional columns."""

import csv
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import OutputError, TraceError, UnreadableTrace
from simserve.tables.columns import Lists, taken
from simserve.tables.files import replace_with
from simserve.tables.scratch import PIECE_ROWS
from simserve.workload.readers.base import Place, checked, items, refuse_rows
from simserve.workload.readers.cells import AMOUNT, IDS, NUMBER, SPAN, TEXT, CellKind, numbers
from simserve.workload.readers.csv_rows import columns_of, read_csv, unused
from simserve.workload.readers.prefix_ids import HashIds, PrefixNames, same_in_all
from simserve.workload.readers.text_lines import most_rows
from simserve.workload.trace import MOST_TOKENS, Trace

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
PREFIXES = {"hash_ids": IDS, "hash_block_tokens": AMOUNT, "prefix_id": TEXT, "prefix_tokens": AMOUNT}
KINDS: Mapping[str, CellKind] = {
    **dict.fromkeys((*NEEDED, "priority"), NUMBER),
    **dict.fromkeys(("max_tokens", "turn"), AMOUNT),
    **dict.fromkeys(("request_id", "session_id", "slo_class", "tenant"), TEXT),
    "e2e_s": SPAN,
    **PREFIXES,
}
COLUMNS = ("request_id", *NEEDED, "max_tokens", "session_id", "turn", "priority", "slo_class", "e2e_s", "tenant")
"""What is written, in order; prefixes follow."""

DECIMALS = 9
"""Decimals of seconds in a CSV file: nanoseconds, finer than any public trace."""


def read(path: Path) -> Trace:
    """Read a simserve trace. Raises TraceError."""
    place, columns, header = _parquet(path) if path.suffix == ".parquet" else read_csv(path, KINDS, NEEDED)
    if "request_id" in columns:
        _refuse_duplicates(place, columns["request_id"])
    if "turn" in columns:  # one without a session has none
        is_missing = np.isnan(columns["turn"])
        refuse_rows(place, is_missing & (columns.get("session_id") != ""), "turn must be a number", columns["turn"])
        columns["turn"][is_missing] = 0
    if "max_tokens" in columns:  # one without has no limit
        columns["max_tokens"][np.isnan(columns["max_tokens"])] = MOST_TOKENS
    put_prefixes = prefixes_of(place, {name: columns.pop(name) for name in PREFIXES if name in columns})
    # The columns go with the trace, so that none is held twice.
    trace = [Trace(**{name: columns.pop(name) for name in list(columns)}, notes=unused(header, KINDS))]
    return checked(place, trace.pop(), put_prefixes)


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as CSV or parquet, by the file name's ending. Raises TraceError, OutputError."""
    if trace.dependencies is not None:
        rule = "a trace has arrival times, so its requests cannot wait for answers"
        raise TraceError(f"{path}: {rule}; give next_turn: after_arrival, or keep the structure in a scenario")
    columns: dict[str, Any] = {name: own for name in COLUMNS if (own := getattr(trace, name)) is not None}
    if trace.prefixes is not None:
        columns["hash_ids"] = Lists(*trace.prefixes.ids())
        columns["hash_block_tokens"] = np.full(len(trace), trace.prefixes.block_tokens)
    if path.suffix == ".parquet":
        from simserve.tables.parquet import write_columns  # late: pyarrow is slow to import

        replace_with(path, lambda extra: write_columns(extra, columns))
    elif path.suffix == ".csv":
        replace_with(path, lambda extra: _write_csv(extra, columns))
    else:
        raise TraceError(f"{path}: a trace is written as .csv or .parquet, got '{path.suffix}'; change the ending")


def prefixes_of(place: Place, columns: Mapping[str, Any]) -> Callable[[Place, Trace], Trace] | None:
    """Return the source of prefixes: hash_ids, or prefix_id with prefix_tokens; both need hash_block_tokens."""
    given = [name for name in ("hash_ids", "prefix_id") if name in columns]
    if not given:
        return None
    if len(given) > 1:
        raise TraceError(f"{place.path}: prefixes must come from hash_ids or prefix_id, got both; remove one")
    if "hash_block_tokens" not in columns:
        rule = f"column hash_block_tokens is missing beside {given[0]}"
        raise TraceError(f"{place.path}: {rule}; say how many tokens a block has, the same in all rows")
    block_tokens = same_in_all(place, "hash_block_tokens", columns["hash_block_tokens"])
    if "hash_ids" in columns:
        return HashIds(columns["hash_ids"], block_tokens, of_prompts=False).put
    if "prefix_tokens" not in columns:
        rule = "column prefix_tokens is missing beside prefix_id"
        raise TraceError(f"{place.path}: {rule}; say how many tokens of each prompt are those of its prefix")
    prefix_tokens = numbers(place, "prefix_tokens", columns["prefix_tokens"])
    return PrefixNames(columns["prefix_id"], prefix_tokens, block_tokens).put


def _parquet(path: Path) -> tuple[Place, dict[str, Any], list[str]]:
    columns, names = parquet_columns(path, KINDS.get)
    given = [name for name in names if name in NEEDED or name not in columns or is_given(columns[name])]
    present = columns_of(path, given, KINDS, NEEDED)
    place = items(path, len(columns["arrival_s"]), "row")
    return place, {name: KINDS[name].read(place, name, columns[name]) for name in present}, given


def parquet_columns(path: Path, kind_of: Callable[[str], CellKind | None]) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of a parquet file that have a kind, unchecked, and the names of all. Raises TraceError."""
    from simserve.tables.foreign import read_columns  # late: only tables/ imports pyarrow, which is slow to import

    if not path.is_file():
        what = "must be a file, got a folder; name the file in it" if path.is_dir() else "no such file"
        raise UnreadableTrace(f"{path}: {what}")
    try:
        return read_columns(path, lambda name: None if (kind := kind_of(name)) is None else kind.arrow, most_rows())
    except OutputError as error:
        raise UnreadableTrace(str(error)) from None


def is_given(column: Any) -> bool:
    """Return whether a column has values: simserve's tables fill missing columns with nulls."""
    if isinstance(column, Lists):
        return not len(column) or len(column.values) > 0
    return not len(column) or bool((column != "").any() if column.dtype.kind == "U" else not np.isnan(column).all())


def _refuse_duplicates(place: Place, request_id: NDArray[np.str_]) -> None:
    refuse_rows(place, request_id == "", "request_id must be given", request_id)
    _, first, counts = np.unique(request_id, return_index=True, return_counts=True)
    twice = first[counts > 1]
    if len(twice):
        same = request_id == request_id[twice.min()]
        refuse_rows(place, same, "request_id must be unique", request_id.tolist())


def _write_csv(path: Path, columns: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*map(_shown, columns.values()), strict=True))


def _shown(column: Any) -> Iterator[Any]:
    """Yield the cells of a column; lists as numbers separated by spaces."""
    for start in range(0, len(column), PIECE_ROWS):
        rows = taken(column, np.arange(start, min(start + PIECE_ROWS, len(column))))
        if isinstance(rows, Lists):
            texts = list(map(str, rows.values.tolist()))
            yield from (" ".join(texts[first:end]) for first, end in pairwise(rows.offsets.tolist()))
        else:
            yield from (np.round(rows, DECIMALS) if rows.dtype.kind == "f" else rows).tolist()
