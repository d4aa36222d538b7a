"""Our own format: parquet or CSV with arrival_s, prompt_tokens, output_tokens, and optional columns."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.readers.base import checked, columns_of, numbers, read_text
from simserve.workload.trace import Trace

WANTED = {
    "arrival_s": True,
    "prompt_tokens": True,
    "output_tokens": True,
    "request_id": False,
    "max_tokens": False,
    "session_id": False,
    "turn": False,
    "priority": False,
    "slo_class": False,
}
TEXTS = ("request_id", "session_id", "slo_class")
NUMBERS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "turn", "priority")


def read(path: Path) -> Trace:
    """A trace of ours. Raises TraceError."""
    columns, first_line = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    known = {name: numbers(path, name, columns[name], first_line) for name in NUMBERS if name in columns}
    texts = {name: np.array([str(value) for value in columns[name]], np.str_) for name in TEXTS if name in columns}
    if "request_id" in texts:
        _refuse_duplicates(path, texts["request_id"], first_line)
    read_columns: dict[str, Any] = known | texts
    return checked(path, Trace(**read_columns), first_line)


def _csv(path: Path) -> tuple[dict[str, list[Any]], int]:
    rows = [row for row in csv.reader(read_text(path).splitlines()) if row]
    if not rows:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    places = columns_of(path, rows[0], WANTED)
    return {name: [row[at] if at < len(row) else "" for row in rows[1:]] for name, at in places.items()}, 2


def _parquet(path: Path) -> tuple[dict[str, list[Any]], int]:
    from simserve.tables.parquet import read_columns  # late: only tables/ knows pyarrow, which is slow to import

    columns = read_columns(path)
    places = columns_of(path, list(columns), WANTED)
    return {name: list(columns[name]) for name in places}, 1


def _refuse_duplicates(path: Path, request_id: NDArray[Any], first_line: int) -> None:
    _, first, counts = np.unique(request_id, return_index=True, return_counts=True)
    if (counts > 1).any():
        twice = request_id[first[counts > 1][0]]
        lines = ", ".join(str(row + first_line) for row in np.flatnonzero(request_id == twice)[:5])
        raise TraceError(f"{path}: line {lines}: request_id must be unique, got '{twice}' more than once; rename them")
