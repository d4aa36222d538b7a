"""Prefix cache: the cached share of prompts."""

from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns

if TYPE_CHECKING:
    from simserve.metrics.summary_schema import PrefixHitsJson


def prefix_cache(requests: Columns, window: Window) -> "PrefixHitsJson":
    """Return the hits of the window's requests, without those after a preemption."""
    cached, prompts = requests["cached_tokens"][window.has], requests["prompt_tokens"][window.has]
    n_tokens = int(prompts.sum())
    return {
        "hit_tokens": int(cached.sum()),
        "hit_frac": float(cached.sum() / n_tokens) if n_tokens else None,
        "requests_frac": float(np.count_nonzero(cached) / len(cached)) if len(cached) else None,
    }
