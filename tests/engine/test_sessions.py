"""Sessions by hand: send times after answers."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Offered
from simserve.engine.recorder import REJECTED
from simserve.engine.tabulate import tabulate
from simserve.errors import SimserveError
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.tables.columns import Columns
from simserve.units import PS_PER_S
from simserve.workload.trace import Dependencies, Prefixes, Trace
from tests.doubles import MS, LineCost, instants, replica_setup, trace

TEN_MS = LineCost(step=10 * MS)
"""Every step takes 10 ms: a request of n output tokens that starts at once takes n steps."""


def waiting(load: Trace, awaited: dict[int, list[int]], think_ms: dict[int, float] | None = None) -> Trace:
    """Return the load with dependencies and think times."""
    pairs = np.array([(row, other) for row, others in awaited.items() for other in others], np.int64).reshape(-1, 2)
    think_s = np.zeros(len(load))
    for row, ms in (think_ms or {}).items():
        think_s[row] = ms / 1000
    return replace(load, dependencies=Dependencies.from_pairs(pairs[:, 0], pairs[:, 1], think_s))


def served(load: Trace, users: int | None = None, stop_ms: int | None = None, **more: FrontEnd | int) -> Cluster:
    """Return a finished run on one replica with 4 slots."""
    stop_ps = None if stop_ms is None else stop_ms * MS
    setup = replica_setup(Chunked(max_num_seqs=4), TEN_MS, max_model_len=200)
    front_end = more.get("front_end")
    assert front_end is None or isinstance(front_end, FrontEnd)
    cluster = Cluster([setup], RoundRobin(), Offered(load, users, None, stop_ps), 0, front_end)
    drain_ms = more.get("drain_ms")
    run_cluster(cluster, drain_ms * MS if isinstance(drain_ms, int) else None)
    return cluster


def log(cluster: Cluster) -> list[tuple[int, float, float]]:
    """Return (row, sent, answered) in milliseconds, in the order of sending."""
    sent_ms, done_ms = (cluster.rows.arrivals / MS).tolist(), instants(cluster, "finish_ps")
    rows = np.arange(len(cluster.rows))[cluster.sender.rows_sent].tolist()
    return [(row, sent_ms[row], done_ms[row]) for row in rows]


def test_the_next_turn_comes_a_think_time_after_the_answer() -> None:
    load = waiting(trace([0.0] * 3, [8] * 3, [2, 3, 1]), {1: [0], 2: [1]}, {1: 5, 2: 50})
    assert log(served(load)) == [(0, 0, 20), (1, 25, 55), (2, 105, 115)]


def test_the_client_thinks_from_when_it_has_its_answer() -> None:
    load = waiting(trace([0.0] * 2, [8] * 2, [2, 1]), {1: [0]}, {1: 5})
    front_end = FrontEnd(receive_ps=1 * MS, respond_ps=3 * MS)
    assert log(served(load, front_end=front_end)) == [(0, 0, 21), (1, 29, 40)]  # 21 + 3 + 5, in at 30


def test_a_task_fans_out_and_its_next_call_waits_for_the_last_branch() -> None:
    # 0 -> {1 -> 2, 3} -> 4: branches begin a tool's 5 ms after 0; 4 comes 7 ms after the later of 2 and 3.
    outputs = [2, 1, 2, 6, 1]
    load = waiting(trace([0.0] * 5, [8] * 5, outputs), {1: [0], 3: [0], 2: [1], 4: [2, 3]}, {1: 5, 3: 5, 2: 0, 4: 7})
    # 25: 1 and 3 start together; 35: 1 is answered and 2 sent, which joins the steps of 3; 55: 2 ends; 85: 3 ends.
    assert log(served(load)) == [(0, 0, 20), (1, 25, 35), (3, 25, 85), (2, 35, 55), (4, 92, 102)]


def test_sessions_begin_at_their_arrivals_whatever_becomes_of_others() -> None:
    load = waiting(trace([0.0, 0.0, 0.012], [8] * 3, [4, 1, 1]), {1: [0]})
    assert log(served(load)) == [(0, 0, 40), (2, 12, 30), (1, 40, 50)]


def test_of_one_instant_rows_are_sent_in_their_order() -> None:
    load = waiting(trace([0.0, 0.0, 0.02], [8] * 3, [2, 1, 1]), {1: [0]})
    assert [row for row, _, _ in log(served(load))] == [0, 1, 2]


def test_a_session_ends_with_a_turn_that_is_refused() -> None:
    # Row 1 exceeds the model's length; 2 would have followed, 3 is in flight, 4 would follow that.
    load = waiting(trace([0.0] * 5, [8, 500, 8, 8, 8], [1, 1, 1, 3, 1]), {1: [0], 2: [1], 3: [0], 4: [3]})
    cluster = served(load)
    assert log(cluster) == [(0, 0, 10), (1, 10, -1), (3, 10, 40)]
    assert cluster.recorder.n_with(REJECTED) == 1


def test_a_branch_that_still_waits_is_not_sent_once_another_is_refused() -> None:
    load = waiting(trace([0.0] * 3, [8, 500, 8], [1] * 3), {1: [0], 2: [0]}, {2: 30})
    assert [row for row, _, _ in log(served(load))] == [0, 1]


def test_users_run_one_session_after_another() -> None:
    # Two users; sessions 0-1, 2, 3-4. The first to be free (20) takes the third, after 4 ms of thinking.
    load = waiting(trace([0.0] * 5, [8] * 5, [1, 2, 2, 1, 1]), {1: [0], 4: [3]}, {1: 10, 3: 4})
    assert log(served(load, users=2)) == [(0, 0, 10), (2, 0, 20), (1, 20, 40), (3, 24, 40), (4, 40, 50)]


def test_a_user_whose_session_is_refused_begins_the_next() -> None:
    load = waiting(trace([0.0] * 4, [8, 500, 8, 8], [1] * 4), {1: [0], 2: [1]}, {3: 6})
    assert log(served(load, users=1)) == [(0, 0, 10), (1, 10, -1), (3, 16, 26)]


def test_nothing_is_sent_from_the_end_on() -> None:
    load = waiting(trace([0.0, 0.0, 0.025], [8] * 3, [3, 1, 1]), {1: [0]})
    assert [row for row, _, _ in log(served(load, stop_ms=30))] == [0, 2]
    assert [row for row, _, _ in log(served(load, stop_ms=31))] == [0, 2, 1]


def test_a_drain_limit_counts_from_the_last_row_that_could_be_sent() -> None:
    load = waiting(trace([0.0] * 2, [8] * 2, [3, 99]), {1: [0]})
    assert served(load, drain_ms=45).clock.now_ps == 75 * MS


def test_refused_users_that_would_go_on_for_ever_are_told() -> None:
    load = waiting(trace([0.0] * 2, [500] * 2, [1] * 2), {})
    setup = replica_setup(Chunked(), TEN_MS, max_model_len=200)
    offered = Offered(load, 1, lambda _: load, PS_PER_S)
    with pytest.raises(SimserveError, match="every request of the closed loop is refused"):
        run_cluster(Cluster([setup], RoundRobin(), offered, 0))


def test_users_who_go_on_draw_further_sessions() -> None:
    chunk = waiting(trace([0.0] * 2, [8] * 2, [1, 1]), {1: [0]}, {1: 5})
    setup = replica_setup(Chunked(), TEN_MS)
    cluster = Cluster([setup], RoundRobin(), Offered(chunk, 1, lambda _: chunk, 60 * MS), 0)
    run_cluster(cluster)
    assert log(cluster) == [(0, 0, 10), (1, 15, 25), (2, 25, 35), (3, 40, 50), (4, 50, 60)]


def test_a_row_with_its_own_time_has_no_user_and_is_in_no_ones_way() -> None:
    # One user; the third row is sent at 12. The user's second turn, at 15, waits for the step in flight until 22.
    chunk = waiting(trace([0.0] * 2, [8] * 2, [1, 1]), {1: [0]}, {1: 5})
    load = waiting(trace([0.0, 0.0, 0.012], [8] * 3, [1] * 3), {1: [0]}, {1: 5})
    drawn: list[int] = []

    def draw_more(n_rows: int) -> Trace:
        drawn.append(n_rows)
        return chunk

    cluster = Cluster(
        [replica_setup(Chunked(), TEN_MS)], RoundRobin(), Offered(load, 1, draw_more, 60 * MS, n_timed=1), 0
    )
    run_cluster(cluster)
    assert log(cluster) == [(0, 0, 10), (2, 12, 22), (1, 15, 32), (3, 32, 42), (4, 47, 57), (5, 57, 67)]
    assert drawn == [2, 4]


def tables(load: Trace) -> Columns:
    """Return the requests table of a run."""
    cluster = served(load)
    return tabulate(cluster, np.zeros(1, np.int32), ("serve",)).requests


def test_requests_are_listed_in_the_order_of_sending_and_spans_name_their_places() -> None:
    load = waiting(trace([0.0, 0.0, 0.012], [8, 9, 10], [4, 1, 1]), {1: [0]})
    load = replace(load, session_id=np.array(["a", "a", "b"]), turn=np.array([1, 2, 1]))
    cluster = served(load)
    result = tabulate(cluster, np.zeros(1, np.int32), ("serve",))
    assert result.requests["request_id"].tolist() == [0, 1, 2]
    assert result.requests["prompt_tokens"].tolist() == [8, 10, 9]
    assert result.requests["session_id"].tolist() == ["a", "b", "a"]
    assert result.requests["session_requests"].tolist() == [2, 1, 2]
    joined = dict(zip(result.spans["request_id"].tolist(), result.spans["join_s"].tolist(), strict=True))
    assert [joined[i] for i in range(3)] == result.requests["first_token_s"].tolist()


def test_ids_of_the_load_go_with_their_requests() -> None:
    load = waiting(trace([0.0, 0.0, 0.012], [8] * 3, [4, 1, 1]), {1: [0]})
    assert tables(replace(load, request_id=np.array(["x", "y", "z"])))["request_id"].tolist() == ["x", "z", "y"]


def test_the_second_turn_finds_prompt_and_answer_of_the_first_in_the_cache() -> None:
    # 40 + 25 tokens: of 64 computed ones (the last token's keys never are) four blocks are whole.
    ids = Prefixes.from_ids(16, np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int64), np.array([0, 4, 8]))
    load = replace(waiting(trace([0.0] * 2, [40, 75], [25, 1]), {1: [0]}, {1: 1}), prefixes=ids)
    cluster = Cluster([replace(replica_setup(), caches_prefixes=True)], RoundRobin(), Offered(load), 0)
    run_cluster(cluster)
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 64]
