"""BurstGPT: CSV of ChatGPT and GPT-4 calls. Rows with no response tokens are failed calls and are left out.

Source: Wang et al., BurstGPT (2024), CC-BY 4.0. Older files lack Session ID and Elapsed time.
"""

from pathlib import Path

import numpy as np

from simserve.workload.readers.base import checked, numbers, spans_s
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.trace import Trace

WANTED = {
    "Timestamp": True,
    "Request tokens": True,
    "Response tokens": True,
    "Session ID": False,
    "Elapsed time": False,
}


def read(path: Path) -> Trace:
    """Read a BurstGPT trace; stamps are seconds. Raises TraceError."""
    place, columns, _ = read_csv(path, WANTED)
    stamps, prompts, outputs = (
        numbers(place, name, columns[name]) for name in ("Timestamp", "Request tokens", "Response tokens")
    )
    sessions = np.array(columns["Session ID"], np.str_) if "Session ID" in columns else None
    took_s = spans_s(columns["Elapsed time"]) if "Elapsed time" in columns else None
    kept = np.flatnonzero(outputs != 0)
    n_failed = len(outputs) - len(kept)
    notes = (f"{n_failed} failed calls (no response tokens) were left out",) if n_failed else ()
    trace = Trace(stamps, prompts, outputs, session_id=sessions, e2e_s=took_s, notes=notes)
    return checked(place.take(kept), trace.take(kept))
