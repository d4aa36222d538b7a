"""Claims of `trust` and their warnings, each on either side of its limit."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.reliability import Steadiness, TrustJson, cautions, reliability, too_short
from simserve.metrics.summary_schema import Queue
from simserve.metrics.window import Window
from tests.metrics.stories import Life, Teller, pool_facts, run_facts, tables

LONG = 20_000
"""Requests of a run that has nothing to warn of."""


def assessed(
    n: int = LONG, n_finished: int | None = None, state: Queue = "steady", n_effective: float = 50.0, **more: Any
) -> tuple[TrustJson, list[str]]:
    """Return the claims about a run, and their warnings."""
    facts = run_facts(tables([Life(0, 1)], [Teller([Life(0, 1)])]), pools=more.pop("pools", ()), peak_kv_blocks=(91,))
    window = Window(0.0, 9.0, 9.0, more.pop("ends_with", "last arrival"), np.ones(n, np.bool_), **more)
    n_finished = n if n_finished is None else n_finished
    claims = reliability(facts, window, Steadiness(state, n_effective, (1.0, 2.0, 3.0), 0.25), n_finished)
    return claims, cautions(claims, facts, window, n_finished)


def test_a_long_run_is_not_warned_of() -> None:
    claims, warnings = assessed()
    assert warnings == []
    assert (claims.n_requests, claims.n_effective, claims.free_frac) == (LONG, 50.0, 0.25)
    assert claims.backlog_by_thirds == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({"n": 0}, ["no request arrived"]),
        ({"settled": False}, ["no end of the warm-up"]),
        ({"settled": True}, []),
        ({"state": "growing", "n_effective": 5.0}, ["the backlog grew"]),
        ({"state": "critical", "n_effective": 5.0}, ["the queue hardly ever empties"]),
        ({"n_effective": 49.9}, ["latencies are autocorrelated"]),
        ({"n": 1000, "state": "undetermined", "n_effective": 49.9}, ["latencies are autocorrelated"]),
        ({"n": 999}, ["p99 of 999 requests is a guess"]),
        ({"n": 63, "n_effective": 1.0}, ["p99 of 63 requests is a guess"]),
        ({"n": 64, "n_effective": 1.0}, ["p99 of 64 requests is a guess", "latencies are autocorrelated"]),
        ({"n_finished": LONG - 7}, ["latencies are those of the 19,993 requests that finished; 7 in the window"]),
        ({"ends_with": "last finish"}, ["all requests in the window were sent at one instant"]),
        ({"pools": (pool_facts(kv_verified=False),)}, ["KV cache use reached 91%"]),
    ],
)
def test_each_doubt_is_warned_of(changes: dict[str, Any], starts: list[str]) -> None:
    warnings = assessed(**changes)[1]
    assert len(warnings) == len(starts)
    assert all(text.startswith(start) for text, start in zip(warnings, starts, strict=True))


def test_percentiles_need_ten_values_beyond_them() -> None:
    for n, enough in ((999, (False, False)), (1000, (True, False)), (9_999, (True, False)), (10_000, (True, True))):
        claims, _ = assessed(n_finished=n)
        assert (claims.n_enough_for_p99, claims.n_enough_for_p999) == enough


def test_all_pools_must_be_calibrated_and_verified() -> None:
    good, bad = pool_facts("a"), pool_facts("b", calibrated=False, kv_verified=False)
    claims, _ = assessed(pools=(good,))
    assert claims.calibrated is claims.kv_verified is True
    claims, _ = assessed(pools=(bad,))
    assert (claims.calibrated, claims.kv_verified, claims.kv_limit_is_a_guess) == (False, False, True)


@pytest.mark.parametrize(
    ("n_effective", "remedy"),
    [
        (49.0, "Double the run"),
        (25.0, "Double the run"),
        (24.9, "Make the run 3 times"),
        (0.4, "Make the run 50 times"),
    ],
)
def test_a_short_run_is_to_be_as_long_as_fifty_independent_requests(n_effective: float, remedy: str) -> None:
    text = too_short(1234, n_effective, "steady")
    assert f"1,234 requests carry the information of about {max(n_effective, 1):.0f} independent ones" in text
    assert f"too narrow. {remedy}" in text
    assert "whether the queue is steady cannot be told" in too_short(1234, n_effective, "undetermined")
