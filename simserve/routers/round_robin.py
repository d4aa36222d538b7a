"""Route to each replica in turn."""

from collections.abc import Sequence
from random import Random

from pydantic.dataclasses import dataclass

from simserve.routers.base import STRICT, Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class RoundRobin(Router):
    """Pick each replica in turn, whatever its load.

    Turns follow the order of joining. If the last picked replica is gone, the turn goes to the first one with a higher
    id, or to the first of all.
    """

    @property
    def sees_load(self) -> bool:
        """It takes no look at loads."""
        return False

    def begin(self, stream: Random) -> None:
        """Start with the first replica."""
        self._last = -1
        self._place = 0

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        """Return the next replica in turn."""
        place = self._place
        if place < len(views) and views[place].id == self._last:  # fast: it stayed; the test against plain lists checks
            place += 1
        else:
            place = self._next_place([view.id for view in views])
        self._place = place = place if place < len(views) else 0
        view = views[place]
        self._last = view.id
        return view

    def _next_place(self, ids: list[int]) -> int:
        """Return the place after the last picked replica, wherever that is now."""
        if self._last in ids:
            return ids.index(self._last) + 1
        return next((place for place, member in enumerate(ids) if member > self._last), 0)
