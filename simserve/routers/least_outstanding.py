"""Route to the replica with the fewest outstanding requests."""

from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView, least_busy


@dataclass(config=STRICT)
class LeastOutstanding(Router):
    """Join the shortest queue: fewest requests waiting or running; the first such replica on a tie."""

    joins_shortest = True

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the least loaded replica."""
        return views[least_busy(views)]
