"""Splitter: splits(request, prefill, local) -> whether prompt and answer are computed by different replicas."""

from collections.abc import Sequence

from pydantic import ConfigDict

from simserve.state.request import Request
from simserve.state.view import LoadView

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a policy: its fields are its YAML, and unknown ones are mistakes."""


class Splitter:
    """A policy: which requests a prefill and a decode replica share, and which one replica serves alone."""

    def splits(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> bool:
        """Whether a prefill replica computes its prompt, rather than one of `local`, which also answers."""
        raise NotImplementedError


def uncached_tokens(request: Request, local: Sequence[LoadView]) -> int:
    """Tokens of its prompt that the replica that knows most of it would have to compute."""
    return request.prompt_tokens - max(view.found_tokens(request) for view in local)
