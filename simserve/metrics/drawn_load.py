"""Drawn load: the rate that an arrival process drew, against the rate that it draws on average."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from typing_extensions import TypedDict

from simserve.metrics.decision import LOAD_TOLERANCE_FRAC
from simserve.metrics.summary_schema import Measured, Signed
from simserve.metrics.window import Window


class LoadJson(TypedDict):
    """Drawn against nominal load."""

    kind: Literal["requests", "sessions"]
    nominal_per_s: Annotated[float, Field(gt=0, le=1e18)] | None
    drawn_per_s: Measured
    off_frac: Signed


class ArrivalRates(Protocol):
    """Rates of what an arrival process drew and was expected to draw."""

    @property
    def kind(self) -> str:
        """Requests or sessions."""

    def rates_per_s(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return the drawn and the expected rate between two instants; None where nothing is expected."""


def drawn_load(window: Window, arrivals: ArrivalRates | None, offered_per_s: float) -> dict[str, Any]:
    """Return drawn and nominal rate over the window; nominal is None for traces, closed loops and some plug-ins."""
    rates = None
    if arrivals is not None and window.ends_with == "last arrival":
        rates = arrivals.rates_per_s(window.start_s, window.end_s)
    if arrivals is None or rates is None:
        return {"kind": "requests", "nominal_per_s": None, "drawn_per_s": offered_per_s, "off_frac": None}
    drawn_per_s, nominal_per_s = rates
    off_frac = drawn_per_s / nominal_per_s - 1
    return {"kind": arrivals.kind, "nominal_per_s": nominal_per_s, "drawn_per_s": drawn_per_s, "off_frac": off_frac}


def load_warning(load: Mapping[str, Any]) -> list[str]:
    """Warn where the drawn load is too far from the nominal load for the run to stand for it."""
    off_frac = load.get("off_frac")
    if off_frac is None or abs(off_frac) <= LOAD_TOLERANCE_FRAC:
        return []
    side = "below" if off_frac < 0 else "above"
    unit = "req/s" if load["kind"] == "requests" else "sessions/s"
    rates = f"{load['drawn_per_s']:.3g} against {load['nominal_per_s']:.3g} {unit}"
    return [f"the drawn load is {abs(off_frac):.0%} {side} nominal ({rates}); latencies are those of the drawn load"]
