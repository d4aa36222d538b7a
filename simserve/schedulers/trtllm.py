"""In-flight batching, as in TensorRT-LLM: prompts join the decoding requests if they fit the step and the memory."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.request import Request
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
    """Maximum tokens per step, including decode tokens."""
    max_batch_size: PositiveInt = 2048
    """Maximum running requests."""
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    """guaranteed_no_evict reserves blocks for prompt + max_tokens; max_utilization does not, so it may pause."""
    enable_chunked_context: bool = False
    """Prompts may be cut into chunks of whole blocks to fill a step."""

    def __post_init__(self) -> None:
        self.reserves = self.capacity_scheduler_policy == "guaranteed_no_evict"

    @property
    def most_chunk(self) -> int | None:
        """The budget of a step, with chunks."""
        return self.max_num_tokens if self.enable_chunked_context else None

    def plan(self, view: ReplicaView) -> StepPlan:
        """Walk the queue in order until slots, blocks or tokens run out."""
        budget_tokens = self.max_num_tokens - view.n_decoding * view.decode_tokens
        free_slots = self.max_batch_size - view.n_running
        free_blocks = view.free_blocks
        chunks: list[tuple[Request, int]] = []
        reserve_tokens: list[int] = []
        blocked_by: Blocked | None = None
        computed_blocks = {view.missing_block(request) for request in view.prefilling}
        for request in view.queue:
            if request.is_new:
                block = view.missing_block(request)
                if block is not None and block in computed_blocks:
                    continue
                computed_blocks.add(block)
            is_first = not chunks and not view.n_decoding
            n_tokens = self._chunk_tokens(request, budget_tokens, view.block_size, is_first)
            n_blocks = self._blocks(view, request)
            if request.is_new:
                free_slots -= 1
                if free_slots < 0:
                    blocked_by = "seats"
                elif n_blocks > free_blocks or view.just_preempted:
                    blocked_by = "blocks"
            elif not self.reserves and view.blocks_for_chunk(request, n_tokens) > free_blocks:
                blocked_by = "blocks"
            if blocked_by is None and not n_tokens:
                blocked_by = "budget"
            if blocked_by:
                break
            free_blocks -= n_blocks
            budget_tokens -= n_tokens
            chunks.append((request, n_tokens))
            reserve_tokens.append(request.prompt_tokens + request.max_tokens)
        return StepPlan(prefill=chunks, reserve_tokens=reserve_tokens if self.reserves else (), blocked_by=blocked_by)

    def never_fits(self, prompt_tokens: int) -> str | None:
        """Refuse a prompt above max_num_tokens without chunks, as TensorRT-LLM does."""
        if prompt_tokens > self.max_num_tokens and not self.enable_chunked_context:
            return "prompt longer than max_num_tokens, and enable_chunked_context is off"
        return None

    def _chunk_tokens(self, request: Request, budget_tokens: int, block_size: int, is_first: bool) -> int:
        """Return the prompt tokens of a step: all, whole blocks, or none; the first prompt always progresses."""
        left_tokens = request.prefill_left_tokens
        if left_tokens <= budget_tokens:
            return left_tokens
        if self.enable_chunked_context:
            return max(budget_tokens, 0) // block_size * block_size or (budget_tokens if is_first else 0)
        return left_tokens if is_first else 0

    def _blocks(self, view: ReplicaView, request: Request) -> int:
        """Return the blocks that a request will still take, as the capacity policy counts them."""
        if not self.reserves:
            is_new, left_tokens = request.is_new, request.prefill_left_tokens
            return view.blocks_to_admit(request) if is_new else view.blocks_for_chunk(request, left_tokens)
        return view.blocks_for(request.prompt_tokens + request.max_tokens) if request.is_new else 0
