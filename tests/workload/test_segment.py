"""Segments of a load: the requests of one stretch with their times, sessions whole, and a closed loop's beginning."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.workload.load import Load, segment
from simserve.workload.trace import Dependencies, Trace


def trace(n: int, dependencies: Dependencies | None = None) -> Trace:
    lengths = np.arange(1, n + 1)
    return Trace(np.arange(0.0, 2.0 * n, 2.0), lengths, lengths, dependencies=dependencies)


@pytest.mark.parametrize(("first_frac", "first"), [(0.0, 0), (0.3, 6), (0.75, 15), (1.0, 15)])
def test_an_open_load_keeps_the_times_of_the_requests_of_its_segment(first_frac: float, first: int) -> None:
    result = segment(Load(trace(20)), first_frac, 0.25, 0.0)
    assert result.trace.arrival_s.tolist() == [2.0 * row for row in range(first, first + 5)]
    assert result.trace.prompt_tokens.tolist() == list(range(first + 1, first + 6))
    assert result.trace.arrival_s.base is None  # a view would keep the whole load in memory


def test_a_session_is_whole_and_the_next_one_ends_the_sending() -> None:
    chains = Dependencies.chains(np.array([0, 1, 0, 1, 2, 2, 0, 3]), np.ones(8))
    result = segment(Load(trace(8, chains), stop_sending_s=99.0), 0.25, 0.5, 0.0)  # sessions 1 and 2 of four
    assert result.trace.prompt_tokens.tolist() == [2, 4, 5, 6]
    assert result.stop_sending_s == 14.0  # session 3 begins
    last = segment(Load(trace(8, chains), stop_sending_s=99.0), 1.0, 0.1, 0.0)
    assert (last.trace.prompt_tokens.tolist(), last.stop_sending_s) == ([8], 99.0)


def test_a_closed_loop_sends_the_first_of_its_requests_and_jobs_of_that_time() -> None:
    clients, jobs = trace(8), replace(trace(4), prompt_tokens=np.arange(101, 105))
    both = Trace(
        np.concatenate([clients.arrival_s, jobs.arrival_s]),
        np.concatenate([clients.prompt_tokens, jobs.prompt_tokens]),
        np.concatenate([clients.output_tokens, jobs.output_tokens]),
    )
    result = segment(Load(both, concurrency=2, n_timed=4), 0.5, 0.5, 8.0)
    assert result.trace.prompt_tokens.tolist() == [1, 2, 3, 4, 101, 102]
    assert (result.n_timed, result.concurrency) == (2, 2)


def test_a_closed_loop_of_a_time_sends_for_a_part_of_it() -> None:
    load = Load(trace(8), concurrency=2, draw_more=lambda n: trace(n), stop_sending_s=100.0)
    result = segment(load, 0.0, 0.25, 0.0)
    assert (len(result.trace), result.stop_sending_s, result.draw_more) == (8, 25.0, load.draw_more)


def test_a_closed_loop_ends_with_a_whole_session() -> None:
    chains = Dependencies.chains(np.array([0, 0, 0, 1, 1, 2]), np.ones(6))
    result = segment(Load(trace(6, chains), concurrency=1), 0.0, 0.4, 0.0)
    assert result.trace.prompt_tokens.tolist() == [1, 2, 3]
