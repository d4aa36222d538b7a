"""vLLM: a timed trace (JSON lines, seconds), or the result file of `vllm bench serve` with its detailed arrays."""

import json
from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.readers.base import checked, numbers, read_text
from simserve.workload.readers.json_lines import read_lines
from simserve.workload.trace import Trace

ARRAYS = ("start_times", "input_lens", "output_lens")


def read(path: Path) -> Trace:
    """A vLLM trace or bench result. Raises TraceError."""
    text = read_text(path)
    if '"start_times"' not in text and '"input_lens"' not in text:
        return read_lines(path, seconds_per_stamp=1.0)
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: must be JSON ({error.msg}); was the file cut?") from None
    missing = [key for key in ARRAYS if not isinstance(result.get(key), list)]
    if missing:
        remedy = "run the benchmark with --save-detailed, with a version that writes them"
        raise TraceError(f"{path}: {', '.join(missing)} is missing; {remedy}")
    starts, prompts, outputs = (numbers(path, key, result[key], first_line=1) for key in ARRAYS)
    if not len(starts) == len(prompts) == len(outputs):
        raise TraceError(
            f"{path}: {', '.join(ARRAYS)} must be equally long, got {len(starts)}, {len(prompts)}, {len(outputs)}"
        )
    keep = outputs != 0
    n_failed = int((~keep).sum())
    notes = (f"{n_failed} failed requests (no output tokens) were left out",) if n_failed else ()
    trace = Trace(starts - starts.min(initial=np.inf), prompts, outputs, notes=notes)
    return checked(path, trace.take(np.flatnonzero(keep)))
