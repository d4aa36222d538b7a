"""Sessions: times of whole sessions, by hand."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.sessions import sessions
from simserve.metrics.window import Window
from simserve.tables.columns import Categorical

STATUS = ("unfinished", "finished", "rejected", "timed_out")


def facts(rows: list[tuple[str, float, float | None, int]], refused: tuple[int, ...] = (), **columns: Any) -> Any:
    """Of requests (session, sent, answered, requests of the session); the window is from 0 to 10 s."""
    names, sent, answered, planned = zip(*rows, strict=True)
    codes = [2 if i in refused else int(each is not None) for i, each in enumerate(answered)]
    requests: dict[str, Any] = {
        "session_id": np.array(names),
        "session_requests": np.array(planned, np.int64),
        "arrival_s": np.array(sent, np.float64),
        "finish_s": np.array(answered, np.float64),
        "gave_up_s": np.full(len(rows), np.nan),
        "request_id": np.arange(len(rows)),
        "status": Categorical(np.array(codes, np.int32), STATUS),
    }
    arrival_s = requests["arrival_s"]
    result = sessions(requests | columns, Window(0.0, 10.0, 10.0, "last arrival", arrival_s <= 10))
    return result and result.facts()


def test_a_session_lasts_from_its_first_request_to_its_last_answer_and_thinks_in_between() -> None:
    result = facts([("a", 1.0, 2.0, 2), ("b", 2.0, 2.5, 1), ("a", 4.0, 7.0, 2)])
    assert (result["n"], result["finished"], result["refused"], result["cut"]) == (2, 2, 0, 0)
    assert result["e2e_s"]["max"] == 6.0
    assert result["in_flight_s"]["max"] == 4.0  # 1 to 2 and 4 to 7
    assert result["e2e_s"]["mean"] == pytest.approx((6.0 + 0.5) / 2)
    assert (result["requests_mean"], result["per_s"]) == (1.5, 0.2)


def test_branches_side_by_side_count_once() -> None:
    result = facts([("a", 0.0, 1.0, 4), ("a", 2.0, 6.0, 4), ("a", 2.0, 3.0, 4), ("a", 7.0, 9.0, 4)])
    assert result["e2e_s"]["max"] == 9.0
    assert result["in_flight_s"]["max"] == 7.0  # all but 1 to 2 and 6 to 7


def test_who_is_refused_or_cut_off_has_no_time() -> None:
    result = facts([("a", 0.0, 1.0, 3), ("b", 1.0, 2.0, 2), ("a", 2.0, None, 3), ("c", 3.0, None, 1)], refused=(2,))
    assert (result["n"], result["finished"], result["refused"], result["cut"]) == (3, 0, 1, 2)
    assert result["e2e_s"]["mean"] is None
    assert result["requests_mean"] is None


def test_an_attempt_that_failed_is_time_in_flight_and_no_refusal() -> None:
    # The second turn times out after 3 s, is refused, and answered at the third attempt; that of b is not.
    rows = [("a", 0.0, 1.0, 2), ("a", 2.0, None, 2), ("b", 2.0, None, 1), ("a", 6.0, None, 2), ("a", 8.0, 9.0, 2)]
    gave_up_s, request_id = np.array([np.nan, 5.0, np.nan, np.nan, np.nan]), np.array([0, 1, 2, 1, 1])
    result = facts(rows, refused=(1, 2, 3), gave_up_s=gave_up_s, request_id=request_id)
    assert (result["n"], result["finished"], result["refused"], result["cut"]) == (2, 1, 1, 0)
    assert result["e2e_s"]["max"] == 9.0
    assert result["in_flight_s"]["max"] == 5.0  # 0 to 1, 2 to 5 and 8 to 9


def test_sessions_count_by_their_beginning() -> None:
    result = facts([("a", 9.0, 9.5, 2), ("b", 10.5, 11.0, 1), ("a", 20.0, 21.0, 2)])
    assert (result["n"], result["e2e_s"]["max"]) == (1, 12.0)


def test_requests_of_no_session_are_left_out() -> None:
    assert facts([("", 0.0, 1.0, 1), ("a", 0.5, 1.0, 1)])["n"] == 1
    assert facts([("a", 0.0, 1.0, 1)], session_requests=None) is None
