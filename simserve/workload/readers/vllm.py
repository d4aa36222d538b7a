"""vLLM: a timed trace (JSON lines, seconds), or the detailed result file of `vllm bench serve`.

Timed traces, such as the Qwen-Bailian ones, have hash_ids of 16 tokens (vllm-project/vllm pull request 39795), each
from its own block alone (README of alibaba-edu/qwen-bailian-usagetraces-anon). Mooncake's in seconds have 512.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.workload.readers.base import checked, items, numbers, read_text
from simserve.workload.readers.json_lines import read_lines
from simserve.workload.readers.prefix_ids import VLLM_BLOCK_TOKENS, HashIds, given_block_tokens
from simserve.workload.trace import Trace

ARRAYS = ("start_times", "input_lens", "output_lens")


def read(path: Path) -> Trace:
    """Read a vLLM trace or bench result. Raises TraceError."""
    text = read_text(path)
    if not is_result(text):
        return read_lines(path, 1.0, _hash_ids)
    result = _arrays(path, text)
    place = items(path, len(result["start_times"]), "request")
    starts, prompts, outputs = (numbers(place, key, result[key]) for key in ARRAYS)
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


def _hash_ids(rows: list[Any], prompt_tokens: NDArray[Any]) -> HashIds:
    sizes = (given_block_tokens(n, row) for row, n in zip(rows, prompt_tokens.tolist(), strict=True))
    block_tokens = next((n for n in sizes if n is not None), VLLM_BLOCK_TOKENS)
    return HashIds(rows, block_tokens, may_be_unchained=True)


def _arrays(path: Path, text: str) -> dict[str, list[Any]]:
    try:
        result = parse_json(text)
    except json.JSONDecodeError as error:
        remedy = "was the file cut, or does it hold several results?"
        raise TraceError(f"{path}:{error.lineno}: must be one JSON object ({error.msg}); {remedy}") from None
    missing = [key for key in ARRAYS if not isinstance(result, dict) or not isinstance(result.get(key), list)]
    if missing:
        remedy = "run the benchmark with --save-detailed, with a version that writes them"
        raise TraceError(f"{path}: {', '.join(missing)} is missing; {remedy}")
    sizes = {len(result[key]) for key in ARRAYS}
    if len(sizes) > 1:
        got = ", ".join(str(len(result[key])) for key in ARRAYS)
        raise TraceError(f"{path}: {', '.join(ARRAYS)} must have the same length, got {got}; was the file edited?")
    return {key: result[key] for key in ARRAYS}
