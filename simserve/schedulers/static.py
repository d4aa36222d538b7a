"""Static batching, as FasterTransformer: what waits when idle starts together, padded, and all wait for the longest."""

from itertools import islice

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Scheduler, StepPlan
from simserve.state.request import Request
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class Static(Scheduler):
    """Start what waits when idle, up to batch_size; prompts are padded to the longest, all run until the last ends.

    KV for the padded prompt and the longest max_tokens of the batch is set aside for each request.
    """

    reserves = True
    runs_to_completion = True

    batch_size: PositiveInt = 32
    """Requests in a batch at most."""
    stream: bool = False
    """Give tokens as they come, rather than all answers when the batch is done."""

    def plan(self, view: ReplicaView) -> StepPlan:
        """The next batch when the last one is done."""
        if view.n_running:
            return StepPlan(blocked_by="seats")
        return padded_batch(view, self.batch_size)


def padded_batch(view: ReplicaView, batch_size: int) -> StepPlan:
    """The longest run of waiting requests, up to batch_size, whose padded batch fits the free blocks."""
    batch: list[Request] = []
    prompt_tokens = answer_tokens = 0
    blocked_by = None
    for request in islice(view.waiting, batch_size):
        prompt = max(prompt_tokens, request.prompt_tokens)
        answer = max(answer_tokens, request.max_tokens)
        if (len(batch) + 1) * view.blocks_for(prompt + answer) > view.free_blocks:
            break
        prompt_tokens, answer_tokens = prompt, answer
        batch.append(request)
    return StepPlan(
        prefill=[(request, prompt_tokens) for request in batch],
        reserve_tokens=[prompt_tokens + answer_tokens] * len(batch),
        blocked_by=blocked_by,
    )
