"""Retries: attempts per request, final outcomes, and wasted computation."""

from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.stats import distribution, level_name
from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.pieces import pieces

if TYPE_CHECKING:
    from simserve.metrics.summary_schema import WastedJson


def retries(requests: Columns, window: Window) -> dict[str, Any]:
    """Return the outcomes of requests with a first attempt in the window; latencies count from the first attempt.

    At most one attempt of a request finishes, as clients retry only without an answer.
    """
    first_sent_s = requests["first_sent_s"]
    is_first = window.has & (requests["attempt"] == 1)
    mine = is_first | ((requests["attempt"] > 1) & (first_sent_s >= window.start_s) & (first_sent_s <= window.end_s))
    met = requests["slo_met"]
    finished = mine & requests["status"].is_("finished")
    n, n_attempts, n_finished = (int(np.count_nonzero(which)) for which in (is_first, mine, finished))
    e2e = distribution((requests["finish_s"] - first_sent_s)[finished])
    return {
        "requests": n,
        "attempts": n_attempts,
        "attempts_per_request": n_attempts / n if n else None,
        "succeeded": n_finished,
        "succeeded_frac": n_finished / n if n else None,
        "slo_met_frac": float(np.count_nonzero(mine & met) / n) if n and met is not None else None,
        "e2e_s": {"n": e2e.n, "mean": e2e.mean, **{level_name(p): v for p, v in e2e.percentiles.items()}},
    }


def wasted(requests: Columns, steps: Columns) -> "WastedJson":
    """Return the tokens computed in vain in the whole run, and their share of all computed tokens."""
    n_tokens = int(requests["wasted_tokens"].sum())
    n_all = 0
    for part in pieces(steps):
        decoded = part["decode_requests"].astype(np.int64) * part["n_steps"]
        n_all += int(part["prefill_tokens"].sum() + decoded.sum() + part["accepted_tokens"].sum())
    return {"tokens": n_tokens, "frac": n_tokens / n_all if n_all else 0.0}
