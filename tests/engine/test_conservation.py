"""A simulator that loses a request or a block reports a bug of its own, not results."""

import pytest

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered
from simserve.engine.replica import SeenRequests
from simserve.errors import InvariantError
from simserve.routers.round_robin import RoundRobin
from tests.agreement import run_watched
from tests.doubles import replica_setup, trace


def cluster() -> Cluster:
    return Cluster([replica_setup()], RoundRobin(), Offered(trace([0.0, 0.1], [50, 50], [5, 5])), router_seed=0)


def test_a_lost_request_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeenRequests, "requests", property(lambda batch: ()))
    with pytest.raises(InvariantError, match="requests sent = ended"):
        run_cluster(cluster(), 0)


def test_a_lost_block_is_noticed() -> None:
    broken = cluster()
    broken.replicas[0].pool.free_blocks -= 1
    with pytest.raises(InvariantError, match=r"free \+ held = all blocks"):
        run_cluster(broken)


def test_a_block_that_nobody_gave_back_is_noticed() -> None:
    broken = cluster()
    broken.replicas[0].pool.take(3, False)
    with pytest.raises(InvariantError, match="blocks held by no request on replica 0"):
        run_cluster(broken)


def test_a_block_that_is_lost_for_a_while_is_noticed_where_every_event_is_watched() -> None:
    broken = cluster()
    pool, lost = broken.replicas[0].pool, iter([1, *[0] * 3, -1])

    def lose() -> None:
        pool.free_blocks -= next(lost, 0)

    with pytest.raises(AssertionError, match="9999"):
        run_watched(broken, meddle=lose)
