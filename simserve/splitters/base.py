"""Splitter: where(request, prefill, local) -> who computes prompt and answer: two replicas, or which one."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a policy: its fields are its YAML, and unknown ones are mistakes."""


Where = Literal["apart", "local", "prefill"]
"""Who computes prompt and answer: a prefill and a decode replica; one of `local` alone; or a prefill replica alone."""


class Splitter:
    """A policy: which requests a prefill and a decode replica share, and which one replica serves alone."""

    keeps: ClassVar[bool] = False
    """It may answer "prefill": prefill replicas keep some requests and answer them."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Who computes its prompt and its answer; `local` are pools of role both, or without these decode replicas."""
        raise NotImplementedError


def uncached_tokens(request: Request, local: Sequence[LoadView]) -> int:
    """Tokens of its prompt that the replica that knows most of it would have to compute."""
    return request.prompt_tokens - max(view.found_tokens(request) for view in local)
