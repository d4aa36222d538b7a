"""Splitter: where(request, prefill, local) -> which replicas compute prompt and answer."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""

Where = Literal["apart", "local", "prefill"]
"""apart: a prefill and a decode replica; local: one replica of `local`; prefill: one prefill replica."""


class Splitter:
    """A policy: which requests use a prefill and a decode replica, and which use only one replica."""

    keeps: ClassVar[bool] = False
    """It may return "prefill": prefill replicas decode some requests themselves."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Return where a request is computed; `local` are the "both" replicas, or without these the decode ones. Either
        side may be empty while none of its members is ready."""
        raise NotImplementedError


def uncached_tokens(request: Request, local: Sequence[LoadView]) -> int:
    """Return the prompt tokens left to compute on the replica with the longest cache hit."""
    return request.prompt_tokens - max((view.found_tokens(request) for view in local), default=0)
