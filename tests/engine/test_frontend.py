"""The front end: one request at a time per server, released in order; tokens reach the client a little later."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd, FrontEndQueue
from simserve.engine.recorder import Recorder
from simserve.engine.tabulate import tabulate
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

STEP_OF_10_MS = LineCost(step=10 * MS)


def test_a_server_takes_one_request_at_a_time() -> None:
    intake = FrontEndQueue(FrontEnd(receive_ps=3, token_ps=2), Recorder(3, 1))
    assert [intake.out_ps(0, 0, 5), intake.out_ps(1, 1, 1), intake.out_ps(2, 50, 1)] == [13, 18, 55]


def test_servers_work_side_by_side_and_let_requests_out_in_the_order_of_sending() -> None:
    intake = FrontEndQueue(FrontEnd(token_ps=1, n_servers=2), Recorder(4, 1))
    assert [intake.out_ps(0, 0, 100), intake.out_ps(1, 0, 10), intake.out_ps(2, 0, 10)] == [100, 100, 100]
    assert intake.out_ps(3, 0, 200) == 220  # the second server has been free since 20


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 99)), min_size=1),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from([1, 2**10, 2**14]),
)
@example([(0, 2**50)] * 9, 1, 4, 1)
def test_rows_pass_together_as_one_by_one(
    sent: list[tuple[int, int]], n_servers: int, n_at_once: int, spread: int
) -> None:
    """With 2^50 tokens the work of several rows is beyond 64 bits, and Python's integers go on to the first of them."""
    sent = sorted((at_ps * spread, n_tokens) for at_ps, n_tokens in sent)
    front_end, n = FrontEnd(receive_ps=5, token_ps=2**10, n_servers=n_servers), len(sent)
    one_by_one, together = (FrontEndQueue(front_end, Recorder(n, 1)) for _ in range(2))
    columns = np.array(sent, np.int64).T
    for start in range(0, n, n_at_once):
        part = slice(start, start + n_at_once)
        try:
            expected = [one_by_one.out_ps(row, *sent[row]) for row in range(n)[part]]
        except ValueError:
            with pytest.raises(ValueError, match="invalid value"):
                together.all_out_ps(start, columns[0][part], columns[1][part])
            return
        assert together.all_out_ps(start, columns[0][part], columns[1][part]).tolist() == expected
    assert one_by_one._recorder.columns["routed_ps"].tolist() == together._recorder.columns["routed_ps"].tolist()


def test_a_request_is_scheduled_when_it_is_through_the_door_and_its_tokens_arrive_later() -> None:
    front_end = FrontEnd(receive_ps=4 * MS, token_ps=MS, respond_ps=2 * MS)
    cluster = serve(replica_setup(cost=STEP_OF_10_MS), trace([0.0, 0.0], [1, 2], [1, 2]), front_end=front_end)
    assert instants(cluster, "scheduled_ps") == [5, 15]  # out at 5 and 11; the second waits for the step in flight
    requests = tabulate(cluster, np.zeros(1, np.int32), ("serve",)).requests
    assert requests["first_token_s"].tolist() == [0.017, 0.027]
    assert requests["finish_s"].tolist() == [0.017, 0.037]
    assert requests["arrival_s"].tolist() == [0.0, 0.0]


def test_a_client_asks_again_when_it_has_its_answer() -> None:
    front_end = FrontEnd(receive_ps=4 * MS, respond_ps=2 * MS)
    load = trace([0.0] * 3, [1] * 3, [1] * 3)
    cluster = serve(replica_setup(cost=STEP_OF_10_MS), load, concurrency=1, front_end=front_end)
    assert (cluster.rows.arrivals // MS).tolist() == [0, 16, 32]  # 4 in, a step of 10, 2 out
    assert instants(cluster, "scheduled_ps") == [4, 20, 36]


def test_clients_that_ask_at_once_are_staggered_by_the_door() -> None:
    load = trace([0.0] * 4, [1] * 4, [1] * 4)
    cluster = serve(replica_setup(cost=STEP_OF_10_MS), load, concurrency=4, front_end=FrontEnd(receive_ps=4 * MS))
    assert instants(cluster, "scheduled_ps") == [4, 14, 14, 24]
