"""Prefill every request remotely."""

from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class Always(Splitter):
    """Compute all prompts on prefill replicas."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Return "apart"."""
        return "apart"
