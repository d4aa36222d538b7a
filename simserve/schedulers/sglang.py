"""Prefill first with chunks, as in SGLang: admission estimates how much memory running requests will still need."""

from collections.abc import Iterable
from math import inf
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.remaining import RemainingTokens
from simserve.state.request import Request
from simserve.state.view import ReplicaView

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(config=STRICT)
class SgLang(Scheduler):
    """Prefill goes first, in steps of its own, in chunks; a started prompt is finished before others start.

    A request is admitted if its prompt and max_tokens fit beside the estimated need of running requests: a ratio of
    their remaining max_tokens that starts at 0.7, falls to 0.098 over 600 decode steps, is estimated anew after a
    retraction and resets when idle. Once a request does not fit, none is tried until a running one has left. When
    blocks run out, the request with the fewest output tokens is retracted, to the end of the queue. The last five
    arguments are environment variables in SGLang (SGLANG_INIT_NEW_TOKEN_RATIO ...). Source: SGLang, srt/managers:
    schedule_policy.py (PrefillAdder), scheduler.py, schedule_batch.py (retract_decode).
    """

    is_stateful = True
    requeues_last = True
    caches_answers = False
    budget_argument = "chunked_prefill_size"
    slots_argument = "max_running_requests"
    without_reserving = "a lower clip_max_new_tokens_estimation"
    budgets_decode = False

    chunked_prefill_size: PositiveInt | None = 8192
    """Maximum prompt tokens per step with chunking: longer prompts are cut; null: prompts are never cut."""
    max_prefill_tokens: PositiveInt = 16384
    """Maximum prompt tokens per step without chunking; a longer prompt runs alone."""
    max_running_requests: PositiveInt | None = None
    """Maximum running requests; left out: SGLang's default, 2048 to 4096 by the size of the KV cache."""
    enable_mixed_chunk: bool = False
    """Running requests also decode in prefill steps."""
    schedule_conservativeness: NonNegativeFloat = 1.0
    """Scales init_new_token_ratio; larger values mean fewer retractions and smaller batches."""
    init_new_token_ratio: Share = 0.7
    """Initial ratio of remaining tokens that running requests are charged for."""
    min_new_token_ratio_factor: Share = 0.14
    """Final ratio, as a fraction of the initial one."""
    new_token_ratio_decay_steps: PositiveInt = 600
    """Decode steps in which the ratio falls from initial to final."""
    retract_decode_steps: NonNegativeInt = 20
    """Extra steps that the ratio allows the remaining requests after a retraction."""
    clip_max_new_tokens_estimation: PositiveInt = 4096
    """Cap on the remaining max_tokens of a request in the estimate."""

    def __post_init__(self) -> None:
        self._init_ratio = min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)
        self._min_ratio = self._init_ratio * self.min_new_token_ratio_factor
        self._ratio = self._init_ratio
        self._n_decayed = 0
        self._running = RemainingTokens(self.clip_max_new_tokens_estimation)
        self._full: Blocked | None = None
        self._has_shrunk = False
        self._has_retracted = False

    @property
    def budget_tokens(self) -> int:
        """Most prompt tokens of a step."""
        return self.chunked_prefill_size or self.max_prefill_tokens

    @property
    def new_token_ratio(self) -> float:
        """Current ratio of remaining tokens that running requests are charged for."""
        if not self._n_decayed:
            return self._ratio
        decay = (self._init_ratio - self._min_ratio) / self.new_token_ratio_decay_steps
        return max(self._ratio - decay * self._n_decayed, self._min_ratio)

    @property
    def most_chunk(self) -> int | None:
        """The longest chunk."""
        return self.chunked_prefill_size

    @property
    def most_counted_on(self) -> int:
        """The cap on the estimate."""
        return self.clip_max_new_tokens_estimation

    def plan(self, view: ReplicaView) -> StepPlan:
        """Continue the started prompt, then admit new ones, while tokens, slots and memory last; otherwise decode."""
        if self._full and view.n_decoding and not view.prefilling:
            return StepPlan(valid_steps=1 if self._has_shrunk else None, blocked_by=self._full)
        batch = _Batch(self, view)
        blocked_by = batch.continue_chunk(view.prefilling[0]) if view.prefilling else None
        if blocked_by is None:
            blocked_by = "blocks" if view.just_preempted else batch.fill(view.waiting)
        decode = self.enable_mixed_chunk or not batch.chunks
        # A first chunk that lacks budget in a mixed step may lack blocks some steps later, and that state is kept.
        valid_steps = 1 if blocked_by == "budget" and not batch.chunks else None
        return StepPlan(prefill=batch.chunks, decode=decode, valid_steps=valid_steps, blocked_by=blocked_by)

    def victim(self, view: ReplicaView) -> Request:
        """Return the request with the fewest output tokens; a started prompt only if one request decodes."""
        if len(self._running) < 2 and view.prefilling:
            return view.prefilling[-1]
        return self._running.fewest_tokens()

    # -- calls from the engine -----------------------------------------------------------------------------------

    def on_commit(self, n_steps: int, has_prefill: bool, blocked_by: Blocked | None) -> None:
        """Decay the ratio by decode-only steps; a request that found no room marks the batch as full."""
        if n_steps > 1 and (self._has_shrunk or self._has_retracted):  # only the first step sees these flags
            self.on_commit(1, has_prefill, blocked_by)
            n_steps -= 1
        if self._has_shrunk:
            self._full = None  # a step late: SGLang tries prefill before it removes finished requests
        elif blocked_by in ("seats", "blocks") and len(self._running) and not self._has_retracted:
            self._full = blocked_by
        if not has_prefill and not self._has_retracted:
            self._n_decayed += n_steps
        self._has_shrunk = self._has_retracted = False
        self._running.advance(n_steps)

    def on_join(self, request: Request) -> None:
        """Charge one more request."""
        self._running.join(request)

    def on_accept(self, request: Request, n_tokens: int) -> None:
        """Charge a request for fewer remaining tokens."""
        self._running.accept(request, n_tokens)

    def on_leave(self, request: Request) -> None:
        """Charge one less; a full batch may be tried again."""
        if request in self._running:
            self._running.leave(request)
            self._has_shrunk = self._full is not None
        else:
            self._full, self._has_shrunk = None, False

    def on_abandon(self, request: Request) -> None:
        """Allow a full batch to be tried again; the request was not charged."""
        self._full, self._has_shrunk = None, False

    def on_preempt(self) -> None:
        """Set the ratio to the used part of max_tokens of the remaining requests, plus some steps."""
        emitted_tokens, most_tokens = self._running.sums()
        soon_tokens = emitted_tokens + self.retract_decode_steps * len(self._running)
        self._ratio, self._n_decayed = min(soon_tokens / (most_tokens + 1), 1.0), 0
        self._full, self._has_shrunk, self._has_retracted = None, False, True

    def on_idle(self) -> None:
        """Reset the ratio."""
        self._ratio, self._n_decayed = self._init_ratio, 0


