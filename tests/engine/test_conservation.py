"""A simulator that loses a request or a block reports a bug of its own, not results."""

import pytest

from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered
from simserve.errors import InvariantError
from simserve.routers.round_robin import RoundRobin
from simserve.state.request import Request
from tests.agreement import watch
from tests.doubles import replica_setup, trace


def cluster() -> Cluster:
    return Cluster([replica_setup()], RoundRobin(), Offered(trace([0.0, 0.1], [50, 50], [5, 5])), router_seed=0)


def test_a_lost_request_is_noticed() -> None:
    broken = cluster()
    stranger = Request(1, 0, prompt_tokens=10**9, max_tokens=1)  # never sent, and it never fits
    broken.replicas[0].batch.waiting.append(stranger)
    with pytest.raises(InvariantError, match="requests sent = ended"):
        broken.run()


def test_a_lost_block_is_noticed() -> None:
    broken = cluster()
    broken.replicas[0].pool.free_blocks -= 1
    with pytest.raises(InvariantError, match=r"free \+ held = all blocks"):
        broken.run()


def test_a_block_that_nobody_gave_back_is_noticed() -> None:
    broken = cluster()
    broken.replicas[0].pool.take(3, False)
    with pytest.raises(InvariantError, match="blocks held by no request on replica 0"):
        broken.run()


def test_a_block_that_is_lost_for_a_while_is_noticed_where_every_event_is_watched() -> None:
    broken = cluster()
    pool, watched = broken.replicas[0].pool, broken.clock.step
    lost = iter([1, *[0] * 3, -1])

    def lose() -> None:
        watched()
        pool.free_blocks -= next(lost, 0)

    broken.clock.step = lose  # type: ignore[method-assign]
    watch(broken)
    with pytest.raises(AssertionError, match="9999"):
        broken.run()
