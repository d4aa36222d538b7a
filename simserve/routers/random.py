"""Route to a random replica."""

from collections.abc import Sequence
from random import Random as Stream

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class Random(Router):
    """Pick every replica with equal probability, whatever its load."""

    @property
    def sees_load(self) -> bool:
        """It takes no look at loads."""
        return False

    def begin(self, stream: Stream) -> None:
        """Keep the random stream."""
        self._stream = stream

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Draw a replica uniformly."""
        return views[self._stream.randrange(len(views))]
