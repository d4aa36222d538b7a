"""Demand on a fleet: peak, mean and hourly rates."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.study.deterministic_load import is_deterministic
from simserve.study.fleet import at_scale

HOUR_S = 3600.0

PEAK_LASTS_S = 900.0
"""Simulated time at the peak of a diurnal load; a real peak is shorter."""

PEAK_REQUESTS = (1000, 20_000)
"""Fewest and most requests at the peak; a fifth of PEAK_LASTS_S is simulated in any case."""

PEAK_WARM_UP_S = 60.0


@dataclass(frozen=True)
class Demand:
    """The load of a scenario."""

    kind: Literal["arrivals", "trace", "diurnal"]
    sized: Scenario
    """Scenario with the load to size for: its own, or the peak rate of a diurnal load held steady."""
    mean_load_frac: float = 1.0
    """Mean rate as a share of the rate to size for."""
    hours: tuple[float, ...] = ()
    """Highest rate of each hour as a share of the peak; empty unless the load is diurnal."""

    @cached_property
    def is_deterministic(self) -> bool:
        """Return whether every seed gives the same run."""
        return is_deterministic(self.sized)


def demand_of(scenario: Scenario) -> Demand:
    """Return the demand of a scenario; raise SimserveError for a load without a rate."""
    workload = scenario.workload
    if workload.client is not None:
        rule = "a plan needs a demand with a rate, which a closed loop does not have"
        raise SimserveError(f"{scenario.name}: workload.client: {rule}; give arrivals or a trace instead")
    at_scale(scenario, 1.0)  # refuses arrivals without a rate
    if workload.is_replayed:
        return Demand("trace", scenario)
    assert workload.arrivals is not None, "resolved"
    if workload.arrivals["kind"] != "diurnal":
        return Demand("arrivals", scenario)
    rates = np.array(workload.arrivals["rates_per_s"], np.float64)
    peak = float(rates.max())
    hours = _hours(rates / peak, float(workload.arrivals["period_s"]))
    return Demand("diurnal", _at_peak(scenario, peak), float(rates.mean()) / peak, hours)


def _hours(shares: Any, period_s: float) -> tuple[float, ...]:
    """Return the highest share of each hour; rates are linear between points, so it is at a point or an end."""
    n = len(shares)
    at_s = np.linspace(0.0, period_s, n + 1)
    around = np.append(shares, shares[0])
    starts = np.arange(0.0, period_s - 1e-6, HOUR_S)
    highest = []
    for start_s in starts:
        end_s = min(start_s + HOUR_S, period_s)
        inside = around[(at_s >= start_s) & (at_s <= end_s)]
        highest.append(float(max(*np.interp([start_s, end_s], at_s, around), *inside)))
    return tuple(highest)


def _at_peak(scenario: Scenario, peak_per_s: float) -> Scenario:
    """Return the scenario with its highest rate held steady."""
    least, most = PEAK_REQUESTS
    lasts_s = max(least / peak_per_s, PEAK_LASTS_S / 5, min(PEAK_LASTS_S, most / peak_per_s))
    data = scenario.to_dict()
    arrivals = {"kind": "gamma", "rate_per_s": peak_per_s, "burstiness": data["workload"]["arrivals"]["burstiness"]}
    length = {"arrivals": arrivals, "duration_s": PEAK_WARM_UP_S + lasts_s}
    workload = {key: value for key, value in data["workload"].items() if key != "n_requests"} | length
    measure = {"warmup_s": PEAK_WARM_UP_S, "replays": scenario.measure.replays}
    peak = Scenario.from_dict(data | {"workload": workload, "measure": measure})
    return scenario.model_copy(
        update={"workload": peak.workload, "measure": peak.measure}
    )  # keeps the origins of values
