"""Replica picked by each router."""

from collections import Counter
from dataclasses import dataclass
from random import Random as Stream
from typing import Any

import pytest

from simserve.routers.base import Router
from simserve.routers.least_kv import LeastKv
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.power_of_two import PowerOfTwo
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.routers.weighted import Weighted
from simserve.state.request import Request
from simserve.state.view import LoadView
from tests.doubles import replica_setup, serve, trace

REQUEST = Request(row=0, arrival_ps=0, prompt_tokens=10, max_tokens=10)
REQUEST.chains = {5: [1, 2]}


@dataclass
class Load:
    """A replica as a router sees it."""

    n_outstanding: int
    n_held: int = 0
    total_blocks: int = 100
    n_found_tokens: int = 0
    n_waiting: int = 0
    block_size: int = 1
    block_tokens: int | None = None
    id: int = 0

    def found_tokens(self, request: Request) -> int:
        return self.n_found_tokens

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def held_blocks(self) -> int:
        return self.n_held


def picks(router: Router, loads: list[Load], n: int) -> list[int]:
    router.begin(Stream("a test"))
    return [picked(router, REQUEST, loads) for _ in range(n)]


def picked(router: Router, request: Request, loads: list[Load]) -> int:
    """Return the place of the picked view."""
    for place, load in enumerate(loads):
        load.id = 10 + place
    return router.pick(request, loads).id - 10


def test_round_robin_takes_each_in_turn() -> None:
    assert picks(RoundRobin(), [Load(9), Load(0), Load(3)], 5) == [0, 1, 2, 0, 1]


def test_least_outstanding_takes_the_shortest_queue_and_the_first_on_a_tie() -> None:
    assert picks(LeastOutstanding(), [Load(3), Load(1), Load(1)], 1) == [1]


def test_least_kv_compares_shares_of_unequal_caches() -> None:
    assert picks(LeastKv(), [Load(0, n_held=40, total_blocks=100), Load(0, n_held=60, total_blocks=400)], 1) == [1]


def test_least_kv_breaks_ties_by_outstanding_requests() -> None:
    assert picks(LeastKv(), [Load(2), Load(1), Load(1)], 1) == [1]


def test_random_spreads_evenly_and_repeats_with_its_stream() -> None:
    loads = [Load(0), Load(5), Load(9)]
    counts = Counter(picks(Random(), loads, 9000))
    assert all(abs(counts[i] - 3000) < 250 for i in range(3))
    assert picks(Random(), loads, 50) == picks(Random(), loads, 50)


def test_power_of_two_never_takes_the_most_loaded_of_all() -> None:
    counts = Counter(picks(PowerOfTwo(), [Load(0), Load(5), Load(9)], 9000))
    assert counts[2] == 0
    assert counts[0] == pytest.approx(6000, abs=250)  # it is in two of three pairs


@pytest.mark.parametrize("router", [RoundRobin(), Random(), LeastOutstanding(), LeastKv(), PowerOfTwo()])
def test_every_replica_reports_its_own_requests(router: Router) -> None:
    """Rows of replica i's tables hold only requests that were sent to replica i."""
    n = 60
    cluster = serve([replica_setup()] * 4, trace([i * 0.001 for i in range(n)], [50] * n, [10] * n), router)
    sent_to = cluster.recorder.columns["replica"]
    for index in range(4):
        rows = cluster.recorder.spans(index)["request_id"]
        assert sorted(rows.tolist()) == [row for row in range(n) if sent_to[row] == index]


@pytest.mark.parametrize(
    ("loads", "picked"),
    [
        ([Load(3), Load(9, n_found_tokens=5), Load(0, n_found_tokens=4)], 1),  # the longest hit
        ([Load(3, n_found_tokens=5), Load(2, n_found_tokens=5)], 1),  # then the fewest requests
        ([Load(2, n_found_tokens=5), Load(2, n_found_tokens=5)], 0),  # then the first
        ([Load(3, n_found_tokens=2), Load(1), Load(1)], 1),  # 2 of 10 tokens are too few to decide
        ([Load(4), Load(3)], 1),  # no hit
        ([Load(11, n_found_tokens=9), Load(0)], 1),  # too busy, by one
        ([Load(10, n_found_tokens=9), Load(0)], 0),
    ],
)
def test_prefix_affinity_goes_to_the_best_hit_that_is_not_too_busy(loads: list[Load], picked: int) -> None:
    assert picks(PrefixAffinity(min_hit_frac=0.3, max_imbalance=10), loads, 1) == [picked]


@pytest.mark.parametrize(
    ("weights", "loads", "picked"),
    [
        ({"queue": 1.0}, [Load(0, n_waiting=4), Load(9, n_waiting=2), Load(9, n_waiting=3)], 1),
        ({"outstanding": 1.0}, [Load(5), Load(3), Load(4)], 1),
        ({"kv": 1.0}, [Load(0, n_held=60), Load(9, n_held=100, total_blocks=400)], 1),
        # 4 is halfway between 2 and 6, so that scores are 1, 0.5 and 0; free shares are 0.1, 0.7 and 1.
        ({"outstanding": 1.0, "kv": 1.0}, [Load(2, n_held=90), Load(4, n_held=30), Load(6, n_held=0)], 1),
        ({"outstanding": 1.0, "kv": 0.5}, [Load(2, n_held=90), Load(4, n_held=30), Load(6, n_held=0)], 0),
        ({"outstanding": 1.0, "prefix": 1.9}, [Load(1, block_tokens=5), Load(2, n_found_tokens=5, block_tokens=5)], 0),
        ({"outstanding": 1.0, "prefix": 2.1}, [Load(1, block_tokens=5), Load(2, n_found_tokens=5, block_tokens=5)], 1),
        ({"queue": 1.0}, [Load(3, n_waiting=2), Load(1, n_waiting=2), Load(1, n_waiting=2)], 1),  # a tie
        ({"kv": 1.0}, [Load(3), Load(1), Load(1)], 1),
    ],
)
def test_weighted_adds_up_scores_between_0_and_1(weights: dict[str, float], loads: list[Load], picked: int) -> None:
    arguments: dict[str, Any] = {"queue": 0.0, "outstanding": 0.0, "kv": 0.0, "prefix": 0.0, "index": "exact"} | weights
    assert picks(Weighted(**arguments), loads, 1) == [picked]


def test_weighted_likes_the_replica_that_had_the_session_before() -> None:
    router = Weighted(queue=0.0, outstanding=1.0, kv=0.0, prefix=0.0, session=1.5)
    router.begin(Stream("a test"))
    mine, other = (Request(row=0, arrival_ps=0, prompt_tokens=10, max_tokens=10) for _ in range(2))
    mine.session, other.session = "mine", "other"
    assert picked(router, mine, [Load(3), Load(0)]) == 1
    assert picked(router, mine, [Load(0), Load(9)]) == 1  # 1.5 against 1
    assert picked(router, other, [Load(0), Load(9)]) == 0


def test_no_view_nor_request_tells_a_router_how_long_an_answer_will_be() -> None:
    names = {name for name in dir(LoadView) if not name.startswith("_")} | set(Request.__slots__)
    assert not {name for name in names if "output" in name or "answer" in name or "finish" in name}
