"""Route to the replica of the session's last request, unless it is much busier than others."""

from collections.abc import Sequence
from random import Random

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router, place_of
from simserve.state.request import Request
from simserve.state.view import LoadView, least_busy


@dataclass(config=STRICT)
class SessionAffinity(Router):
    """Keep a session on one replica; new sessions, and those of replicas too busy or gone, go to the least busy one.

    The record of sessions has no size limit: gateways leave it with the client, in a cookie. Sources: llm-d's
    session-affinity-scorer; vLLM production stack (session-based routing, by a hash ring).
    """

    max_imbalance: NonNegativeInt = 32
    """Outstanding requests by which the session's replica may exceed the least busy one before the session moves."""

    @property
    def needs_sessions(self) -> bool:
        """The load must have sessions."""
        return True

    def begin(self, stream: Random) -> None:
        """Start without sessions."""
        self._last: dict[str, int] = {}

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the session's replica, or the one with the fewest requests, the first on a tie."""
        least = least_busy(views)
        last = self._last.get(request.session)
        place = None if last is None else place_of(last, views)
        if place is None or views[place].n_outstanding > views[least].n_outstanding + self.max_imbalance:
            place = least
        if request.session:
            self._last[request.session] = views[place].id
        return views[place]
