"""Convert: writes any trace in simserve's own format."""

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.tables.columns import Lists
from simserve.tables.files import replace_text, replace_with
from simserve.workload.trace import Trace

COLUMNS = (
    "request_id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "session_id",
    "turn",
    "priority",
    "slo_class",
    "e2e_s",
    "tenant",
)

DECIMALS = 9
"""Decimals of seconds in a CSV file: nanoseconds, finer than any public trace."""


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as CSV or parquet, by the file name's ending. Raises TraceError, OutputError."""
    if trace.dependencies is not None:
        rule = "a trace has arrival times, so its requests cannot wait for answers"
        raise TraceError(f"{path}: {rule}; give next_turn: after_arrival, or keep the structure in a scenario")
    columns: dict[str, Any] = {name: getattr(trace, name) for name in COLUMNS}
    columns = {name: column for name, column in columns.items() if column is not None} | _prefix_columns(trace)
    if path.suffix == ".parquet":
        from simserve.tables.parquet import write_columns  # late: pyarrow is slow to import

        replace_with(path, lambda extra: write_columns(extra, columns))
    elif path.suffix == ".csv":
        replace_text(path, _csv_text(columns))
    else:
        raise TraceError(f"{path}: a trace is written as .csv or .parquet, got '{path.suffix}'; change the ending")


def _prefix_columns(trace: Trace) -> dict[str, Any]:
    if trace.prefixes is None:
        return {}
    ids = Lists(*trace.prefixes.ids())
    return {"hash_ids": ids, "hash_block_tokens": np.full(len(trace), trace.prefixes.block_tokens)}


def _csv_text(columns: dict[str, Any]) -> str:
    from io import StringIO

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_shown, columns.values()), strict=True))
    return text.getvalue()


def _shown(column: Any) -> list[Any]:
    """Return the cells of a column; lists as numbers separated by spaces."""
    if isinstance(column, Lists):
        texts, ends = list(map(str, column.values.tolist())), column.offsets.tolist()
        return [" ".join(texts[start:end]) for start, end in pairwise(ends)]
    cells: list[Any] = (np.round(column, DECIMALS) if column.dtype.kind == "f" else column).tolist()
    return cells