class _Batch:
    """A prefill batch being built, and the room left for it."""

    def __init__(self, policy: SgLang, view: ReplicaView) -> None:
        n_mixed = view.n_decoding * view.decode_tokens if policy.enable_mixed_chunk else 0
        self.chunks: list[tuple[Request, int]] = []
        self._view = view
        self._page_tokens = view.block_size
        self._most_new_tokens = policy.clip_max_new_tokens_estimation
        self._free_slots = (policy.max_running_requests or _max_running(view)) - view.n_running
        self._room_tokens = view.tokens_in(view.free_blocks) - policy._running.total * policy.new_token_ratio
        self._input_tokens = policy.max_prefill_tokens - n_mixed
        self._chunk_tokens = (policy.chunked_prefill_size or inf) - n_mixed

    def continue_chunk(self, request: Request) -> Blocked | None:
        """Add the next chunk of a started prompt; it was admitted with all its tokens, so only blocks can be short."""
        left_tokens = request.prefill_left_tokens
        n_tokens = int(min(left_tokens, self._chunk_tokens))
        if n_tokens <= 0:
            return "budget"
        if self._view.blocks_for_chunk(request, n_tokens) > self._view.free_blocks:
            return "blocks"
        self._add(request, n_tokens, self._new_tokens(request) if n_tokens == left_tokens else 0)
        return None

    def fill(self, waiting: Iterable[Request]) -> Blocked | None:
        """Admit new requests in order; return what blocks the next one."""
        for request in waiting:
            blocked_by = self._take(request)
            if blocked_by:
                return blocked_by
        return None

    def _take(self, request: Request) -> Blocked | None:
        """Admit a request: its whole prompt, or as much as fits a chunk."""
        is_alone = self._view.free_blocks == self._view.total_blocks and not self.chunks
        left_tokens, new_tokens = request.prefill_left_tokens, self._new_tokens(request)
        found_tokens = self._view.tokens_of_hit(request)  # not evictable once it holds them
        if self.chunks and self._room_tokens <= 0:
            return "blocks"
        if min(self._input_tokens, self._chunk_tokens) <= 0:
            return "budget"
        if self._free_slots <= 0:
            return "seats"
        if left_tokens + found_tokens + new_tokens + self._page_tokens >= self._room_tokens and not is_alone:
            return "blocks"
        n_tokens = self._tokens_of(left_tokens, is_alone)
        if not n_tokens:
            return "budget"
        self._free_slots -= 1
        self._room_tokens -= found_tokens
        self._add(request, n_tokens, new_tokens if n_tokens == left_tokens else 0)
        return None

    def _tokens_of(self, left_tokens: int, is_alone: bool) -> int:
        """Return the prompt tokens to compute: all if their pages fit, else whole pages; 0: it must wait."""
        input_tokens = self._in_pages(left_tokens)
        if input_tokens > self._chunk_tokens:
            chunk_tokens = int(self._chunk_tokens)
            paged_tokens = chunk_tokens // self._page_tokens * self._page_tokens
            return min(left_tokens, paged_tokens or (chunk_tokens if is_alone else 0))
        may_cut = self._chunk_tokens < inf
        return left_tokens if may_cut or not self.chunks or input_tokens < self._input_tokens else 0

    def _add(self, request: Request, n_tokens: int, new_tokens: int) -> None:
        """Charge whole pages and one more, and the future output of a prompt that will be complete."""
        input_tokens = self._in_pages(n_tokens)
        self.chunks.append((request, n_tokens))
        self._room_tokens -= input_tokens + new_tokens + self._page_tokens
        self._input_tokens -= input_tokens
        self._chunk_tokens -= input_tokens

    def _new_tokens(self, request: Request) -> int:
        """Return the output tokens that a request is charged for."""
        return min(request.max_tokens - request.emitted_tokens, self._most_new_tokens)

    def _in_pages(self, n_tokens: int) -> int:
        return -(-n_tokens // self._page_tokens) * self._page_tokens


def _max_running(view: ReplicaView) -> int:
    """Return SGLang's default of max_running_requests (model_runner.py): 512 longest requests, within 2048 and 4096."""
    return min(max(view.tokens_in(view.total_blocks) * 512 // view.max_model_len, 2048), 4096)
