"""Split: the intake of a cluster in which some requests are prefilled remotely and others locally."""

from collections.abc import Callable, Mapping, Sequence

from simserve.engine.alarm import Clock
from simserve.engine.checks import broke, raised
from simserve.engine.routing_view import Destination, RoutingView
from simserve.splitters.base import Splitter, Where
from simserve.state.request import Request


class SplitRoutingView:
    """Asks the splitter for a side, then that side's router for a replica."""

    def __init__(
        self,
        clock: Clock,
        splitter: Splitter,
        views: Sequence[RoutingView],
        sides: Mapping[Where, Callable[[Request], Destination]],
    ) -> None:
        """Join sides; `views` are those of the prefill replicas and of the local ones."""
        self._clock = clock
        self._splitter = splitter
        self._prefill, self._local = views
        self._sides = sides

    def pick(self, request: Request) -> Destination:
        """Return a prefill replica, its intake for local decode, or a local replica. Raises PolicyError."""
        try:
            where = self._splitter.where(request, self._prefill.views, self._local.views)
        except Exception as error:
            raise raised(self._splitter, "where", self._clock.now_ps, error) from error
        if not isinstance(where, str) or where not in self._sides:
            rule = "must return " + " or ".join(map(repr, self._sides))
            raise broke(self._splitter, "where", self._clock.now_ps, rule, where)
        return self._sides[where](request)
