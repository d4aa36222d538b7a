"""Split: the intake of a cluster in which some requests are prefilled remotely and others locally."""

from collections.abc import Mapping
from dataclasses import dataclass

from simserve.engine.alarm import Clock
from simserve.engine.checks import broke, raised
from simserve.engine.routing_view import RoutingView
from simserve.splitters.base import Splitter, Where
from simserve.state.request import Request


@dataclass(frozen=True)
class SplitSide:
    """Replicas of one kind, their places among all destinations, and the router that picks one."""

    routing_view: RoutingView
    places: list[int]

    def place(self, request: Request) -> int:
        """Return the place of the request's replica."""
        return self.places[self.routing_view.pick(request)]


class SplitRoutingView:
    """Asks the splitter for a side, then that side's router for a replica."""

    def __init__(self, clock: Clock, splitter: Splitter, sides: Mapping[Where, SplitSide]) -> None:
        self._clock = clock
        self._splitter = splitter
        self._sides = sides
        self._prefill, self._local = sides["apart"].routing_view, sides["local"].routing_view

    def pick(self, request: Request) -> int:
        """Return the place of a prefill replica or of one that does both. Raises PolicyError."""
        try:
            where = self._splitter.where(request, self._prefill.views, self._local.views)
        except Exception as error:
            raise raised(self._splitter, "where", self._clock.now_ps, error) from error
        if not isinstance(where, str) or where not in self._sides:
            rule = "must return " + " or ".join(map(repr, self._sides))
            raise broke(self._splitter, "where", self._clock.now_ps, rule, where)
        return self._sides[where].place(request)
