"""Steadiness: told from the queues of a simple first-come-first-served server, whose load is known."""

from collections import Counter

import numpy as np
import pytest

from simserve.metrics.reliability import Steadiness, _grows, backlog_by_thirds, steadiness
from simserve.metrics.window import Window, measured_window, n_in_system
from simserve.tables.columns import Categorical, Columns, Floats
from tests.metrics.stories import BLOCKED, STATUS


def requests_of(arrival_s: Floats, finish_s: Floats) -> Columns:
    status = Categorical(np.ones(len(arrival_s), np.int32), STATUS)
    gave_up_s = np.full(len(arrival_s), np.nan)
    return {"arrival_s": arrival_s, "finish_s": finish_s, "gave_up_s": gave_up_s, "status": status}


def served(arrival_s: Floats, service_s: Floats | float) -> Columns:
    """Requests of one server, first come first served: who finishes when, by Lindley's recursion in plain words."""
    finish_s, free_s = np.empty(len(arrival_s)), 0.0
    services = np.broadcast_to(service_s, len(arrival_s)).tolist()
    for i, (at_s, lasts_s) in enumerate(zip(arrival_s.tolist(), services, strict=True)):
        free_s = finish_s[i] = max(free_s, at_s) + lasts_s
    return requests_of(arrival_s, finish_s)


def rows_of(requests: Columns) -> Columns:
    """A row an answer, blocked where somebody waits when it begins."""
    arrival_s, finish_s = requests["arrival_s"], requests["finish_s"]
    start_s = np.maximum(arrival_s, np.concatenate([[0.0], finish_s[:-1]]))
    has_come = np.searchsorted(arrival_s, start_s, side="right")
    waiting = has_come > np.arange(len(arrival_s)) + 1
    codes = np.where(waiting, BLOCKED.index("seats"), 0).astype(np.int32)
    replica = np.zeros(len(start_s), np.int32)
    return {"replica": replica, "start_s": start_s, "end_s": finish_s, "blocked_by": Categorical(codes, BLOCKED)}


def poisson(rate_per_s: float, n: int, seed: int) -> Floats:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, n))


def window(requests: Columns, warmup_s: float = 0.0) -> Window:
    end_s = float(np.nanmax(requests["finish_s"]))
    return measured_window(requests, {"warmup_s": warmup_s}, requests["arrival_s"][-1], end_s)


def steadiness_of(requests: Columns, steps: Columns | None = None) -> Steadiness:
    seen = requests | {"n_in_system": n_in_system(requests)}
    return steadiness(seen, rows_of(requests) if steps is None else steps, window(requests), [0])


def m_m_1(load: float, n: int, seed: int) -> Steadiness:
    requests = served(poisson(load, n, seed), np.random.default_rng([seed, 1]).exponential(1.0, n))
    return steadiness_of(requests)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_more_than_can_be_served_grows(load: float, seed: int) -> None:
    assert steadiness_of(served(poisson(load, 3000, seed), 1.0)).state == "growing"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_less_than_can_be_served_is_steady(load: float, seed: int) -> None:
    assert steadiness_of(served(poisson(load, 3000, seed), 1.0)).state == "steady"


def test_m_m_1_is_called_what_it_is() -> None:
    """The rates of docs/statistics.md, on fewer seeds: 60 runs of 10,000 requests at each load."""
    result = {load: Counter(m_m_1(load, 10_000, seed).state for seed in range(60)) for load in (0.7, 0.9, 1.0, 1.1)}
    assert result[0.7]["steady"] >= 59
    assert result[0.9]["steady"] >= 42
    assert result[0.9]["critical"] + result[0.9]["growing"] <= 2
    assert result[1.0]["critical"] >= 40
    assert result[1.0]["steady"] <= 3
    assert result[1.0]["growing"] <= 10
    assert result[1.1]["growing"] >= 56
    assert result[1.1]["steady"] + result[1.1]["undetermined"] == 0


def test_who_gives_up_is_backlog_no_longer() -> None:
    requests = served(poisson(1.5, 3000, 0), 1.0)
    steps = rows_of(requests)
    late = requests["finish_s"] > requests["arrival_s"] + 20
    requests["gave_up_s"][late] = requests["arrival_s"][late] + 20
    requests["finish_s"][late] = np.nan
    assert steadiness_of(requests, steps).state != "growing"


