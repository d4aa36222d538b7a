"""Latencies of each request, from the engine's timestamps."""

import numpy as np

from simserve.tables.columns import Columns, Floats


def latency_columns(requests: Columns) -> dict[str, Floats]:
    """Return queue_s, ttft_s, tpot_s and e2e_s, `(n_requests,)` each; NaN where a timestamp is missing.

    TPOT is (last token - first token) / (output tokens - 1); a request with one output token has none. It is vLLM's
    `tpot`, and the inter-token latency of GuideLLM and AIPerf.
    """
    arrival_s, first_token_s, finish_s = (requests[f"{name}_s"] for name in ("arrival", "first_token", "finish"))
    n_gaps = np.asarray(requests["output_tokens"] - 1, np.float64)
    n_gaps[n_gaps < 1] = np.nan
    return {
        "queue_s": requests["scheduled_s"] - arrival_s,
        "ttft_s": first_token_s - arrival_s,
        "tpot_s": (finish_s - first_token_s) / n_gaps,
        "e2e_s": finish_s - arrival_s,
    }
