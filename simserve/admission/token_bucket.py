"""Admission by rate: each request takes a token from a bucket that fills at a steady rate."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.admission.base import STRICT, Admission, QueueView
from simserve.state.request import Request
from simserve.units import to_s


@dataclass(config=STRICT)
class TokenBucket(Admission):
    """Let in rate_per_s requests a second in the long run, and up to `burst` at once after a pause."""

    rate_per_s: Annotated[float, Field(gt=0)]
    """Tokens that fall into the bucket a second."""
    burst: Annotated[float, Field(ge=1)] = 1.0
    """Tokens that it holds; it is full when the run begins."""

    def begin(self) -> None:
        """A full bucket."""
        self._tokens, self._at_ps = self.burst, 0

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """A token, if there is one."""
        self._tokens = min(self.burst, self._tokens + self.rate_per_s * to_s(now_ps - self._at_ps))
        self._at_ps = now_ps
        if self._tokens < 1:
            return "refused: above the admitted rate"
        self._tokens -= 1
        return None
