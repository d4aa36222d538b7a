"""Logs of requests as traces: any table under names of the glossary, AIPerf, GuideLLM, OpenTelemetry (readers/logs)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.glossary import LogReading
from simserve.workload.trace import Trace


def read(path: Path, names: Mapping[str, str] | None = None) -> Trace:
    """Read the requests of a log, whether it has latencies or not; `names`: columns of the file by ours. Raises
    TraceError."""
    log = read_log(path, 0, LogReading(names or {}, compares=False))
    failed = [f"{log.n_failed} failed requests were left out"] if log.n_failed else []
    return replace(log.trace, notes=(*log.trace.notes, *log.assumed[1:], *failed))
