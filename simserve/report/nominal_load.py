"""Nominal load: the load that runs drew against the one that their scenario names, in words."""

from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC, probability
from simserve.report.formats import plural, rate
from simserve.report.run_view import RunView

BY_WORD: dict[str | None, str] = {
    "meets": "meets the SLO",
    "likely_meets": "likely meets the SLO",
    "edge": "is on the edge of the SLO",
    "likely_misses": "likely misses the SLO",
    "misses": "misses the SLO",
    "saturated": "is saturated",
}
"""What a sentence says of a decision."""

CALIBRATE_NEXT = "A log of your server decides: simserve calibrate."


def by_cost_error(chance: float, r: float | None) -> str:
    """Return how sure a fleet is, with the error of the costs."""
    return f"With the error of the costs P is {probability(chance)} (r {r or 0.0:.2f})."


def at_nominal(load: NominalLoad | None) -> str:
    """Return `at the nominal 14.4 req/s`; nothing where the load has no nominal rate."""
    if load is None or load.nominal_per_s is None:
        return ""
    return f" at the nominal {rate(load.nominal_per_s)} {unit_of(load)}"


def drawn(load: NominalLoad | None, n_seeds: int) -> str:
    """Return `8 seeds drew 13.9 req/s on average, 3.3% below the nominal 14.4 req/s.`; nothing without nominal rate."""
    if load is None or not load.nominal_per_s:
        return ""
    off_frac = load.off_frac or 0.0
    average = " on average" if n_seeds > 1 else ""
    by = f"{abs(off_frac) * 100:.1f}% {'below' if off_frac < 0 else 'above'}"
    unit = unit_of(load)
    text = f"{rate(load.drawn_per_s)} {unit}{average}, {by} the nominal {rate(load.nominal_per_s)} {unit}"
    return f"{plural(n_seeds, 'seed')} drew {text}."


def is_off(load: NominalLoad | None) -> bool:
    """Return whether the drawn load is too far from the nominal one to stand for it."""
    return load is not None and load.off_frac is not None and abs(load.off_frac) > LOAD_TOLERANCE_FRAC


def drawn_load(reader: RunView) -> str:
    """Return `Latencies are those of the drawn load: 12.2 req/s, 15% below the nominal 14.4 req/s.`"""
    load, nominal_per_s = reader.summary.load, reader.summary.load.nominal_per_s
    unit = unit_of(load)
    if nominal_per_s is None or (reader.replications and unit != "req/s"):
        return ""
    drawn_per_s = reader.number("offered_per_s") if reader.replications else load.drawn_per_s
    off = against((drawn_per_s or 0.0) / nominal_per_s - 1)
    at = f"{rate(drawn_per_s)} {unit}{' on average' if reader.replications else ''}"
    return f"Latencies are those of the drawn load: {at}, {off} the nominal {rate(nominal_per_s)} {unit}."


def at_load(reader: RunView) -> str:
    """Return ` at the nominal 14.4 req/s`, or at the drawn load where the answer is not corrected for it."""
    nominal, unit = reader.summary.load.nominal_per_s, unit_of(reader.summary.load)
    if nominal is None:
        return ""
    off_frac = reader.answer.load_off_frac if reader.answer else None
    if not off_frac:
        return f" at the nominal {rate(nominal)} {unit}"
    return f" at {rate(nominal * (1 + off_frac))} {unit} ({against(off_frac)} the nominal {rate(nominal)} {unit})"


def against(off_frac: float) -> str:
    """Return `15% below`, or `equal to` for what rounds to nothing."""
    if abs(off_frac) < 0.005:
        return "equal to"
    return f"{abs(off_frac):.0%} {'below' if off_frac < 0 else 'above'}"


def unit_of(load: NominalLoad) -> str:
    """Return the unit of a load."""
    return "sessions/s" if load.kind == "sessions" else "req/s"
