"""Prefix cache: how much of their prompts requests found already computed."""

from typing import Any

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns


def prefix_cache(requests: Columns, window: Window) -> dict[str, Any]:
    """Of the window's requests; tokens found again after a preemption do not count."""
    result, prompts = requests["cached_tokens"][window.has], requests["prompt_tokens"][window.has]
    n_tokens = int(prompts.sum())
    return {
        "hit_tokens": int(result.sum()),
        "hit_frac": float(result.sum() / n_tokens) if n_tokens else None,
        "requests_frac": float(np.count_nonzero(result) / len(result)) if len(result) else None,
    }
