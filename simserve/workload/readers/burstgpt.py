"""BurstGPT: CSV of ChatGPT and GPT-4 calls. Rows with no response tokens are failed calls and are left out.

Source: Wang et al., BurstGPT (2024), CC-BY 4.0. Older files lack Session ID and Elapsed time.
"""

import csv
from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.readers.base import checked, columns_of, numbers, read_text
from simserve.workload.trace import Trace

WANTED = {"Timestamp": True, "Request tokens": True, "Response tokens": True, "Session ID": False}


def read(path: Path) -> Trace:
    """A BurstGPT trace; stamps are seconds. Raises TraceError."""
    rows = [row for row in csv.reader(read_text(path).splitlines()) if row]
    if not rows:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    places = columns_of(path, rows[0], WANTED)
    columns = {name: [row[place] if place < len(row) else "" for row in rows[1:]] for name, place in places.items()}
    outputs = numbers(path, "Response tokens", columns["Response tokens"], first_line=2)
    keep = outputs != 0
    n_failed = int((~keep).sum())
    sessions = np.array(columns["Session ID"], dtype=np.str_) if "Session ID" in columns else None
    trace = Trace(
        numbers(path, "Timestamp", columns["Timestamp"], first_line=2),
        numbers(path, "Request tokens", columns["Request tokens"], first_line=2),
        outputs,
        session_id=sessions,
        notes=(f"{n_failed} failed calls (no response tokens) were left out",) if n_failed else (),
    )
    kept = np.flatnonzero(keep)
    return checked(path, trace.take(kept), lines_of=kept + 2)
