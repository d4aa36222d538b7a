"""BurstGPT: CSV of ChatGPT and GPT-4 calls. Rows with no response tokens are failed calls and are left out.

Source: Wang et al., BurstGPT (2024), CC-BY 4.0. Older files lack Session ID and Elapsed time.
"""

from pathlib import Path
from typing import Any

from simserve.workload.readers.base import answered
from simserve.workload.readers.cells import NUMBER, SPAN, TEXT
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.trace import Trace

NEEDED = ("Timestamp", "Request tokens", "Response tokens")
KINDS = dict.fromkeys(NEEDED, NUMBER) | {"Session ID": TEXT, "Elapsed time": SPAN}


def read(path: Path) -> Trace:
    """Read a BurstGPT trace; stamps are seconds. Raises TraceError."""
    place, columns, _ = read_csv(path, KINDS, NEEDED)
    more: dict[str, Any] = {"session_id": columns.get("Session ID"), "e2e_s": columns.get("Elapsed time")}
    return answered(place, Trace(*map(columns.pop, NEEDED), **more), "calls (no response tokens)")
