"""Prefill first with chunks, as in SGLang: admission estimates how much memory running requests will still need."""

from typing import Annotated, cast

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.planner import WORDS
from simserve.state.request import Request
from simserve.state.sglang_planner import SgLangLimits, SgLangPlanner
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
    """[tokens] Budget of a step for prompts with chunking: longer ones are cut (SGLang `--chunked-prefill-size`); null:
    prompts are never cut."""
    max_prefill_tokens: PositiveInt = 16384
    """[tokens] Budget of a step for prompts without chunking; a longer prompt runs alone (SGLang
    `--max-prefill-tokens`)."""
    max_running_requests: PositiveInt | None = None
    """Maximum running requests (SGLang `--max-running-requests`); null: SGLang's default, 2048 to 4096 by the size of
    the KV cache."""
    enable_mixed_chunk: bool = False
    """Running requests also decode in prefill steps (SGLang `--enable-mixed-chunk`)."""
    schedule_conservativeness: NonNegativeFloat = 1.0
    """Factor on init_new_token_ratio; larger values mean fewer retractions and smaller batches (SGLang
    `--schedule-conservativeness`)."""
    scheduler_recv_interval: Annotated[PositiveInt, Field(le=1_000_000)] = 1
    """Decode steps after which it looks for requests that have come; it also does after a step with prompts (SGLang
    `--scheduler-recv-interval`)."""
    init_new_token_ratio: Share = 0.7
    """[share] Initial share of remaining tokens that running requests are charged for (SGLANG_INIT_NEW_TOKEN_RATIO)."""
    min_new_token_ratio_factor: Share = 0.14
    """[share] Final ratio, as a share of the initial one."""
    new_token_ratio_decay_steps: PositiveInt = 600
    """Decode steps in which the ratio falls from initial to final."""
    retract_decode_steps: NonNegativeInt = 20
    """Extra steps that the ratio allows the remaining requests after a retraction."""
    clip_max_new_tokens_estimation: PositiveInt = 4096
    """[tokens] Cap on the remaining max_tokens of a request in the estimate."""

    def __post_init__(self) -> None:
        limits = SgLangLimits(
            self.chunked_prefill_size,
            self.max_prefill_tokens,
            self.max_running_requests,
            self.enable_mixed_chunk,
            self.retract_decode_steps,
            self.clip_max_new_tokens_estimation,
        )
        first = min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)
        last = first * self.min_new_token_ratio_factor
        self._planner = SgLangPlanner(limits, first, last, self.new_token_ratio_decay_steps)

    @property
    def budget_tokens(self) -> int:
        """Most prompt tokens of a step."""
        return self.chunked_prefill_size or self.max_prefill_tokens

    @property
    def new_token_ratio(self) -> float:
        """Current ratio of remaining tokens that running requests are charged for."""
        return self._planner.ratio.now

    @property
    def recv_interval(self) -> int:
        """Decode steps between two looks."""
        return self.scheduler_recv_interval

    @property
    def most_chunk(self) -> int | None:
        """The longest chunk."""
        return self.chunked_prefill_size

    @property
    def most_counted_on(self) -> int:
        """The cap on the estimate."""
        return self.clip_max_new_tokens_estimation

    def rows_planner(self) -> SgLangPlanner:
        """Return what decides."""
        return self._planner

    def plan(self, view: ReplicaView) -> StepPlan:
        """Continue the started prompt, then admit new ones, while tokens, slots and memory last; otherwise decode."""
        return self._planner.planned(view)

    def victim(self, view: ReplicaView) -> Request:
        """Return the request with the fewest output tokens; a started prompt only if one request decodes."""
        if len(self._planner.running) < 2 and view.prefilling:
            return view.prefilling[-1]
        return cast(Request, self._planner.victim())

    # -- calls from the engine -----------------------------------------------------------------------------------

    def on_commit(self, n_steps: int, has_prefill: bool, blocked_by: Blocked | None) -> None:
        """Lower the ratio by decode-only steps; a request that found no room marks the batch as full."""
        self._planner.committed(n_steps, has_prefill, WORDS.index(blocked_by))

    def on_join(self, request: Request) -> None:
        """Charge one more request."""
        self._planner.joined(request, request.prompt_tokens, request.max_tokens, request.emitted_tokens)

    def on_accept(self, request: Request, n_tokens: int) -> None:
        """Charge a request for fewer remaining tokens."""
        self._planner.accepted(request, n_tokens)

    def on_leave(self, request: Request) -> None:
        """Charge one less; a full batch may be tried again."""
        self._planner.left(request)

    def on_abandon(self, request: Request) -> None:
        """Allow a full batch to be tried again; the request was not charged."""
        self._planner.abandoned()

    def on_preempt(self) -> None:
        """Set the ratio to the used part of max_tokens of the remaining requests, plus some steps."""
        self._planner.preempted()

    def on_idle(self) -> None:
        """Reset the ratio."""
        self._planner.idle()
