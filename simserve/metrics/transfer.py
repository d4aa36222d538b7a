"""Transfer: what handing requests over to decode replicas took, and which of prefill, link and decode holds them up."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.metrics.stats import distribution, level_name
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Floats
from simserve.tables.facts import LinkFacts, RunFacts

WORTH_NAMING_S = 1e-3
"""A mean wait below that holds nobody up."""

BACKED_UP = 4.0
"""A queue before prefill up to so many times as long as the wait behind it is that wait's doing: prompts that are not
fetched hold the blocks that new ones need."""


def transfer(requests: Columns, window: Window, facts: RunFacts) -> dict[str, Any] | None:
    """Of the window's requests that were handed over; None without prefill and decode pools."""
    if facts.link is None:
        return None
    handed = window.has & (requests["prefill_replica"] >= 0)
    total_s, room_s = requests["transfer_s"][handed], requests["transfer_wait_s"][handed]
    found = distribution(total_s)
    waits_s = {
        "prefill": _mean(requests["queue_s"][window.has]),
        "link": _mean(total_s - room_s),
        "decode": _mean(room_s),
    }
    return {
        "n": found.n,
        "mean": found.mean,
        **{level_name(level): value for level, value in found.percentiles.items()},
        "bytes": float(requests["prompt_tokens"][handed].sum()) * facts.link.kv_bytes_per_token,
        "link_busy_frac": _busiest_frac(requests, facts.link, facts.end_s),
        "mean_wait_s": waits_s,
        "binds": _binds(waits_s, _mean(requests["tpot_s"][handed])),
    }


def _binds(waits_s: Mapping[str, float], step_s: float) -> str | None:
    """What holds requests up most. Who is handed over waits for the next step anyhow, so that does not count."""
    behind_s = {"link": waits_s["link"], "decode": waits_s["decode"] - step_s}
    slowest = max(behind_s, key=lambda name: behind_s[name])
    if waits_s["prefill"] > max(BACKED_UP * behind_s[slowest], WORTH_NAMING_S):
        return "prefill"
    return slowest if behind_s[slowest] > WORTH_NAMING_S else None


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _busiest_frac(requests: Columns, link: LinkFacts, end_s: float) -> float:
    """Share of the whole run in which the busiest port carried something."""
    handed = (requests["prefill_replica"] >= 0) & (requests["transfer_s"] > 0)
    busy_s = requests["prompt_tokens"][handed] * (link.kv_bytes_per_token / link.bytes_per_s)
    if link.shared:
        most_s = float(busy_s.sum())
    else:
        sides = (requests["prefill_replica"][handed], requests["replica"][handed])
        most_s = max(float(np.bincount(side, busy_s).max(initial=0.0)) for side in sides)
    return min(most_s / end_s, 1.0) if end_s > 0 else 0.0
