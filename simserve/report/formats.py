"""How numbers read: milliseconds under a second, grouped thousands, a dash for what never came."""

import math
from collections.abc import Mapping
from typing import Any

NONE = "–"
"""What stands where there is no number."""

LATENCIES = {
    "ttft_s": "Time to first token",
    "tpot_s": "Time per output token",
    "itl_s": "Gap between tokens",
    "e2e_s": "End to end",
    "queue_s": "Time in the queue",
}
"""Latency columns of a summary and their plain names, in the order a reader meets them."""

SHORT = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E", "queue_s": "Queue"}
"""The field's own abbreviations."""


def number(value: Any) -> float | None:
    """The value as a finite float; None for what is missing, null, NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def seconds(value: Any) -> str:
    """A duration with three figures: `38.2 ms`, `412 ms`, `1.24 s`, `35.0 s`, `1 h 02 min`."""
    value_s = number(value)
    if value_s is None:
        return NONE
    if abs(value_s) < 0.9995:
        return f"{_figures(value_s * 1e3)} ms"
    if abs(value_s) < 3600:
        return f"{_figures(value_s)} s"
    minutes = round(value_s / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def span(low: Any, high: Any) -> str:
    """Two durations as a range in one unit: `277–387 ms`, `0.91–1.20 s`; `≥ 277 ms` where the high end is open."""
    low_s, high_s = number(low), number(high)
    if low_s is None:
        return NONE
    if high_s is None:
        return f"≥ {seconds(low_s)}"
    scale, unit = (1e3, "ms") if high_s < 0.9995 else (1.0, "s")
    return f"{_figures(low_s * scale)}–{_figures(high_s * scale)} {unit}"


def share(value: Any) -> str:
    """A share 0..1 as a percentage; what is not all never reads as 100%, what is not none never as 0%."""
    frac = number(value)
    return NONE if frac is None else f"{_percent(frac)}%"


def interval(low: Any, high: Any) -> str:
    """Two shares as a range: `95.1–97.2%`."""
    ends = [number(low), number(high)]
    return NONE if None in ends else "–".join(_percent(end) for end in ends if end is not None) + "%"


def ci_95(low: float, high: float) -> str:
    """Return `95% CI 6.5–9.8%`, with signs where an end is negative: `95% CI -1% to +2.5%`."""
    if low < 0:
        return f"95% CI {signed(low)} to {signed(high)}"
    return f"95% CI {percent(low).removesuffix('%')}–{percent(high)}"


def percent(frac: float) -> str:
    """Return `8.1%` or `25%`."""
    return f"{frac * 100:.2g}%" if abs(frac) < 0.1 else f"{frac * 100:.0f}%"


def signed(frac: float | None) -> str:
    """Return `-8.1%` or `+25%`."""
    if frac is None:
        return NONE
    return "0%" if frac == 0 else f"{frac * 100:+.2g}%" if abs(frac) < 0.1 else f"{frac * 100:+,.0f}%"


def rate(value: Any) -> str:
    """A count or a rate with three figures: `0.42`, `17.8`, `3,401`, `1.21 M`."""
    amount = number(value)
    if amount is None:
        return NONE
    if abs(amount) >= 1e9:
        return f"{_figures(amount / 1e9)} G"
    return f"{_figures(amount / 1e6)} M" if abs(amount) >= 1e6 else _figures(amount)


def count(value: Any) -> str:
    """A whole number with separators: `19,366`."""
    amount = number(value)
    return NONE if amount is None else f"{round(amount):,}"


def amount(value: Any, unit: str) -> str:
    """Return a measure's value in its unit."""
    if unit == "frac":
        return share(value)
    return seconds(value) if unit == "s" else rate(value)


def plural(amount: float | None, noun: str) -> str:
    """`1 request`, `19,366 requests`."""
    return f"{count(amount)} {noun}{'' if amount is not None and round(amount) == 1 else 's'}"


def listed(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def as_sentence(warning: str) -> str:
    """Return a warning with a capital and a full stop, as pages have it."""
    return warning[:1].upper() + warning[1:] + ("" if warning.endswith((".", "!", "?")) else ".")


def slo_terms(slo: Mapping[str, Any]) -> str:
    """`TTFT ≤ 500 ms and TPOT ≤ 50 ms`."""
    return listed([f"{SHORT[key]} ≤ {goal(slo[key])}" for key in SHORT if number(slo.get(key)) is not None])


def goal(value: Any) -> str:
    """A goal that a person set, without the zeros that a measurement has: `500 ms`, `2 s`, `2.5 s`."""
    value_s = number(value)
    if value_s is None:
        return NONE
    return f"{value_s * 1e3:.4g} ms" if value_s < 1 else f"{value_s:.4g} s"


def _percent(frac: float) -> str:
    decimals = 1
    while decimals < 4 and 0 < min(frac, 1 - frac) < 0.5 * 10 ** (-decimals - 2):
        decimals += 1
    if frac > 1 - 1e-9:  # but for a rounding error, all
        return f"{frac * 100:.0f}"
    if frac == 0:
        return "0"
    return ">99.9999" if frac >= 0.9999995 else "<0.0001" if frac < 0.0000005 else f"{frac * 100:.{decimals}f}"


def _figures(value: float) -> str:
    """Three figures, never an exponent: `0.042`, `4.20`, `42.0`, `420`, `4,200`."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 else f"{value:.3f}" if size >= 0.0005 else "<0.001"
