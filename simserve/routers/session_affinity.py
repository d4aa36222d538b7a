"""The replica that had the session's last request, unless it is much busier than others."""

from collections.abc import Sequence
from random import Random

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class SessionAffinity(Router):
    """Keep the requests of a session together; new sessions, and those of busy replicas, go to the least busy one.

    Where each session was last costs no memory worth a limit: gateways leave it with the client, in a cookie. Sources:
    llm-d's session-affinity-scorer; vLLM production stack (session-based routing, by a hash ring).
    """

    max_imbalance: NonNegativeInt = 32
    """Requests that the session's replica may have more than the least busy one; else the session moves there."""

    @property
    def needs_sessions(self) -> bool:
        """Always."""
        return True

    def begin(self, stream: Random) -> None:
        """No session has been seen."""
        self._last: dict[str, int] = {}

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """The session's own, or the one with the fewest requests, the first on a tie."""
        loads = [view.n_outstanding for view in views]
        least = min(loads)
        last = self._last.get(request.session)
        picked = loads.index(least) if last is None or loads[last] > least + self.max_imbalance else last
        if request.session:
            self._last[request.session] = picked
        return picked
