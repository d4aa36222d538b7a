"""Admission: decide(request, views, now_ps) -> None to admit, or the reason of a refusal."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""


class QueueView(LoadView, Protocol):
    """A replica as admission sees it: a router's view and the queue."""

    def uncomputed_tokens(self) -> int:
        """Return prompt tokens not computed yet, prefix cache hits included; O(queue)."""


class Admission:
    """A policy: whether a request may enter; called before the router, with live views."""

    def begin(self) -> None:
        """Start a run: reset the state."""

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """Return None to admit, or the reason of the refusal for status_reason."""
        raise NotImplementedError
