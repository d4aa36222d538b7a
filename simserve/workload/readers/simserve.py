"""Simserve's own format: parquet or CSV with arrival_s, prompt_tokens, output_tokens, and optional columns."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import OutputError, TraceError, UnreadableTrace
from simserve.workload.readers.base import Place, checked, items, numbers, refuse_rows, spans_s
from simserve.workload.readers.csv_rows import columns_of, read_csv, unused
from simserve.workload.readers.prefix_ids import HashIds, PrefixNames, same_in_all
from simserve.workload.trace import Trace

WANTED = {
    "arrival_s": True,
    "prompt_tokens": True,
    "output_tokens": True,
    "request_id": False,
    "max_tokens": False,
    "session_id": False,
    "turn": False,
    "e2e_s": False,
    "priority": False,
    "slo_class": False,
    "tenant": False,
    "hash_ids": False,
    "hash_block_tokens": False,
    "prefix_id": False,
    "prefix_tokens": False,
}
TEXTS = ("request_id", "session_id", "slo_class", "tenant")
PREFIXES = ("hash_ids", "hash_block_tokens", "prefix_id", "prefix_tokens")

Columns = dict[str, Sequence[Any] | NDArray[Any]]


def read(path: Path) -> Trace:
    """Read a simserve trace. Raises TraceError."""
    place, columns, header = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    texts = {name: _texts(columns[name]) for name in TEXTS if name in columns}
    if "request_id" in texts:
        _refuse_duplicates(place, texts["request_id"])
    others = (*TEXTS, *PREFIXES, "e2e_s")
    known = {name: numbers(place, name, columns[name]) for name in columns if name not in others}
    if "e2e_s" in columns:
        known["e2e_s"] = spans_s(columns["e2e_s"])
    read_columns: dict[str, Any] = known | texts
    return checked(place, Trace(**read_columns, notes=unused(header, WANTED)), prefixes_of(place, columns))


def prefixes_of(
    place: Place, columns: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> Callable[[Place, Trace], Trace] | None:
    """Return the source of prefixes: hash_ids, or prefix_id with prefix_tokens; both need hash_block_tokens."""
    given = [name for name in ("hash_ids", "prefix_id") if name in columns]
    if not given:
        return None
    if len(given) > 1:
        raise TraceError(f"{place.path}: prefixes must come from hash_ids or prefix_id, got both; remove one")
    missing = [name for name in ("hash_block_tokens", "prefix_tokens") if name not in columns]
    if "hash_block_tokens" in missing:
        rule = f"column hash_block_tokens is missing beside {given[0]}"
        raise TraceError(f"{place.path}: {rule}; say how many tokens a block has, the same in all rows")
    block_tokens = same_in_all(place, "hash_block_tokens", columns["hash_block_tokens"])
    if given == ["hash_ids"]:
        return HashIds([_ids(value) for value in columns["hash_ids"]], block_tokens, of_prompts=False).put
    if missing:
        rule = "column prefix_tokens is missing beside prefix_id"
        raise TraceError(f"{place.path}: {rule}; say how many tokens of each prompt are those of its prefix")
    prefix_tokens = numbers(place, "prefix_tokens", columns["prefix_tokens"])
    return PrefixNames(_texts(columns["prefix_id"]), prefix_tokens, block_tokens).put


def _ids(value: Any) -> Any:
    """Return the ids of a row, in CSV text separated by spaces; anything else is left as it is, to be refused."""
    if isinstance(value, str):
        words = value.split()
        return [int(word) for word in words] if all(map(str.isdecimal, words)) else value
    return value.tolist() if isinstance(value, np.ndarray) else value


def _parquet(path: Path) -> tuple[Place, Columns, list[str]]:
    from simserve.tables.parquet import read_columns  # late: only tables/ imports pyarrow, which is slow to import

    if not path.is_file():
        what = "must be a file, got a folder; name the file in it" if path.is_dir() else "no such file"
        raise UnreadableTrace(f"{path}: {what}")
    try:
        columns = read_columns(path)
    except OutputError as error:
        raise UnreadableTrace(str(error)) from None
    columns = {name: column for name, column in columns.items() if WANTED.get(name) or is_given(column)}
    present = columns_of(path, list(columns), WANTED)
    return items(path, len(columns["arrival_s"]), "row"), {name: columns[name] for name in present}, list(columns)


def is_given(column: Sequence[Any] | NDArray[Any]) -> bool:
    """Return whether a column has values: simserve's tables fill missing columns with nulls."""
    if isinstance(column, np.ndarray) and column.dtype.kind == "f":
        return not len(column) or not np.isnan(column).all()
    return not len(column) or any(value is not None for value in column)


def _csv(path: Path) -> tuple[Place, Columns, list[str]]:
    place, columns, header = read_csv(path, WANTED)
    return place, dict(columns), header


def _texts(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.str_]:
    """Return a column of text; missing cells are empty."""
    return np.array(["" if value is None else str(value) for value in values], np.str_)


def _refuse_duplicates(place: Place, request_id: NDArray[np.str_]) -> None:
    refuse_rows(place, request_id == "", "request_id must be given", request_id)
    _, first, counts = np.unique(request_id, return_index=True, return_counts=True)
    twice = first[counts > 1]
    if len(twice):
        same = request_id == request_id[twice.min()]
        refuse_rows(place, same, "request_id must be unique", request_id.tolist())
