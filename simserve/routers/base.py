"""Router: pick(request, views) -> index of a replica."""

from collections.abc import Sequence
from random import Random

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a policy: its fields are its YAML, and unknown ones are mistakes."""


class Router:
    """A policy: which replica serves a request."""

    def begin(self, stream: Random) -> None:
        """A run begins: forget the last one; `stream` is the router's own source of chance."""

    @property
    def needs_sessions(self) -> bool:
        """It looks at `request.session`, so a load without sessions is a mistake."""
        return False

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """The index of the replica that gets the request."""
        raise NotImplementedError
