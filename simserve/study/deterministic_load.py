"""Deterministic load: detects scenarios with the same run for every seed, as with a replayed trace."""

import dataclasses
import weakref
from random import Random
from typing import Any

import numpy as np

from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.workload.load import offered_load

NOTE = "nothing is drawn, so every seed gives the same run: one run of each load, and no interval over seeds"

HEAD = 64
"""Requests that are compared first."""


def is_deterministic(scenario: Scenario) -> bool:
    """Return whether nothing of a run is drawn: no acceptance, no backoff, no replica, and two seeds offer one load.
    Reads or draws that load twice. Raises TraceError, PolicyError as `simulate` does."""
    if _server_draws(scenario):
        return False
    head = _head(scenario)
    return (head is None or _is_same_load(head)) and _is_same_load(scenario)


def check_not_deterministic(scenario: Scenario, option: str, value: object) -> None:
    """Raise SimserveError where seeds are requested and all give the same run."""
    if is_deterministic(scenario):
        rule = "needs runs that differ from seed to seed"
        remedy = "leave it out, or draw something: arrivals, lengths, or spread: uniform of a trace with coarse stamps"
        raise SimserveError(f"{option}: {rule}, got {value} of {scenario.name}, of which nothing is drawn; {remedy}")


def _server_draws(scenario: Scenario) -> bool:
    """Return whether a server or a client draws, whatever the load."""
    retries = scenario.workload.retries
    if retries is not None and retries.jitter > 0:
        return True
    guesses = [setup.speculation.rates for setup in scenario.setups if setup.speculation is not None]
    if any(0 < rate < 1 for rates in guesses for rate in rates):
        return True
    routers = (scenario.build_router(), scenario.build_decode_router())
    return any(_may_draw(router) for router in routers if router is not None)


def _may_draw(router: Any) -> bool:
    """Return whether a router draws from its stream, or keeps it to do so."""
    stream = Random(0)
    before, kept = stream.getstate(), weakref.ref(stream)
    router.begin(stream)
    has_drawn = stream.getstate() != before
    del stream
    return has_drawn or kept() is not None


def _head(scenario: Scenario) -> Scenario | None:
    """Return the scenario with its first requests only; None for a load that is read whole."""
    workload = scenario.workload
    if workload.trace is not None or workload.client is not None:
        return None
    few = workload.model_copy(update={"n_requests": HEAD, "duration_s": None})
    return scenario.model_copy(update={"workload": few})


def _is_same_load(scenario: Scenario) -> bool:
    loads = (offered_load(scenario.workload, scenario.seed + i, scenario.base_dir) for i in range(2))
    return _is_same(*(dataclasses.replace(load, draw_more=None, drawn=None) for load in loads))


def _is_same(one: Any, other: Any) -> bool:
    """Compare value by value; NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        names = [field.name for field in dataclasses.fields(one)]
        return all(_is_same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)
