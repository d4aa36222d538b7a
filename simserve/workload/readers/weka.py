"""Weka/AgentX traces: recorded sessions of coding agents, with subagents inside (readers/logs/weka.py)."""

from pathlib import Path

from simserve.workload.readers.logs.weka import read_recording
from simserve.workload.trace import Trace


def read(path: Path) -> Trace:
    """Read the sessions, and which answers each request waited for. Raises TraceError."""
    return read_recording(path)
