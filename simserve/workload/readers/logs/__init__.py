"""Logs of real servers, one module per format, and `read_log`, which detects the format."""

import json
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.workload.readers.agents import is_agents
from simserve.workload.readers.base import shown
from simserve.workload.readers.logs import bench, table, weka
from simserve.workload.readers.logs.base import Log
from simserve.workload.readers.logs.glossary import NOTHING, LogReading
from simserve.workload.readers.logs.records import format_of, read_array, read_records
from simserve.workload.readers.logs.steps import is_steps
from simserve.workload.readers.text_lines import head, read_short

KINDS = "give a table of requests (CSV, JSON lines, parquet) or a result of vllm bench serve"


def read_log(path: Path, seed: int = 0, reading: LogReading = NOTHING) -> Log:
    """Read the requests and latencies of a server's log; `seed` draws arrivals that a benchmark did not record. Raises
    TraceError."""
    if not path.is_file():
        raise TraceError(f"{path}: {'is a folder; name the file in it' if path.is_dir() else f'no such file; {KINDS}'}")
    if path.suffix == ".parquet":
        return table.read_parquet(path, reading)
    begun = head(path).lstrip()
    if not begun:
        raise TraceError(f"{path}: must be a log, got an empty file; {KINDS}")
    if is_steps(path):
        rule = "must be a log of requests, got an engine's lines, which tell its steps"
        raise TraceError(f"{path}: {rule}; fit them with simserve calibrate --logs")
    first, *others = begun.splitlines()
    if begun[0] not in "{[" and path.suffix not in (".json", ".jsonl"):
        return table.read_csv_table(path, first, reading)
    if is_agents(begun):
        return weka.read(path)
    if (name := format_of(begun)) is not None:
        return table.of_records(path, read_records(path, name), reading)
    if any(map(str.strip, others)) and _value(first) is not _NONE:
        return table.read_lines(path, reading)
    return _read_document(path, begun, seed, reading)


def _read_document(path: Path, begun: str, seed: int, reading: LogReading) -> Log:
    if any(f'"{key}"' in begun for key in (*bench.LISTS, *bench.SUMMARY)):
        return bench.read(path, seed)
    if begun[0] == "[":
        return table.of_records(path, read_array(path), reading)
    whole = _value(read_short(path))
    if whole is _NONE:
        return table.read_lines(path, reading)  # which reports errors with their place
    if not isinstance(whole, dict):
        raise TraceError(f"{path}: must be one JSON object, or one per line, got {shown(whole)}; {KINDS}")
    return table.of_row(path, whole, reading)


_NONE = object()
"""A text that is not a single JSON value."""


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return _NONE
