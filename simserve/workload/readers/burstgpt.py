"""BurstGPT: CSV of ChatGPT and GPT-4 calls. Rows with no response tokens are failed calls and are left out.

Source: Wang et al., BurstGPT (2024), CC-BY 4.0. Older files lack Session ID and Elapsed time.
"""

from pathlib import Path

from simserve.workload.readers.base import answered
from simserve.workload.readers.cells import NUMBER, SPAN, TEXT
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.trace import Trace

NEEDED = ("Timestamp", "Request tokens", "Response tokens")
KINDS = dict.fromkeys(NEEDED, NUMBER) | {"Session ID": TEXT, "Elapsed time": SPAN}


def read(path: Path) -> Trace:
    """Read a BurstGPT trace; stamps are seconds. Raises TraceError."""
    place, columns, _ = read_csv(path, KINDS, NEEDED)
    stamps, prompts, outputs = (columns[name] for name in NEEDED)
    sessions, took_s = columns.get("Session ID"), columns.get("Elapsed time")
    trace = Trace(stamps, prompts, outputs, session_id=sessions, e2e_s=took_s)
    return answered(place, trace, "calls (no response tokens)")
