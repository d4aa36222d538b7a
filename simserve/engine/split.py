"""Split: the router of a cluster in which some requests are prefilled apart and others are not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.engine.alarm import Clock
from simserve.engine.checks import broke, raised
from simserve.engine.replica import Replica
from simserve.routers.base import Router
from simserve.splitters.base import Splitter
from simserve.state.request import Request
from simserve.state.view import LoadView

Pick = Callable[[Request, Sequence[Replica]], int]


@dataclass(frozen=True)
class Side:
    """Replicas of one kind, their places among all that requests are sent to, and who picks one."""

    replicas: list[Replica]
    places: list[int]
    pick: Pick

    @classmethod
    def of(cls, views: Sequence[Replica], role: str, pick: Pick) -> "Side":
        """Those of a role."""
        places = [place for place, view in enumerate(views) if view.role == role]
        return cls([views[place] for place in places], places, pick)

    def place(self, request: Request) -> int:
        """Of the replica that it goes to."""
        return self.places[self.pick(request, self.replicas)]


class SplitRouter(Router):
    """Asks the splitter first, and then the router of that side."""

    def __init__(self, clock: Clock, splitter: Splitter, prefill: Side, local: Side) -> None:
        self._clock = clock
        self._splitter = splitter
        self._prefill = prefill
        self._local = local

    def pick(self, request: Request, views: Sequence[LoadView]) -> int:
        """A prefill replica, or one that does all. Raises PolicyError."""
        try:
            splits = self._splitter.splits(request, self._prefill.replicas, self._local.replicas)
        except Exception as error:
            raise raised(self._splitter, "splits", self._clock.now_ps, error) from error
        if type(splits) is not bool:
            raise broke(self._splitter, "splits", self._clock.now_ps, "must return True or False", splits)
        return (self._prefill if splits else self._local).place(request)
