"""Info: figures of a trace that matter before replaying it."""

from typing import Any

import numpy as np

from simserve.tables.columns import Floats, Ints
from simserve.workload.sharing import sharing
from simserve.workload.trace import Trace

WINDOWS_S = (1.0, 10.0, 60.0, 300.0)
"""Windows of the index of dispersion."""

LEVELS = (1, 10, 25, 50, 75, 90, 99, 99.9)
FEWEST_WINDOWS = 10


def trace_info(trace: Trace) -> dict[str, Any]:
    """Return rate, burstiness, lengths and shared prefixes of a trace as plain data; None for unknown values."""
    prompts, outputs = trace.prompt_tokens, trace.output_tokens
    duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    return {
        "n_requests": len(trace),
        "duration_s": duration_s,
        "rate_per_s": (len(trace) - 1) / duration_s if duration_s else None,
        "gap_cv": gap_cv(trace.arrival_s),
        "index_of_dispersion": {f"{w:g} s": index_of_dispersion(trace.arrival_s, w) for w in WINDOWS_S},
        "prompt_tokens": _lengths(prompts),
        "output_tokens": _lengths(outputs),
        "rank_correlation": rank_correlation(prompts, outputs),
        "stamp_s": stamp_s(trace),
        "prefixes": sharing(trace),
        "notes": list(trace.notes),
    }


def gap_cv(arrival_s: Floats) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals: 1 for Poisson, larger is burstier."""
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None


def index_of_dispersion(arrival_s: Floats, window_s: float) -> float | None:
    """Return the variance over the mean of arrivals per window: 1 for Poisson at every window (Cox and Lewis 1966)."""
    n_windows = int((arrival_s[-1] - arrival_s[0]) / window_s)
    if n_windows < FEWEST_WINDOWS:
        return None
    window = arrival_s - arrival_s[0]
    window = window[: np.searchsorted(window, n_windows * window_s, side="right")]  # the last one includes its end
    window /= window_s
    np.minimum(np.floor(window, out=window), n_windows - 1, out=window)
    last = np.append(np.flatnonzero(window[1:] != window[:-1]), len(window) - 1)
    counts = np.diff(last, prepend=-1)  # most windows of a long trace are empty
    mean = counts.sum() / n_windows
    variance = ((counts**2).sum() - n_windows * mean**2) / (n_windows - 1)
    return float(variance / mean)


def rank_correlation(first: Ints, second: Ints) -> float | None:
    """Return Spearman's correlation of prompt and output lengths; ties share their mean rank."""
    if len(first) < 2 or first.min() == first.max() or second.min() == second.max():
        return None
    ranks, others = _ranks(first), _ranks(second)
    ranks -= ranks.mean()
    others -= others.mean()
    return float((ranks @ others) / np.sqrt((ranks @ ranks) * (others @ others)))


def stamp_s(trace: Trace) -> float | None:
    """Return the step of the stamps if it is coarser than the gaps between requests, else None."""
    stamps = np.unique(trace.arrival_s)
    if len(stamps) < 2 or len(trace) < 3 * len(stamps):
        return None
    return float(np.median(np.diff(stamps)))


def _ranks(values: Ints) -> Floats:
    counts = np.bincount(values)  # at most MOST_TOKENS
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[values]
    return ranks


def _lengths(tokens: Ints) -> dict[str, float]:
    quantiles = np.percentile(tokens, LEVELS)
    named = {f"p{level:g}": float(value) for level, value in zip(LEVELS, quantiles, strict=True)}
    return {"mean": float(tokens.mean()), "min": float(tokens.min())} | named | {"max": float(tokens.max())}
