"""Route to the less loaded of two replicas drawn at random."""

from collections.abc import Sequence
from random import Random

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class PowerOfTwo(Router):
    """Draw two different replicas and pick the one with fewer outstanding requests; the first drawn on a tie.

    Source: Mitzenmacher, "The power of two choices in randomized load balancing" (IEEE TPDS, 2001).
    """

    def begin(self, stream: Random) -> None:
        """Keep the random stream."""
        self._stream = stream

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the better of two replicas."""
        if len(views) == 1:
            return views[0]
        place = self._stream.randrange(len(views))
        other = self._stream.randrange(len(views) - 1)
        first, second = views[place], views[other + (other >= place)]
        return second if second.n_outstanding < first.n_outstanding else first
