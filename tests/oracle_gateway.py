"""Views of the replicas for the oracle's routers."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from simserve.engine.routing_view import Delay
from simserve.routers.base import Router
from simserve.state.request import Request
from tests.oracle_replica import OracleReplica


@dataclass
class OldNews:
    """A replica as of its last report."""

    replica: OracleReplica
    n_outstanding: int = 0
    n_held: int = 0
    n_waiting: int = 0
    sent_since: list[Request] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.replica.id

    @property
    def total_blocks(self) -> int:
        return self.replica.total_blocks

    @property
    def block_size(self) -> int:
        return self.replica.block_size

    @property
    def block_tokens(self) -> int | None:
        return self.replica.block_tokens

    def held_blocks(self) -> int:
        n_sent = sum(self.blocks_for(request.prompt_tokens) for request in self.sent_since)
        return min(self.total_blocks, self.n_held + n_sent)

    def blocks_for(self, n_tokens: int) -> int:
        return self.replica.blocks_for(n_tokens)

    def found_tokens(self, request: Request) -> int:
        return self.replica.found_tokens(request)


class OracleRoutingView:
    """A router, and its reports of the replicas."""

    def __init__(self, router: Router, replicas: Sequence[OracleReplica], delay: Delay | None) -> None:
        self.router, self.replicas, self.delay = router, list(replicas), delay
        self.news = [OldNews(replica) for replica in replicas]
        self.as_of_ps = 0
        self.canary: OracleRoutingView | None = None
        """Replicas of another version, and ..."""
        self.stream, self.traffic_frac = Random(0), 0.0
        """... the share of the requests that they get."""

    def shift(self, traffic_frac: float | None, stream: str) -> None:
        if traffic_frac is None:
            for replica in self.canary.replicas if self.canary else ():
                self.join(replica)
            self.canary = None
            return
        if self.canary is None:
            self.canary = OracleRoutingView(deepcopy(self.router), (), self.delay)
            self.canary.router.begin(Random(f"{stream}/router"))
            self.canary.as_of_ps, self.stream = self.as_of_ps, Random(stream)
        self.traffic_frac = traffic_frac

    @property
    def all_replicas(self) -> list[OracleReplica]:
        return self.replicas + (self.canary.replicas if self.canary else [])

    @property
    def all_views(self) -> "Sequence[OracleReplica | OldNews]":
        return [*self.views, *(self.canary.views if self.canary else ())]

    @property
    def views(self) -> "Sequence[OracleReplica] | Sequence[OldNews]":
        return self.replicas if self.delay is None else self.news

    def join(self, replica: OracleReplica) -> None:
        self.replicas.append(replica)
        self.news.append(OldNews(replica, replica.n_outstanding, replica.held_blocks(), replica.n_waiting))

    def leave(self, replica: OracleReplica) -> None:
        self.replicas = [each for each in self.replicas if each is not replica]
        self.news = [each for each in self.news if each.replica is not replica]

    def pick(self, request: Request) -> OracleReplica | None:
        has_new = self.canary is not None and len(self.canary.replicas) > 0
        if self.canary and has_new and (not self.replicas or self.stream.random() < self.traffic_frac):
            return self.canary.pick(request)
        if not self.replicas:
            return None
        place = [view.id for view in self.views].index(self.router.pick(request, self.views).id)
        if self.delay is not None and self.delay.counts_own_sends:
            self.news[place].n_outstanding += 1
            self.news[place].n_waiting += 1
            self.news[place].sent_since.append(request)
        return self.replicas[place]

    def hear(self, until_ps: int) -> None:
        """Update all reports due by now: nothing has happened since the last instant."""
        if self.delay is None:
            return
        if self.canary:
            self.canary.hear(until_ps)
        is_due = False
        while self.as_of_ps + self.delay.refresh_ps <= until_ps:
            self.as_of_ps += self.delay.refresh_ps
            is_due = True
        if is_due:
            self.news = [
                OldNews(each, each.n_outstanding, each.held_blocks(), each.n_waiting) for each in self.replicas
            ]
