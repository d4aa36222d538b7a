"""Admission by queue length: limits the requests of replicas."""

from collections.abc import Sequence

from pydantic import NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from simserve.admission.base import STRICT, Admission, QueueView
from simserve.state.request import Request


@dataclass(config=STRICT)
class QueueLength(Admission):
    """Refuse while every replica is at its limit; the router then picks among all of them."""

    max_waiting: NonNegativeInt | None = None
    """Maximum requests of a replica without a slot (SGLang `--max-queued-requests`); null: no limit."""
    max_outstanding: PositiveInt | None = None
    """Maximum requests of a replica, waiting or running; null: no limit."""

    @model_validator(mode="after")
    def _limits_something(self) -> "QueueLength":
        if self.max_waiting is None and self.max_outstanding is None:
            raise ValueError("needs max_waiting or max_outstanding")
        return self

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """Admit if some replica has room."""
        return None if any(map(self._has_room, views)) else "refused: the queue is full"

    def _has_room(self, view: QueueView) -> bool:
        if self.max_outstanding is not None and view.n_outstanding >= self.max_outstanding:
            return False
        return self.max_waiting is None or not view.n_waiting or view.n_waiting < self.max_waiting
