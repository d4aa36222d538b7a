"""Readers of trace files, one file a format, and `auto`, which tells them apart by their first line."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from simserve.errors import TraceError
from simserve.plugins.flaws import did_you_mean
from simserve.workload.readers.base import read_text
from simserve.workload.trace import Trace

FORMATS = ("azure", "mooncake", "burstgpt", "vllm", "simserve")


def read_trace(path: Path, format: str = "auto") -> Trace:
    """A trace file as a Trace that starts at its first stamp. Raises TraceError."""
    name = detect(path) if format == "auto" else format
    if name not in FORMATS:
        raise TraceError(
            f"{path}: no such format '{name}', there are {', '.join(FORMATS)}; {did_you_mean(name, FORMATS)}"
        )
    read: Callable[[Path], Trace] = import_module(f"simserve.workload.readers.{name}").read
    return read(path)


def detect(path: Path) -> str:
    """The format of a trace file, from its name and its first line. Raises TraceError."""
    if path.suffix == ".parquet":
        return "simserve"
    text = read_text(path)
    first = text.lstrip().split("\n", 1)[0].strip()
    if not first:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    if first.startswith("{"):
        return "vllm" if '"start_times"' in text or '"input_lens"' in text or '"hash_ids"' not in first else "mooncake"
    if first.startswith("TIMESTAMP,"):
        return "azure"
    if first.startswith("Timestamp,"):
        return "burstgpt"
    if "arrival_s" in first:
        return "simserve"
    known = "TIMESTAMP,ContextTokens,GeneratedTokens (azure), arrival_s,prompt_tokens,output_tokens (simserve)"
    raise TraceError(f"{path}:1: no known format begins with '{first[:60]}'; name the format, or use {known}")
