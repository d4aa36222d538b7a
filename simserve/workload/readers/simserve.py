"""Our own format: parquet or CSV with arrival_s, prompt_tokens, output_tokens, and optional columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import OutputError, TraceError
from simserve.workload.readers.base import Place, checked, items, numbers, refuse_rows
from simserve.workload.readers.csv_rows import columns_of, read_csv, unused
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

Columns = dict[str, Sequence[Any] | NDArray[Any]]


def read(path: Path) -> Trace:
    """A trace of ours. Raises TraceError."""
    place, columns, header = _parquet(path) if path.suffix == ".parquet" else read_csv(path, WANTED)
    texts = {name: _texts(columns[name]) for name in TEXTS if name in columns}
    if "request_id" in texts:
        _refuse_duplicates(place, texts["request_id"])
    known = {name: numbers(place, name, columns[name]) for name in columns if name not in TEXTS}
    read_columns: dict[str, Any] = known | texts
    return checked(place, Trace(**read_columns, notes=unused(header, WANTED)))


def _parquet(path: Path) -> tuple[Place, Columns, list[str]]:
    from simserve.tables.parquet import read_columns  # late: only tables/ knows pyarrow, which is slow to import

    if not path.is_file():
        what = "must be a file, got a folder; name the file in it" if path.is_dir() else "no such file"
        raise TraceError(f"{path}: {what}")
    try:
        columns = read_columns(path)
    except OutputError as error:
        raise TraceError(str(error)) from None
    found = columns_of(path, list(columns), WANTED)
    return items(path, len(columns["arrival_s"]), "row"), {name: columns[name] for name in found}, list(columns)


def _texts(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.str_]:
    """A column of text; what is missing is empty."""
    return np.array(["" if value is None else str(value) for value in values], np.str_)


def _refuse_duplicates(place: Place, request_id: NDArray[np.str_]) -> None:
    refuse_rows(place, request_id == "", "request_id must be given", request_id)
    _, first, counts = np.unique(request_id, return_index=True, return_counts=True)
    twice = first[counts > 1]
    if len(twice):
        same = request_id == request_id[twice.min()]
        refuse_rows(place, same, "request_id must be unique", request_id.tolist())
