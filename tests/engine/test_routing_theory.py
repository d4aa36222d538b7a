"""Routers in front of single-server queues, with waits known from theory for live views and for no views at all."""

import numpy as np
import pytest

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered
from simserve.engine.routing_view import Delay
from simserve.routers.base import Router
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.power_of_two import PowerOfTwo
from simserve.routers.random import Random
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Trace
from tests.agreement import own
from tests.doubles import LineCost, replica_setup
from tests.effort import runs, wider

pytestmark = pytest.mark.law("theory")

N_SERVERS = 8
FULL = 60_000
N_REQUESTS = runs(FULL, quick=15_000)
WIDER = wider(N_REQUESTS, FULL)
BUSY = 0.7
PS_A_TOKEN = 10**8
"""A prompt token takes 0.1 ms, so a mean prompt of 1,000 tokens is served in 0.1 s."""
NO_NEWS = Delay(10**17)
"""A delay longer than the run."""


def mean_wait(router: Router, delay: Delay | None = None) -> float:
    """Return the mean wait in mean service times; exponential services, Poisson arrivals."""
    rng = np.random.default_rng(17)
    prompt_tokens = np.maximum(1, rng.exponential(1000, N_REQUESTS)).astype(np.int64)
    arrival_s = np.cumsum(rng.exponential(0.1 / BUSY / N_SERVERS, N_REQUESTS))
    setup = replica_setup(
        Chunked(max_num_batched_tokens=10**9, max_num_seqs=1), LineCost(token=PS_A_TOKEN), n_blocks=10**8
    )
    load = Offered(Trace(arrival_s, prompt_tokens, np.ones(N_REQUESTS, np.int64)))
    cluster = Cluster(own([setup] * N_SERVERS), router, load, router_seed=5, delay=delay)
    run_cluster(cluster)
    waits_ps = cluster.recorder.columns["scheduled_ps"] - cluster.rows.arrivals
    return float(waits_ps[N_REQUESTS // 10 :].mean()) / (1000 * PS_A_TOKEN)


def test_chance_makes_each_replica_an_m_m_1_queue() -> None:
    assert mean_wait(Random()) == pytest.approx(BUSY / (1 - BUSY), rel=0.1 * WIDER)


def test_the_better_of_two_is_as_good_as_theory_says_with_news_of_now_and_as_chance_without_any() -> None:
    """Of many servers BUSY ** (2 ** k - 1) have k or more requests (Mitzenmacher, 2001); eight come close."""
    many = sum(BUSY ** (2**k - 2) for k in range(1, 8)) - 1
    assert mean_wait(PowerOfTwo()) == pytest.approx(many, rel=0.15 * WIDER)
    assert mean_wait(PowerOfTwo(), NO_NEWS) == pytest.approx(BUSY / (1 - BUSY), rel=0.1 * WIDER)


def test_the_shortest_queue_beats_the_better_of_two_until_the_news_are_a_few_services_old() -> None:
    """Mitzenmacher, "How useful is old information?" (2000): all requests go where it was emptiest."""
    shortest, two = mean_wait(LeastOutstanding()), mean_wait(PowerOfTwo())
    assert shortest < 0.7 * two
    old = Delay(4 * 1000 * PS_A_TOKEN)
    assert mean_wait(PowerOfTwo(), old) < 0.9 * mean_wait(Random())
    assert mean_wait(LeastOutstanding(), old) > 2 * mean_wait(Random())
