"""Admission by predicted TTFT: refuse requests that would wait too long for a first token."""

from collections.abc import Sequence

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from simserve.admission.base import STRICT, Admission, QueueView
from simserve.state.request import Request


@dataclass(config=STRICT)
class PredictedTtft(Admission):
    """Refuse a request with a predicted TTFT above ttft_s.

    The prediction is the uncomputed prompt tokens of a replica plus the request's own, divided by the replica's prefill
    rate; the minimum over replicas counts. A gateway knows all of these.
    """

    ttft_s: PositiveFloat
    """[s] Longest predicted TTFT that is admitted."""
    prefill_tokens_per_s: PositiveFloat
    """[tokens/s] Prefill rate of a replica while it decodes; `simserve explain` prints the rate of prefill alone."""

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
        """Admit if the least loaded replica would answer in time."""
        least_tokens = min(view.uncomputed_tokens() for view in views) + request.prompt_tokens
        if least_tokens <= self.ttft_s * self.prefill_tokens_per_s:
            return None
        return "refused: the first token would come too late"
