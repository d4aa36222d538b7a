"""Split: the gateway of a cluster in which some requests are prefilled apart and others are not."""

from dataclasses import dataclass

from simserve.engine.alarm import Clock
from simserve.engine.checks import broke, raised
from simserve.engine.gateway import Gateway
from simserve.splitters.base import Splitter
from simserve.state.request import Request


@dataclass(frozen=True)
class Side:
    """Replicas of one kind, their places among all that requests are sent to, and the router that picks one."""

    gateway: Gateway
    places: list[int]

    def place(self, request: Request) -> int:
        """Of the replica that it goes to."""
        return self.places[self.gateway.pick(request)]


class SplitGateway:
    """Asks the splitter first, and then the router of that side."""

    def __init__(self, clock: Clock, splitter: Splitter, prefill: Side, local: Side) -> None:
        self._clock = clock
        self._splitter = splitter
        self._prefill = prefill
        self._local = local

    def pick(self, request: Request) -> int:
        """A prefill replica, or one that does all. Raises PolicyError."""
        try:
            splits = self._splitter.splits(request, self._prefill.gateway.views, self._local.gateway.views)
        except Exception as error:
            raise raised(self._splitter, "splits", self._clock.now_ps, error) from error
        if type(splits) is not bool:
            raise broke(self._splitter, "splits", self._clock.now_ps, "must return True or False", splits)
        return (self._prefill if splits else self._local).place(request)
