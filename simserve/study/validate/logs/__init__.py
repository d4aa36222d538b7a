"""Logs of real servers, one module per format, and `read_log`, which detects the format."""

import json
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.study.validate.logs import bench, table
from simserve.study.validate.logs.base import Log
from simserve.workload.readers.base import items, read_text, shown

KINDS = "give a table of requests (CSV, JSON lines, parquet) or a result of vllm bench serve"


def read_log(path: Path, seed: int = 0) -> Log:
    """Read the requests and latencies of a server's log; `seed` draws arrivals that a benchmark did not record. Raises
    TraceError."""
    if not path.is_file():
        raise TraceError(f"{path}: {'is a folder; name the file in it' if path.is_dir() else f'no such file; {KINDS}'}")
    if path.suffix == ".parquet":
        return table.read_parquet(path)
    text = read_text(path)
    begun = text.lstrip()
    if not begun:
        raise TraceError(f"{path}: must be a log, got an empty file; {KINDS}")
    if begun[0] not in "{[" and path.suffix not in (".json", ".jsonl"):
        return table.read_csv_table(path, text)
    return _read_json(path, text, seed)


def _read_json(path: Path, text: str, seed: int) -> Log:
    whole = _whole(text)
    if isinstance(whole, dict) and bench.is_result(whole):
        return bench.read(path, whole, seed)
    if isinstance(whole, dict):
        return table.of_rows(items(path, 1, "row"), [whole])
    if whole is not _LINES:
        raise TraceError(f"{path}: must be one JSON object, or one per line, got {shown(whole)}; {KINDS}")
    return table.read_lines(path, text)


_LINES = object()
"""A text that is not a single JSON value: perhaps JSON lines."""


def _whole(text: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return _LINES  # the reader of lines reports errors with their place