def test_what_is_never_answered_is_backlog_and_what_is_refused_is_not() -> None:
    requests = served(poisson(1.0, 300, 0), 0.01)
    steps = rows_of(requests)
    requests["finish_s"][100:] = np.nan
    assert steadiness_of(requests, steps).state == "growing"
    requests["status"].codes[100:] = STATUS.index("rejected")
    assert steadiness_of(requests, steps).state == "steady"


def test_a_burst_that_drains_does_not_grow() -> None:
    quiet, burst = np.arange(0.0, 300.0, 2.0), np.linspace(100.0, 110.0, 60)
    assert steadiness_of(served(np.sort(np.concatenate([quiet, burst])), 1.0)).state != "growing"


def test_a_start_up_that_levels_off_does_not_grow() -> None:
    arrival_s = np.arange(1000, dtype=np.float64)  # each stays for 300 s, so the backlog rises for a third of the run
    assert steadiness_of(requests_of(arrival_s, arrival_s + 300.5), rows_of(served(arrival_s, 0.1))).state != "growing"


def test_a_closed_loop_is_steady() -> None:
    """64 clients: as many are in the system at the end as at the start."""
    finish_s: Floats = np.arange(1, 6401, dtype=np.float64) * 0.1
    arrival_s = np.concatenate([np.zeros(64), finish_s[:-64]])
    assert steadiness_of(requests_of(arrival_s, finish_s)).state == "steady"


def test_too_few_requests_and_all_at_once_tell_nothing() -> None:
    assert steadiness_of(served(poisson(0.5, 63, 0), 1.0)).state == "undetermined"
    assert steadiness_of(served(np.zeros(500), 1.0)).state == "undetermined"


def test_a_request_finds_who_came_before_and_is_not_gone() -> None:
    requests = requests_of(np.array([0.0, 1.0, 2.0, 2.0, 5.0]), np.array([5.0, np.nan, 3.0, 9.0, 6.0]))
    requests["gave_up_s"][1] = 1.5
    requests["status"].codes[3] = STATUS.index("rejected")
    # at 2 s the second has given up; the fourth is refused, and so is nobody that others find; at 5 s all are gone
    assert n_in_system(requests).tolist() == [0.0, 1.0, 1.0, 2.0, 0.0]


def test_where_hardly_anybody_is_kept_waiting_there_is_no_queue_that_could_be_unsteady() -> None:
    arrival_s = np.arange(300, dtype=np.float64)
    stays_s = np.where(np.arange(300) < 150, 40.5, 20.5)  # the load changes once, so the backlog does
    free = {"replica": np.zeros(0, np.int32), "start_s": np.zeros(0), "end_s": np.zeros(0)}
    free |= {"blocked_by": Categorical(np.zeros(0, np.int32), BLOCKED)}
    result = steadiness_of(requests_of(arrival_s, arrival_s + stays_s), free)
    assert result.n_effective < 20
    assert (result.free_frac, result.state) == (1.0, "steady")
    held_up = {"replica": np.zeros(1, np.int32), "start_s": np.zeros(1), "end_s": np.array([100.0])}
    held_up |= {"blocked_by": Categorical(np.ones(1, np.int32), BLOCKED)}
    assert steadiness_of(requests_of(arrival_s, arrival_s + stays_s), held_up).state == "undetermined"


def test_the_free_share_is_that_of_the_pool_that_is_held_up_most() -> None:
    requests = requests_of(np.linspace(0.0, 10.0, 101), np.linspace(0.0, 10.0, 101) + 0.05)
    codes = np.array([BLOCKED.index("seats"), 0, BLOCKED.index("blocks")], np.int32)
    steps = {
        "replica": np.array([0, 1, 2], np.int32),
        "start_s": np.array([8.0, 0.0, 0.0]),
        "end_s": np.array([20.0, 10.0, 4.0]),  # the first is cut at the end of the window
        "blocked_by": Categorical(codes, BLOCKED),
    }
    seen = requests | {"n_in_system": n_in_system(requests)}
    result = steadiness(seen, steps, window(requests), [0, 0, 1])
    assert result.free_frac == pytest.approx(0.6)  # pool 0: (0.2 + 0) / 2 held up; pool 1: 0.4


@pytest.mark.parametrize("seed", range(60))
def test_no_rounding_takes_the_free_share_below_zero(seed: int) -> None:
    arrival_s = np.linspace(0.0, 7.3, 101)
    ends_s = np.append(np.sort(np.random.default_rng(seed).uniform(0.0, 7.3, 3)), 7.3)
    steps: Columns = {"replica": np.zeros(4, np.int32), "start_s": np.append(0.0, ends_s[:-1]), "end_s": ends_s}
    steps |= {"blocked_by": Categorical(np.ones(4, np.int32), BLOCKED)}
    assert 0.0 <= steadiness_of(requests_of(arrival_s, arrival_s + 0.05), steps).free_frac < 1e-12


