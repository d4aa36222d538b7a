"""In-flight batching, as in TensorRT-LLM: prompts join the decoding requests if they fit the step and the memory."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Scheduler, StepPlan
from simserve.state.policies import TrtLlmPlanner
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class TrtLlm(Scheduler):
    """Every step decodes all running requests and takes prompts, first come, first served, up to max_num_tokens.

    A prompt is computed whole in one step unless enable_chunked_context is on. When blocks run out, the request
    admitted last is paused: it returns to the head of the queue and recomputes its prompt and output so far; if these
    exceed max_num_tokens, it waits until no request decodes.

    With prefix caching, guaranteed_no_evict admits a request if all its blocks to the end are free, and then reserves
    those that it did not find. A new request waits while another one computes the first block that it lacks; later ones
    pass it. Sources: TensorRT-LLM, batch_manager/capacityScheduler.cpp (enoughAvailableBlocks,
    beneficialToSkip), kvCacheManager.cpp (getRemainingBlocksToCompletion) and microBatchScheduler.cpp.
    """

    budget_argument = "max_num_tokens"
    slots_argument = "max_batch_size"
    without_reserving = "capacity_scheduler_policy: max_utilization"
    role_arguments: ClassVar[Mapping[str, Any]] = {"capacity_scheduler_policy": "max_utilization"}

    max_num_tokens: PositiveInt = 8192
    """[tokens] Budget of a step, decode tokens included (TensorRT-LLM `max_num_tokens`)."""
    max_batch_size: PositiveInt = 2048
    """Maximum running requests (TensorRT-LLM `max_batch_size`)."""
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    """`guaranteed_no_evict` reserves blocks for prompt + max_tokens; `max_utilization` does not, so it may pause."""
    enable_chunked_context: bool = False
    """Prompts may be cut into chunks of whole blocks to fill a step (TensorRT-LLM `enable_chunked_prefill`)."""

    def __post_init__(self) -> None:
        self.reserves = self.capacity_scheduler_policy == "guaranteed_no_evict"
        limits, chunks = (self.max_num_tokens, self.max_batch_size), self.enable_chunked_context
        self._planner = TrtLlmPlanner(*limits, reserves=self.reserves, chunks=chunks)

    @property
    def most_chunk(self) -> int | None:
        """The budget of a step, with chunks."""
        return self.max_num_tokens if self.enable_chunked_context else None

    def rows_planner(self) -> TrtLlmPlanner:
        """Return what decides."""
        return self._planner

    def plan(self, view: ReplicaView) -> StepPlan:
        """Walk the queue in order until slots, blocks or tokens run out."""
        return self._planner.planned(view)

    def never_fits(self, prompt_tokens: int) -> str | None:
        """Refuse a prompt above max_num_tokens without chunks, as TensorRT-LLM does."""
        if prompt_tokens > self.max_num_tokens and not self.enable_chunked_context:
            return "prompt longer than max_num_tokens, and enable_chunked_context is off"
        return None
