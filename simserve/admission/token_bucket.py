"""Admission by rate: each request takes a token from a bucket that fills at a steady rate."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from simserve.admission.base import STRICT, Admission, QueueView
from simserve.state.request import Request
from simserve.units import PS_PER_S


@dataclass(config=STRICT)
class TokenBucket(Admission):
    """Admit rate_per_s requests per second in the long run, and up to `burst` at once after a pause."""

    rate_per_s: PositiveFloat
    """[/s] Tokens added to the bucket; each request takes one."""
    burst: Annotated[float, Field(ge=1)] = 1.0
    """Capacity of the bucket; it is full at the start of a run."""

    def begin(self) -> None:
        """Start with a full bucket."""
        self._gap_ps = max(1, round(PS_PER_S / self.rate_per_s))
        self._full_at_ps = 0

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """Take a token, if there is one; the state is the time at which the bucket will be full, without rounding."""
        full_at_ps = max(self._full_at_ps, now_ps) + self._gap_ps
        if full_at_ps - now_ps > self.burst * self._gap_ps:
            return "refused: above the admitted rate"
        self._full_at_ps = full_at_ps
        return None
