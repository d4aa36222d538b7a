"""Any replica, by chance."""

from collections.abc import Sequence
from random import Random as Stream

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class Random(Router):
    """Every replica is equally likely, whatever its load."""

    def begin(self, stream: Stream) -> None:
        """Keep the stream."""
        self._stream = stream

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """A uniform draw."""
        return self._stream.randrange(len(views))
