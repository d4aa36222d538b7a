"""Saturation: told from queues, by a simple first-come-first-served server."""

import numpy as np
import pytest

from simserve.metrics.saturation import backlog_by_thirds, is_saturated
from simserve.metrics.window import Window, measured_window
from simserve.tables.columns import Categorical, Columns
from tests.metrics.stories import STATUS


def served(arrival_s: "np.ndarray[tuple[int], np.dtype[np.float64]]", service_s: float) -> Columns:
    """Requests of one server, first come first served."""
    finish_s, free_s = np.empty(len(arrival_s)), 0.0
    for i, at_s in enumerate(arrival_s):
        free_s = finish_s[i] = max(free_s, at_s) + service_s
    status = Categorical(np.ones(len(arrival_s), np.int32), STATUS)
    return {
        "arrival_s": arrival_s,
        "finish_s": finish_s,
        "gave_up_s": np.full(len(arrival_s), np.nan),
        "status": status,
    }


def poisson(rate_per_s: float, n: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, n))


def window(requests: Columns, warmup_s: float = 0.0) -> Window:
    return measured_window(requests, {"warmup_s": warmup_s}, requests["arrival_s"][-1], requests["finish_s"].max())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_more_than_can_be_served_is_saturated(load: float, seed: int) -> None:
    requests = served(poisson(load, 3000, seed), 1.0)
    assert is_saturated(requests, window(requests))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 0.9])
def test_less_than_can_be_served_is_not(load: float, seed: int) -> None:
    requests = served(poisson(load, 3000, seed), 1.0)
    assert not is_saturated(requests, window(requests))


def test_who_gives_up_is_backlog_no_longer() -> None:
    requests = served(poisson(1.5, 3000, 0), 1.0)
    waits = requests["finish_s"] > requests["arrival_s"] + 20
    requests["gave_up_s"][waits] = requests["arrival_s"][waits] + 20
    requests["finish_s"][waits] = np.nan
    assert not is_saturated(requests, window({**requests, "finish_s": np.nan_to_num(requests["finish_s"])}))


def test_what_is_never_answered_is_backlog() -> None:
    requests = served(poisson(1.0, 300, 0), 0.01)
    requests["finish_s"][100:] = np.nan
    assert is_saturated(requests, window(served(poisson(1.0, 300, 0), 0.01)))


def test_what_is_refused_is_not() -> None:
    requests = served(poisson(1.0, 300, 0), 0.01)
    requests["finish_s"][100:] = np.nan
    requests["status"].codes[100:] = STATUS.index("rejected")
    assert not is_saturated(requests, window(served(poisson(1.0, 300, 0), 0.01)))


def test_a_burst_that_drains_is_not() -> None:
    quiet = np.arange(0.0, 300.0, 2.0)
    burst = np.linspace(100.0, 110.0, 60)
    requests = served(np.sort(np.concatenate([quiet, burst])), 1.0)
    assert not is_saturated(requests, window(requests))


def test_a_closed_loop_is_not() -> None:
    """64 clients: as many are in the system at the end as at the start."""
    finish_s = np.arange(1, 641) * 0.1
    arrival_s = np.concatenate([np.zeros(64), finish_s[:-64]])
    status = Categorical(np.ones(640, np.int32), STATUS)
    gave_up_s = np.full(len(arrival_s), np.nan)
    requests = {"arrival_s": arrival_s, "finish_s": finish_s, "gave_up_s": gave_up_s, "status": status}
    assert not is_saturated(requests, window(requests))


def test_all_at_once_cannot_be_told() -> None:
    requests = served(np.zeros(500), 1.0)
    assert not is_saturated(requests, window(requests))


def test_the_backlog_counts_who_was_there_before_the_window() -> None:
    status = Categorical(np.ones(3, np.int32), STATUS)
    requests = {
        "arrival_s": np.array([0.0, 1.0, 19.0]),
        "finish_s": np.array([5.0, 15.0, 40.0]),
        "gave_up_s": np.full(3, np.nan),
        "status": status,
    }
    # [10, 19]: the second is there until 15, the third never for any time
    assert backlog_by_thirds(requests, window(requests, 10.0)) == pytest.approx((1.0, 2 / 3, 0.0))
