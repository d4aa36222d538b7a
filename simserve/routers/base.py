"""Router: pick(request, views) -> index of a replica."""

from collections.abc import Sequence
from random import Random

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""


class Router:
    """A policy: which replica serves a request."""

    def begin(self, stream: Random) -> None:
        """Start a run: reset the state; `stream` is the router's own random stream."""

    @property
    def needs_sessions(self) -> bool:
        """It uses `request.session`, so a load without sessions is an error."""
        return False

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """Return the index of the replica that gets the request."""
        raise NotImplementedError
