"""Admission by queue length: no more requests than replicas should have at once."""

from collections.abc import Sequence

from pydantic import NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from simserve.admission.base import STRICT, Admission, QueueView
from simserve.state.request import Request


@dataclass(config=STRICT)
class QueueLength(Admission):
    """Refuse while every replica has as many requests as it may have; the router then picks among all of them."""

    max_waiting: NonNegativeInt | None = None
    """Requests of a replica without a seat at most; left out: any number."""
    max_outstanding: PositiveInt | None = None
    """Requests of a replica, with a seat or without, at most; left out: any number."""

    @model_validator(mode="after")
    def _limits_something(self) -> "QueueLength":
        if self.max_waiting is None and self.max_outstanding is None:
            raise ValueError("needs max_waiting or max_outstanding")
        return self

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """Some replica has room."""
        return None if any(map(self._has_room, views)) else "refused: the queue is full"

    def _has_room(self, view: QueueView) -> bool:
        if self.max_outstanding is not None and view.n_outstanding >= self.max_outstanding:
            return False
        return self.max_waiting is None or not view.n_waiting or view.n_waiting < self.max_waiting
