"""Router: pick(request, views) -> one of the views."""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from random import Random
from typing import ClassVar

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""


class Router:
    """A policy: which replica serves a request."""

    joins_shortest: ClassVar[bool] = False
    """It picks the replica with the fewest outstanding requests, the first on a tie."""

    def begin(self, stream: Random) -> None:
        """Start a run: reset the state; `stream` is the router's own random stream."""

    @property
    def needs_sessions(self) -> bool:
        """It uses `request.session`, so a load without sessions is an error."""
        return False

    @property
    def sees_load(self) -> bool:
        """Its picks depend on requests or on what replicas do. If only on the number of picks so far, it is asked for
        the whole load first, and processes of their own may serve the replicas."""
        return True

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the view of the replica that gets the request. `views` are the ready members in the order of joining,
        at least one; between calls members may come and go. A router keeps ids, never views."""
        raise NotImplementedError


def place_of(member: int, views: Sequence[LoadView]) -> int | None:
    """Return the place of a member among the views; None: it is gone."""
    place = bisect_left(views, member, key=_ID)  # fast: members mostly join in the order of their ids
    if place < len(views) and views[place].id == member:
        return place
    return next((place for place, view in enumerate(views) if view.id == member), None)


_ID = attrgetter("id")
