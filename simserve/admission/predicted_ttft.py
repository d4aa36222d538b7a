"""Admission by predicted TTFT: refuse who would wait too long for a first token."""

from collections.abc import Sequence

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from simserve.admission.base import STRICT, Admission, QueueView
from simserve.state.request import Request


@dataclass(config=STRICT)
class PredictedTtft(Admission):
    """Refuse a request whose first token is predicted to come later than ttft_s.

    Predicted: the prompt tokens that a replica has yet to compute and the request's own, divided by the rate at which
    a replica computes prompts; of the replica for which that is least. A gateway knows all of these.
    """

    ttft_s: PositiveFloat
    prefill_tokens_per_s: PositiveFloat
    """Prompt tokens that a replica computes beside its decoding; `simserve explain` says what it computes alone."""

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """The least loaded replica would answer in time."""
        least_tokens = min(view.uncomputed_tokens() for view in views) + request.prompt_tokens
        if least_tokens <= self.ttft_s * self.prefill_tokens_per_s:
            return None
        return "refused: the first token would come too late"