def test_the_free_share_is_of_the_time_that_replicas_were_there() -> None:
    requests = requests_of(np.linspace(10.0, 20.0, 101), np.linspace(10.0, 20.0, 101) + 0.05)
    seen = requests | {"n_in_system": n_in_system(requests)}
    steps = {
        "replica": np.array([0, 1, 2], np.int32),
        "start_s": np.array([8.0, 12.0, 11.0]),
        "end_s": np.array([13.0, 15.0, 12.0]),
        "blocked_by": Categorical(np.full(3, BLOCKED.index("seats"), np.int32), BLOCKED),
    }
    both = window(requests, 10.0)
    assert steadiness(seen, steps, both, [0, 0, 1]).free_frac == pytest.approx(1 - (3 + 3) / 20)
    lived_frac = np.array([1.0, 0.5, 0.0])  # the second pool was not there
    assert steadiness(seen, steps, both, [0, 0, 1], lived_frac).free_frac == pytest.approx(1 - (3 + 3) / 15)
    assert steadiness(seen, steps, both, [0, 0, 1], np.zeros(3)).free_frac == 1.0  # nor was the first
    assert np.isnan(steadiness(seen, steps, window(requests, 20.0), [0, 0, 1]).free_frac)
    assert np.isnan(steadiness(seen, steps, both, []).free_frac)


def test_the_backlog_counts_who_was_there_before_the_window() -> None:
    requests = requests_of(np.array([0.0, 1.0, 19.0]), np.array([5.0, 15.0, 40.0]))
    # [10, 19]: the second is there until 15, the third never for any time
    assert backlog_by_thirds(requests, window(requests, 10.0)) == pytest.approx((1.0, 2 / 3, 0.0))


@pytest.mark.parametrize(
    ("backlog", "n_arrived", "grows"),
    [
        ((10, 15, 20), 500, True),
        ((10, 15, 19.9), 500, False),  # by less than ten requests
        ((10, 20, 30), 1000, True),
        ((10, 20, 29.9), 1000, False),  # by less than 2% of the arrivals
        ((10, 20, 25), 100, True),
        ((10, 20, 24.9), 100, False),  # it levels off
        ((10, 10, 20), 100, False),
        ((10, 11, 20), 100, True),
        ((20, 25, 30), 100, True),
        ((20.1, 25, 30.1), 100, False),  # by less than half
    ],
)
def test_a_backlog_grows_that_rises_by_enough_and_goes_on(
    backlog: tuple[float, float, float], n_arrived: int, grows: bool
) -> None:
    assert _grows(backlog, n_arrived) is grows


@pytest.mark.parametrize(
    ("n", "n_effective", "free_frac", "state"),
    [
        (63, 63.0, 1.0, "undetermined"),
        (64, 20.0, 0.5, "steady"),
        (64, 19.9, 0.5, "undetermined"),
        (64, 5.0, 0.9, "steady"),
        (64, 5.0, 0.89, "undetermined"),
        (64, 5.0, 0.0701, "undetermined"),
        (64, 5.0, 0.07, "critical"),
        (40_000, 5.0, 0.035, "critical"),  # 7 over the root of the requests
        (40_000, 5.0, 0.0351, "undetermined"),
    ],
)
def test_the_state_follows_from_independent_requests_and_free_time(
    n: int, n_effective: float, free_frac: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simserve.metrics.reliability.inefficiency", lambda values: len(values) / n_effective)
    monkeypatch.setattr("simserve.metrics.reliability._free_frac", lambda *_: free_frac)
    monkeypatch.setattr("simserve.metrics.reliability.backlog_by_thirds", lambda *_: (1.0, 1.0, 1.0))
    columns = {"n_in_system": np.zeros(n)}
    for ends_with, duration_s, expected in (
        ("last arrival", 9.0, state),
        ("last finish", 9.0, "undetermined"),
        ("last arrival", np.nan, "undetermined"),
        ("last arrival", 0.0, "undetermined"),
        ("last arrival", 0.5, state),
    ):
        window = Window(0.0, 9.0, duration_s, ends_with, np.ones(n, np.bool_))
        result = steadiness(columns, {}, window, [0])
        assert (result.state, result.free_frac, len(result.backlog)) == (expected, free_frac, 3)
        assert result.n_effective == pytest.approx(n_effective)
