"""Admission: decide(request, views, now_ps) -> None to let it in, or why not."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a policy: its fields are its YAML, and unknown ones are mistakes."""


class QueueView(LoadView, Protocol):
    """A replica as admission sees it: what a router sees, and its queue."""

    def uncomputed_tokens(self) -> int:
        """Prompt tokens there that are not computed yet, what prefix caches may hold included; O(queue)."""


class Admission:
    """A policy: whether a request may enter, asked before the router with views that are true at this instant."""

    def begin(self) -> None:
        """A run begins: forget the last one."""

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """None: it may enter; otherwise the reason why not, as its status_reason."""
        raise NotImplementedError
