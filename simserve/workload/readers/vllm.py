"""vLLM: a timed trace (JSON lines, seconds), or the detailed result file of `vllm bench serve`.

Timed traces, such as the Qwen-Bailian ones, have hash_ids of 16 tokens (vllm-project/vllm pull request 39795), each
from its own block alone (README of alibaba-edu/qwen-bailian-usagetraces-anon). Mooncake's in seconds have 512.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.tables.columns import Lists
from simserve.workload.readers.json_rows import read_lines
from simserve.workload.readers.prefix_ids import VLLM_BLOCK_TOKENS, HashIds, given_block_tokens
from simserve.workload.readers.text_lines import head, is_bench_result
from simserve.workload.trace import Trace


def read(path: Path) -> Trace:
    """Read a vLLM trace or bench result. Raises TraceError."""
    if not is_bench_result(head(path)):
        return read_lines(path, 1.0, _hash_ids)
    from simserve.workload.readers.logs.bench import read_trace  # late: it imports arrivals, which traces do not need

    return read_trace(path)


def _hash_ids(rows: Lists, prompt_tokens: NDArray[Any]) -> HashIds:
    block_tokens = given_block_tokens(prompt_tokens, np.diff(rows.offsets)) or VLLM_BLOCK_TOKENS
    return HashIds(rows, block_tokens, may_be_unchained=True)
