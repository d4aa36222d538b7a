"""Convert: any trace as a file of our own format."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.tables.files import replace_text
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
)

DECIMALS = 9
"""Of seconds in a CSV file: nanoseconds, finer than any public trace."""


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as CSV or parquet, by the ending of the name. Raises TraceError, OutputError."""
    columns: dict[str, Any] = {name: getattr(trace, name) for name in COLUMNS}
    columns = {name: column for name, column in columns.items() if column is not None}
    if path.suffix == ".parquet":
        from simserve.tables.parquet import write_columns  # late: pyarrow is slow to import

        write_columns(path, columns)
    elif path.suffix == ".csv":
        replace_text(path, _csv_text(columns))
    else:
        raise TraceError(f"{path}: a trace is written as .csv or .parquet, got '{path.suffix}'; change the ending")


def _csv_text(columns: dict[str, Any]) -> str:
    from io import StringIO

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    shown = [np.round(c, DECIMALS).tolist() if c.dtype.kind == "f" else c.tolist() for c in columns.values()]
    writer.writerows(zip(*shown, strict=True))
    return text.getvalue()
