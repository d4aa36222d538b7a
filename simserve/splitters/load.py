"""As long as prefill replicas are not overloaded."""

from collections.abc import Sequence

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where, uncached_tokens
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(config=STRICT)
class LoadSplitter(Splitter):
    """While some prefill replica has fewer than max_outstanding requests, and the prompt is long enough.

    Sources: NVIDIA Dynamo (max_prefill_queue_size beside the length); Splitwise, ISCA '24, whose token machines compute
    prompts too once the queues of prompt machines are longer than a threshold.
    """

    max_outstanding: PositiveInt
    """Of a prefill replica: those that wait there or are being computed."""
    min_prompt_tokens: PositiveInt = 1
    """To be computed, as in prompt_length."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Long ones apart that need not wait for many others."""
        if min(view.n_outstanding for view in prefill) >= self.max_outstanding:
            return "local"
        is_long = self.min_prompt_tokens == 1 or uncached_tokens(request, local) >= self.min_prompt_tokens
        return "apart" if is_long else "local"
