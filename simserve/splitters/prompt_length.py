"""Prefill long prompts remotely; a short one delays the tokens of other requests only briefly."""

from collections.abc import Sequence

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where, uncached_tokens
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class PromptLength(Splitter):
    """Prefill a prompt remotely if at least min_prompt_tokens of it are not in a prefix cache.

    Source: NVIDIA Dynamo, disagg_router: decode workers compute what is not longer than max_local_prefill_length.
    """

    min_prompt_tokens: PositiveInt
    """[tokens] Minimum to compute, after prefix-cache hits, for a prefill replica (NVIDIA Dynamo
    `max_local_prefill_length`)."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Return "apart" for long prompts."""
        return "apart" if uncached_tokens(request, local) >= self.min_prompt_tokens else "local"
