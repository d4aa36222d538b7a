"""Azure LLM inference traces 2023 and 2024, and LMM 2025: CSV TIMESTAMP,ContextTokens,GeneratedTokens[,NumImages].

Source: Azure Public Dataset, CC-BY 4.0 (Patel et al., Splitwise, ISCA '24).
"""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.readers.base import checked, columns_of, numbers, read_text
from simserve.workload.trace import Trace

WANTED = {"TIMESTAMP": True, "ContextTokens": True, "GeneratedTokens": True}


def read(path: Path) -> Trace:
    """An Azure trace; its stamps have up to seven fractional digits. Raises TraceError."""
    rows = [row for row in csv.reader(read_text(path).splitlines()) if row]
    if not rows:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    places = columns_of(path, rows[0], WANTED)
    stamps, prompts, outputs = (
        [row[places[name]] if places[name] < len(row) else "" for row in rows[1:]] for name in WANTED
    )
    rows_of_trace = Trace(
        _seconds(path, stamps),
        numbers(path, "ContextTokens", prompts, first_line=2),
        numbers(path, "GeneratedTokens", outputs, first_line=2),
    )
    return checked(path, rows_of_trace, lines_of=2)


def _seconds(path: Path, stamps: list[str]) -> NDArray[np.float64]:
    """Seconds since the earliest stamp, `(n,)`."""
    try:
        instants = np.array([stamp.removesuffix("+00:00") for stamp in stamps], dtype="datetime64[ns]")
    except ValueError:
        bad = next(i for i, stamp in enumerate(stamps) if not _is_stamp(stamp))
        rule = "TIMESTAMP must be a date and time like 2023-11-16 18:15:46.6805900"
        raise TraceError(f"{path}: line {bad + 2}: {rule}, got '{stamps[bad]}'; correct or remove it") from None
    since = instants - instants.min() if len(instants) else instants - instants
    seconds: NDArray[np.float64] = since.astype(np.float64) / 1e9
    return seconds


def _is_stamp(stamp: str) -> bool:
    try:
        return bool(stamp) and not np.isnat(np.datetime64(stamp.removesuffix("+00:00"), "ns"))
    except ValueError:
        return False
