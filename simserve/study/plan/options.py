"""What a plan compares: options of a fleet, for a demand by peak, mean and hourly rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from simserve import catalog
from simserve.errors import CatalogError, Problem, ScenarioError, SimserveError, did_you_mean
from simserve.scenario import Scenario
from simserve.scenario.cards import is_file, load_gpu
from simserve.scenario.cluster import DISAGGREGATED_ONLY
from simserve.study.fleet import at_scale, check_fixed, is_deterministic

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


OF_ONE_SIZE = ("num_gpu_blocks", "host_tier", "calibration")
"""Pool keys that are specific to a GPU and a number of ranks; other options are planned without them."""

OF_PLACES = ("name", "role", "replicas", "gpu")
"""Pool keys that a plan chooses."""


@dataclass(frozen=True)
class Option:
    """GPU type, tensor parallel degree and whether the fleet is disaggregated."""

    gpu: str
    tensor: int
    is_disaggregated: bool
    """Whether prefill and decode run on separate replicas."""

    @property
    def name(self) -> str:
        """Return `h100-sxm TP 2, disaggregated`."""
        return f"{self.gpu} TP {self.tensor}{', disaggregated' if self.is_disaggregated else ''}"

    @property
    def n_pools(self) -> int:
        """Return the number of pools."""
        return 2 if self.is_disaggregated else 1


Replicas = tuple[int, ...]
"""Replicas of each pool: one number, or prefill and decode."""


def options(scenario: Scenario, gpus: Sequence[str], tensors: Sequence[int], *, is_split: bool) -> list[Option]:
    """Return the options to compare; raise SimserveError for a GPU that is neither in the catalog nor a file."""
    check_fixed(scenario, range(len(scenario.cluster.pools)))
    try:
        wanted = [gpu if is_file(gpu) else catalog.load_gpu(gpu).name for gpu in gpus]
    except CatalogError as error:
        raise SimserveError(f"--gpu: {error}") from None
    hows = (False, True) if is_split else (False,)
    cards = dict.fromkeys(wanted or [pool.gpu or scenario.gpu for pool in scenario.cluster.pools])
    degrees = dict.fromkeys(tensors)
    return [Option(gpu, tensor, is_disaggregated) for is_disaggregated in hows for gpu in cards for tensor in degrees]


def usd_per_gpu_hour(result: Sequence[Option], given: Mapping[str, float]) -> dict[str, float]:
    """Return the given price of each GPU, else the catalog's; raise SimserveError for a GPU not compared."""
    cards = list(dict.fromkeys(option.gpu for option in result))
    for gpu, usd in given.items():
        if gpu not in cards:
            raise SimserveError(f"--price: must name a GPU that is compared, got {gpu}; {did_you_mean(gpu, cards)}")
        if not 0 < usd < 1e6:
            raise SimserveError(f"--price {gpu}: must be dollars an hour above 0, got {usd:g}; for example {gpu}=2.5")
    return {gpu: given.get(gpu, load_gpu(gpu).price_per_hour_usd) for gpu in cards}


class Fleets:
    """Fleets of one option, of any size."""

    def __init__(self, scenario: Scenario, option: Option) -> None:
        """Raise SimserveError where the option cannot run `scenario`."""
        self.option = option
        self._data = _data(scenario, option)
        self.least = self.of((1,) * option.n_pools)
        self.gpus_per_replica = self.least.setups[0].gpus_per_replica

    def of(self, replicas: Replicas) -> Scenario:
        """Return the scenario with a fleet."""
        cluster = self._data["cluster"]
        pools = [pool | {"replicas": n} for pool, n in zip(cluster["pools"], replicas, strict=True)]
        return Scenario.from_dict(self._data | {"cluster": cluster | {"pools": pools}})


def refusal(error: SimserveError) -> Problem:
    """Return the first problem of an option."""
    return error.problems[0] if isinstance(error, ScenarioError) else Problem("", str(error))


def _data(scenario: Scenario, option: Option) -> dict[str, Any]:
    """Return the scenario as data without what was resolved for its own fleet."""
    data = scenario.to_dict()
    cluster = {key: value for key, value in data["cluster"].items() if key not in ("pools", *DISAGGREGATED_ONLY)}
    if option.is_disaggregated:
        given = _given(data["cluster"], scenario.origins, "cluster")
        cluster |= {key: given[key] for key in DISAGGREGATED_ONLY if key in given}
    roles = ("prefill", "decode") if option.is_disaggregated else ("both",)
    pools = [_pool(scenario, option, role) for role in roles]
    return data | {"gpu": option.gpu, "cluster": cluster | {"pools": pools}}


def _pool(scenario: Scenario, option: Option, role: str) -> dict[str, Any]:
    """Return the scenario's pool of that role, else its first, adapted to the option."""
    roles = [pool.role for pool in scenario.cluster.pools]
    place = roles.index(role) if role in roles else 0
    own, written = scenario.cluster.pools[place], scenario.to_dict()["cluster"]["pools"][place]
    given = _given(written, scenario.origins, f"cluster.pools.{place}")
    is_own = (own.gpu or scenario.gpu, own.parallel.tensor, own.role) == (option.gpu, option.tensor, role)
    left_out = {*OF_PLACES, *(() if is_own else OF_ONE_SIZE)}
    if (own.gpu or scenario.gpu) == option.gpu or given.get("calibration") == {"file": "none"}:
        left_out.discard("calibration")
    parallel = {**given.get("parallel", {}), "tensor": option.tensor}
    if parallel.get("expert", 1) > 1:  # whole experts on each GPU, on however many there are
        parallel["expert"] = option.tensor * parallel.get("data", 1)
    kept = {key: value for key, value in given.items() if key not in left_out}
    return kept | {"name": own.name if role == own.role else _NAMES[role], "role": role, "parallel": parallel}


_NAMES = {"both": "serve", "prefill": "prefill", "decode": "decode"}


def _given(data: Mapping[str, Any], origins: Mapping[str, str], at: str) -> dict[str, Any]:
    """Return the explicit values of a mapping, without resolved defaults."""
    kept = {}
    for key, value in data.items():
        path = f"{at}.{key}"
        if isinstance(value, Mapping):
            inner = _given(value, origins, path)
            if inner:
                kept[key] = inner
        elif origins.get(path, "explicit") == "explicit":
            kept[key] = value
    return kept


def checked(scenario: Scenario, result: Sequence[Option]) -> dict[Option, Fleets | Problem]:
    """Return the fleets of each option, or why there are none. Raises SimserveError where the model allows none of the
    degrees of tensor parallelism."""
    fleets: dict[Option, Fleets | Problem] = {}
    impossible: list[Problem] = []
    for option in result:
        try:
            fleets[option] = Fleets(scenario, option)
        except (ScenarioError, CatalogError) as error:
            fleets[option] = why = refusal(error)
            impossible += [replace(why, place="--tensor")] if why.value == str(option.tensor) else []
    if len(impossible) == len(result):
        raise ScenarioError(dict.fromkeys(impossible))
    return fleets
