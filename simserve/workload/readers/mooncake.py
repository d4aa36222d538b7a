"""Mooncake traces: JSON lines, timestamp in milliseconds but in steps of 3 s.

Source: Mooncake (Qin et al., FAST '25), Apache-2.0.
"""

from pathlib import Path

from simserve.workload.readers.json_lines import read_lines
from simserve.workload.trace import Trace


def read(path: Path) -> Trace:
    """A Mooncake trace. Raises TraceError."""
    return read_lines(path, seconds_per_stamp=1e-3)
