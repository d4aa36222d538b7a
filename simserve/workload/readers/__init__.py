"""Readers of trace files (logs and Weka: in logs/), and `auto`, which detects the format."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.plugins.validation import did_you_mean
from simserve.workload.readers import csv_rows, json_rows, prometheus, simserve
from simserve.workload.readers.agents import is_agents
from simserve.workload.readers.logs.records import format_of
from simserve.workload.readers.prefix_ids import VLLM_BLOCK_TOKENS, given_block_tokens
from simserve.workload.readers.text_lines import head, is_bench_result
from simserve.workload.trace import MOST_TOKENS, Trace

FORMATS = ("azure", "mooncake", "burstgpt", "vllm", "simserve", "log", "prometheus", "weka")

READERS = {"azure": csv_rows.read_azure, "burstgpt": csv_rows.read_burstgpt, "simserve": simserve.read}
READERS |= {"mooncake": json_rows.read_mooncake, "vllm": json_rows.read_vllm, "prometheus": prometheus.read}
"""Readers by format; logs, Weka's and results of benchmarks have their own."""

ROWS_LOOKED_AT = 100
"""Lines of JSON read to tell a Mooncake trace from a vLLM one."""


def read_trace(path: Path, format: str = "auto", names: Mapping[str, str] | None = None) -> Trace:
    """Read a trace file as a Trace that starts at its first stamp; `names`: columns of a log by ours. Raises
    TraceError."""
    return replace(read_recording(path, format, names), dependencies=None, is_branch=None)


def read_recording(path: Path, format: str = "auto", names: Mapping[str, str] | None = None) -> Trace:
    """Read a trace file with the answers that its requests waited for, where its format says so. Raises TraceError."""
    if format not in (*FORMATS, "auto"):
        remedy = did_you_mean(format, FORMATS)
        raise TraceError(f"{path}: no such format '{format}', there are {', '.join(FORMATS)}; {remedy}")
    if names and format not in ("auto", "log"):
        raise TraceError(f"{path}: names of columns are for a log, got format {format}; leave the format out")
    name, note = ("log", None) if names else detect(path) if format == "auto" else (format, None)
    if name == "log":
        return _requests(path, names or {})
    if name == "weka":
        from simserve.workload.readers.logs import weka  # late, too

        return weka.read_recording(path)
    if name == "vllm" and is_bench_result(head(path)):
        from simserve.workload.readers.logs import bench  # late: it imports arrivals, which traces do not need

        return bench.read_trace(path)
    trace = READERS[name](path)
    return replace(trace, notes=(note, *trace.notes)) if note else trace


def _requests(path: Path, names: Mapping[str, str]) -> Trace:
    """Read the requests of a log, whether it has latencies or not. Raises TraceError."""
    from simserve.workload.readers.logs import read_log  # late: few traces are logs
    from simserve.workload.readers.logs.glossary import LogReading

    log = read_log(path, 0, LogReading(names, compares=False))
    failed = [f"{log.n_failed} failed requests were left out"] if log.n_failed else []
    return replace(log.trace, notes=(*log.trace.notes, *log.assumed[1:], *failed))


HEADERS = (
    ("azure", ("TIMESTAMP", "ContextTokens")),
    ("burstgpt", ("Timestamp", "Request tokens")),
    ("simserve", ("arrival_s",)),
)
"""Columns that tell formats of CSV apart; any other is a log."""


def detect(path: Path) -> tuple[str, str | None]:
    """Return the format of a trace file, from its name and first lines, and a note if another is possible. Raises
    TraceError."""
    if path.suffix == ".parquet":
        names = simserve.parquet_columns(path, lambda _: None)[1]
        return ("simserve" if "arrival_s" in names else "log"), None
    begun = head(path).lstrip()
    first = begun.split("\n", 1)[0].strip()
    if not first:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    if first[0] in "{[":
        return _json_hint(begun)
    return next((name for name, columns in HEADERS if all(column in first for column in columns)), "log"), None


def _json_hint(text: str) -> tuple[str, str | None]:
    """Tell Mooncake (milliseconds) from vLLM (seconds) by the block size; the stamps do not tell."""
    if prometheus.is_range(text):
        return "prometheus", None
    if is_agents(text):
        return "weka", None
    if text[0] == "[" or format_of(text) is not None:
        return "log", None
    if is_bench_result(text):
        return "vllm", None
    rows = [row for line in text.split("\n", ROWS_LOOKED_AT)[:ROWS_LOOKED_AT] if isinstance(row := _json(line), dict)]
    if rows and not any("input_length" in row for row in rows):
        return "log", None
    hashed = [row for row in rows if isinstance(row.get("hash_ids"), list) and row["hash_ids"]]
    known = [row for row in hashed if type(n := row.get("input_length")) is int and 0 <= n <= MOST_TOKENS]
    n_tokens, n_ids = ([row["input_length"] for row in known], [len(row["hash_ids"]) for row in known])
    block_tokens = given_block_tokens(np.array(n_tokens, np.int64), np.array(n_ids, np.int64))
    if block_tokens is not None:
        return ("vllm" if block_tokens == VLLM_BLOCK_TOKENS else "mooncake"), None
    if hashed:
        return "mooncake", "read as mooncake, timestamps in milliseconds; if they are seconds, say format: vllm"
    return "vllm", "read as vllm, timestamps in seconds; if they are milliseconds, say format: mooncake"


def _json(line: str) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError:
        return None  # the reader of the format reports the error and its place
