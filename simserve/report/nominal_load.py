"""Nominal load: the load that runs drew against the one that their scenario names, in a sentence."""

from collections.abc import Mapping
from typing import Any

from simserve.metrics.decision import LOAD_TOLERANCE_FRAC
from simserve.report.formats import plural, rate

DECISIONS: dict[str | None, str] = {"met": "meets", "edge": "edge", "missed": "misses"}
"""What a table says of the SLO."""


def at_nominal(load: Mapping[str, Any] | None) -> str:
    """Return `at the nominal 14.4 req/s`; nothing where the load has no nominal rate."""
    if not load or not load["nominal_per_s"]:
        return ""
    return (
        f" at the nominal {rate(load['nominal_per_s'])} {'sessions/s' if load.get('kind') == 'sessions' else 'req/s'}"
    )


def drawn(load: Mapping[str, Any] | None, n_seeds: int) -> str:
    """Return `8 seeds drew 13.9 req/s on average, 3.3% below the nominal 14.4 req/s.`; nothing without nominal rate."""
    if not load or not load["nominal_per_s"]:
        return ""
    off_frac = load["off_frac"]
    average = " on average" if n_seeds > 1 else ""
    by = f"{abs(off_frac) * 100:.1f}% {'below' if off_frac < 0 else 'above'}"
    unit = "req/s" if load.get("kind") != "sessions" else "sessions/s"
    text = f"{rate(load['drawn_per_s'])} {unit}{average}, {by} the nominal {rate(load['nominal_per_s'])} {unit}"
    return f"{plural(n_seeds, 'seed')} drew {text}."


def is_off(load: Mapping[str, Any] | None) -> bool:
    """Return whether the drawn load is too far from the nominal one to stand for it."""
    off_frac = (load or {}).get("off_frac")
    return off_frac is not None and abs(off_frac) > LOAD_TOLERANCE_FRAC
