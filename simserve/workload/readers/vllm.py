"""vLLM: a timed trace (JSON lines, seconds), or the detailed result file of `vllm bench serve`.

Timed traces, such as the Qwen-Bailian ones, have hash_ids of 16 tokens (vllm-project/vllm pull request 39795), each
from its own block alone (README of alibaba-edu/qwen-bailian-usagetraces-anon). Mooncake's in seconds have 512.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.tables.columns import Lists
from simserve.workload.readers.base import checked, items
from simserve.workload.readers.cells import NUMBER
from simserve.workload.readers.json_document import read_object
from simserve.workload.readers.json_lines import read_lines
from simserve.workload.readers.prefix_ids import VLLM_BLOCK_TOKENS, HashIds, given_block_tokens
from simserve.workload.readers.text_lines import head
from simserve.workload.trace import Trace

ARRAYS = ("start_times", "input_lens", "output_lens")


def read(path: Path) -> Trace:
    """Read a vLLM trace or bench result. Raises TraceError."""
    if not is_result(head(path)):
        return read_lines(path, 1.0, _hash_ids)
    starts, prompts, outputs = _arrays(path)
    place = items(path, len(starts), "request")
    kept = np.flatnonzero(outputs != 0)
    n_failed = len(outputs) - len(kept)
    notes = (f"{n_failed} failed requests (no output tokens) were left out",) if n_failed else ()
    with np.errstate(over="ignore"):  # an infinite arrival is refused with the others
        arrival_s = starts - starts.min(initial=np.inf)
    trace = Trace(arrival_s, prompts, outputs, notes=notes)
    return checked(place.take(kept), trace.take(kept))


def is_result(text: str) -> bool:
    """Return whether a text is a benchmark result rather than a trace."""
    return '"start_times"' in text or '"input_lens"' in text


def _hash_ids(rows: Lists, prompt_tokens: NDArray[Any]) -> HashIds:
    block_tokens = given_block_tokens(prompt_tokens, np.diff(rows.offsets)) or VLLM_BLOCK_TOKENS
    return HashIds(rows, block_tokens, may_be_unchained=True)


def _arrays(path: Path) -> list[NDArray[Any]]:
    """Return the start times, and the lengths of prompts and outputs."""
    result = read_object(path, dict.fromkeys(ARRAYS, NUMBER))
    missing = [key for key in ARRAYS if not isinstance(result.get(key), np.ndarray)]
    if missing:
        remedy = "run the benchmark with --save-detailed, with a version that writes them"
        raise TraceError(f"{path}: {', '.join(missing)} is missing; {remedy}")
    sizes = {len(result[key]) for key in ARRAYS}
    if len(sizes) > 1:
        got = ", ".join(str(len(result[key])) for key in ARRAYS)
        raise TraceError(f"{path}: {', '.join(ARRAYS)} must have the same length, got {got}; was the file edited?")
    return [result[key] for key in ARRAYS]
