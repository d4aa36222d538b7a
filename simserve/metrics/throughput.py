"""Throughput: rates of the window's requests and tokens."""

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags


def throughput(requests: Columns, window: Window) -> dict[str, float]:
    """Return rates per second of the window.

    offered_per_s counts all arrivals; requests_per_s and the token rates count requests that arrived in the window and
    finished at any time; served_per_s counts requests that finished in the window, whenever they arrived.
    """
    counted = requests["status"].is_("finished") & window.has
    n_input = int(requests["prompt_tokens"][counted].sum())
    n_output = int(requests["output_tokens"][counted].sum())
    amounts: dict[str, int] = {
        "offered_per_s": window.n_requests,
        "requests_per_s": int(np.count_nonzero(counted)),
        "served_per_s": int(np.count_nonzero(served(requests, window))),
        "input_tokens_per_s": n_input,
        "output_tokens_per_s": n_output,
        "total_tokens_per_s": n_input + n_output,
    }
    return {name: amount / window.duration_s for name, amount in amounts.items()}


def served(requests: Columns, window: Window) -> Flags:
    """Return which requests finished within the window, whenever they arrived, `(n_requests,)`."""
    start_s, end_s = window.span_s
    finish_s = requests["finish_s"]
    result: Flags = requests["status"].is_("finished") & (finish_s >= start_s) & (finish_s <= end_s)
    return result
