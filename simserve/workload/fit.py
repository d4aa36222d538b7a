"""Fit: a few hundred figures of a real trace, from which similar lengths and rates can be drawn."""

from typing import Any

import numpy as np

from simserve.tables.columns import Ints
from simserve.workload.info import trace_info
from simserve.workload.trace import Trace

N_BINS = 20
"""Bins with equally many requests by prompt length; each has its own output lengths, which keeps the correlation."""

SHARES = (0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995, 1)
"""Shares of the quantiles."""

FEWEST = 200


def fit_profile(trace: Trace, source: str, license: str) -> dict[str, Any]:
    """Return the profile of a trace as plain data. Raises ValueError for fewer than 200 requests."""
    if len(trace) < FEWEST:
        raise ValueError(f"a profile needs at least {FEWEST} requests, got {len(trace)}")
    info = trace_info(trace)
    order = np.argsort(trace.prompt_tokens, kind="stable")
    bins = np.array_split(order, N_BINS)
    return {
        "schema": "simserve-profile/1",
        "source": source,
        "license": license,
        "n_requests": len(trace),
        "rate_per_s": _figure(info["rate_per_s"]),
        "gap_cv": _figure(info["gap_cv"]),
        "index_of_dispersion": {name: _figure(value) for name, value in info["index_of_dispersion"].items()},
        "rank_correlation": _figure(info["rank_correlation"]),
        "shares": list(SHARES),
        "prompt_tokens_by_bin": [_quantiles(trace.prompt_tokens[rows]) for rows in bins],
        "output_tokens_by_bin": [_quantiles(trace.output_tokens[rows]) for rows in bins],
    }


def _quantiles(tokens: Ints) -> list[float]:
    return [round(float(value), 1) for value in np.quantile(tokens, SHARES)]


def _figure(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
