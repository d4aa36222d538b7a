"""Prefill remotely while prefill replicas are not overloaded."""

from collections.abc import Sequence

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.splitters.base import STRICT, Splitter, Where, uncached_tokens
from simserve.state.request import Request
from simserve.state.view import LoadView, least_busy


@dataclass(config=STRICT)
class LoadSplitter(Splitter):
    """Prefill remotely while a prefill replica has fewer than max_outstanding requests and the prompt is long enough.

    Sources: NVIDIA Dynamo (max_prefill_queue_size beside the length); Splitwise, ISCA '24: token machines also compute
    prompts once the queues of prompt machines exceed a threshold.
    """

    max_outstanding: PositiveInt
    """Requests of a prefill replica, waiting or in prefill, at which it gets no more (NVIDIA Dynamo
    `max_prefill_queue_size`)."""
    min_prompt_tokens: PositiveInt = 1
    """[tokens] Minimum to compute, as in prompt_length."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        """Return "apart" for long prompts that would not wait for many others."""
        if not prefill or prefill[least_busy(prefill)].n_outstanding >= self.max_outstanding:
            return "local"
        is_long = self.min_prompt_tokens == 1 or uncached_tokens(request, local) >= self.min_prompt_tokens
        return "apart" if is_long else "local"
