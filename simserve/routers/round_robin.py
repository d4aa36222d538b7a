"""Route to each replica in turn."""

from collections.abc import Sequence
from random import Random

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class RoundRobin(Router):
    """Pick each replica in turn, whatever its load."""

    def begin(self, stream: Random) -> None:
        """Start with the first replica."""
        self._n_picked = 0

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """Return the next replica in turn."""
        self._n_picked += 1
        return (self._n_picked - 1) % len(views)
