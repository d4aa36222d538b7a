"""Host tier: swaps, and prefix hits in host memory and on disk."""

from typing import Any

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts


def host_tier(requests: Columns, window: Window, facts: RunFacts) -> dict[str, Any] | None:
    """Return swaps and hits of the window's requests, bytes and waits of the whole run; None without a host tier."""
    if facts.host_tier is None:
        return None
    n_swaps = requests["n_swaps"][window.has]
    cached, on_host, on_disk = (
        int(requests[f"{where}cached_tokens"][window.has].sum()) for where in ("", "host_", "disk_")
    )
    return {
        "n_swaps": int(n_swaps.sum()),
        "requests_frac": float(np.count_nonzero(n_swaps) / len(n_swaps)) if len(n_swaps) else None,
        "hit_tokens": {"gpu": cached - on_host - on_disk, "host": on_host, "disk": on_disk},
        **vars(facts.host_tier),
    }
