"""Long prompts, for a short one holds up nobody's tokens for long."""

from collections.abc import Sequence

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where, uncached_tokens
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class PromptLength(Splitter):
    """Prompts of which at least so many tokens have to be computed, those that a prefix cache has left out.

    Source: NVIDIA Dynamo, disagg_router: decode workers compute what is not longer than max_local_prefill_length.
    """

    min_prompt_tokens: PositiveInt

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """The long ones apart."""
        return "apart" if uncached_tokens(request, local) >= self.min_prompt_tokens else "local"
