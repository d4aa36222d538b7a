"""Published traces: those of Azure, Mooncake and BurstGPT, and what vLLM's benchmark reads and writes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.tables.columns import Lists
from simserve.workload.readers.base import MS, answered, checked
from simserve.workload.readers.cells import NUMBER, SPAN, STAMP, TEXT, seconds_since_first
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.readers.json_rows import read_lines
from simserve.workload.readers.prefix_ids import MOONCAKE_BLOCK_TOKENS, VLLM_BLOCK_TOKENS, HashIds, given_block_tokens
from simserve.workload.readers.text_lines import head, is_bench_result
from simserve.workload.trace import Trace

AZURE = {"TIMESTAMP": STAMP, "ContextTokens": NUMBER, "GeneratedTokens": NUMBER}
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_azure(path: Path) -> Trace:
    """Read an Azure LLM inference trace of 2023 or 2024, or LMM of 2025; stamps have up to seven fractional digits.
    Raises TraceError.

    Source: Azure Public Dataset, CC-BY 4.0 (Patel et al., Splitwise, ISCA '24).
    """
    place, columns, _ = read_csv(path, AZURE, AZURE)
    return checked(place, Trace(seconds_since_first(columns.pop("TIMESTAMP")), *map(columns.pop, list(columns))))


def read_mooncake(path: Path) -> Trace:
    """Read a Mooncake trace: stamps are milliseconds in steps of 3 s, hash_ids chained. Raises TraceError.

    The last block of a prompt, nearly always partial, has an id too. It is dropped: engines share whole blocks, and
    only a prompt equal to the last token has the same id.
    Source: Mooncake (Qin et al., FAST '25), Apache-2.0.
    """
    return read_lines(path, MS, lambda rows, _: HashIds(rows, MOONCAKE_BLOCK_TOKENS))


def read_burstgpt(path: Path) -> Trace:
    """Read a BurstGPT trace of ChatGPT and GPT-4 calls, in seconds; those without response tokens failed, and are left
    out. Raises TraceError.

    Source: Wang et al., BurstGPT (2024), CC-BY 4.0. Older files lack Session ID and Elapsed time.
    """
    kinds = dict.fromkeys(BURSTGPT, NUMBER) | {"Session ID": TEXT, "Elapsed time": SPAN}
    place, columns, _ = read_csv(path, kinds, BURSTGPT)
    more: dict[str, Any] = {"session_id": columns.get("Session ID"), "e2e_s": columns.get("Elapsed time")}
    return answered(place, Trace(*map(columns.pop, BURSTGPT), **more), "calls (no response tokens)")


def read_vllm(path: Path) -> Trace:
    """Read a timed trace in seconds, or the detailed result file of `vllm bench serve`. Raises TraceError.

    Timed traces, such as the Qwen-Bailian ones, have hash_ids of 16 tokens (vllm-project/vllm pull request 39795), each
    from its own block alone (README of alibaba-edu/qwen-bailian-usagetraces-anon). Mooncake's in seconds have 512.
    """
    if not is_bench_result(head(path)):
        return read_lines(path, 1.0, _hash_ids)
    from simserve.workload.readers.logs.bench import read_trace  # late: it imports arrivals, which traces do not need

    return read_trace(path)


def _hash_ids(rows: Lists, prompt_tokens: NDArray[Any]) -> HashIds:
    block_tokens = given_block_tokens(prompt_tokens, np.diff(rows.offsets)) or VLLM_BLOCK_TOKENS
    return HashIds(rows, block_tokens, may_be_unchained=True)
