"""Plan demand: how much is asked of a fleet, at its peak, on average and hour by hour."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.study.deterministic_load import is_deterministic
from simserve.study.load_scale import at_scale

HOUR_S = 3600.0

PEAK_LASTS_S = 900.0
"""How long the peak of a diurnal load is simulated: a quarter of an hour of it, which is worse than any real peak."""

PEAK_REQUESTS = (1000, 20_000)
"""But for at least, and as far as that takes more than a fifth of it, at most so many requests."""

PEAK_WARM_UP_S = 60.0


@dataclass(frozen=True)
class Demand:
    """The load of a scenario."""

    kind: Literal["arrivals", "trace", "diurnal"]
    sized: Scenario
    """The scenario with the load to serve: its own, or a steady one at the peak of a diurnal one."""
    mean_load_frac: float = 1.0
    """The mean rate as a share of what is sized for."""
    hours: tuple[float, ...] = ()
    """The highest rate of each hour as a share of the peak; empty unless the load is diurnal."""

    @cached_property
    def is_deterministic(self) -> bool:
        """Every seed gives the same run."""
        return is_deterministic(self.sized)


def demand_of(scenario: Scenario) -> Demand:
    """What a scenario asks. Raises SimserveError where its load has no rate, so that there is no demand."""
    workload = scenario.workload
    if workload.client is not None:
        rule = "a plan needs a demand with a rate, which a closed loop does not have"
        raise SimserveError(f"{scenario.name}: workload.client: {rule}; give arrivals or a trace instead")
    at_scale(scenario, 1.0)  # refuses arrivals without a rate
    if workload.trace is not None:
        return Demand("trace", scenario)
    assert workload.arrivals is not None, "resolved"
    if workload.arrivals["kind"] != "diurnal":
        return Demand("arrivals", scenario)
    rates = np.array(workload.arrivals["rates_per_s"], np.float64)
    peak = float(rates.max())
    hours = _hours(rates / peak, float(workload.arrivals["period_s"]))
    return Demand("diurnal", _at_peak(scenario, peak), float(rates.mean()) / peak, hours)


def _hours(shares: Any, period_s: float) -> tuple[float, ...]:
    """The highest of each hour of the period; linear between the points, so it lies at one of them or at an end."""
    n = len(shares)
    at_s = np.linspace(0.0, period_s, n + 1)
    around = np.append(shares, shares[0])
    starts = np.arange(0.0, period_s - 1e-6, HOUR_S)
    result = []
    for start_s in starts:
        end_s = min(start_s + HOUR_S, period_s)
        inside = around[(at_s >= start_s) & (at_s <= end_s)]
        result.append(float(max(*np.interp([start_s, end_s], at_s, around), *inside)))
    return tuple(result)


def _at_peak(scenario: Scenario, peak_per_s: float) -> Scenario:
    """The scenario with its highest rate all the time."""
    least, most = PEAK_REQUESTS
    lasts_s = max(least / peak_per_s, PEAK_LASTS_S / 5, min(PEAK_LASTS_S, most / peak_per_s))
    data = scenario.to_dict()
    arrivals = {"kind": "gamma", "rate_per_s": peak_per_s, "burstiness": data["workload"]["arrivals"]["burstiness"]}
    length = {"arrivals": arrivals, "duration_s": PEAK_WARM_UP_S + lasts_s}
    workload = {key: value for key, value in data["workload"].items() if key != "n_requests"} | length
    measure = {"warmup_s": PEAK_WARM_UP_S, "replays": 0}
    peak = Scenario.from_dict(data | {"workload": workload, "measure": measure})
    return scenario.model_copy(update={"workload": peak.workload, "measure": peak.measure})  # knows what was written
