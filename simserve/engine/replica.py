"""Replica: turns plans into time. Plan, sleep until the stretch ends or the bell rings, commit, plan again."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.cost.model import CostModel
from simserve.engine.alarm import PLAN_PHASE, Alarm, Clock
from simserve.engine.checks import ask_for_plan, ask_for_victim
from simserve.engine.offered import Rows
from simserve.engine.recorder import BLOCKED_BY, Recorder
from simserve.engine.stretch import Stretch
from simserve.schedulers.base import Blocked, Scheduler, StepPlan
from simserve.state.cohort import Cohort
from simserve.state.kv_pool import KvPool
from simserve.state.request import Phase, Request
from simserve.state.view import ReplicaView

DECODE_ON = StepPlan()


@dataclass(frozen=True)
class ReplicaSetup:
    """What makes a replica: its policy, its costs and its memory."""

    scheduler: Scheduler
    cost: CostModel
    n_blocks: int
    block_size: int
    max_model_len: int


class Replica:
    """One copy of a model, on one or more GPUs.

    Invariant: running = prefilling + members of the cohort; a request is waiting or running, never both.
    State changes only at commits (tokens) and when a step begins (seats and blocks of the chunks it computes).
    """

    def __init__(
        self,
        index: int,
        setup: ReplicaSetup,
        clock: Clock,
        rows: Rows,
        recorder: Recorder,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self.index = index
        self.n_outstanding = 0
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self.running: dict[Request, None] = {}
        self.cohort = Cohort(setup.block_size)
        self.pool = KvPool(setup.n_blocks, setup.block_size)
        self.total_blocks = setup.n_blocks
        self.peak_blocks = 0
        self.stretch: Stretch | None = None
        self._scheduler = setup.scheduler
        self._cost = setup.cost
        self._lines: dict[int, tuple[int, int]] = {}
        self._clock = clock
        self._rows = rows
        self._recorder = recorder
        self._on_done = on_done
        self._blocked_by: Blocked | None = None
        self._step_end = Alarm(clock, self._on_step_end, phase=index)
        self._plan_time = Alarm(clock, self._plan, phase=PLAN_PHASE + index)
        self._view = ReplicaView(
            self.waiting, self.prefilling, self.running, setup.n_blocks, setup.block_size, setup.max_model_len
        )

    # -- what the cluster calls ------------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """Take a request in and ring the bell: plan at the end of the step in flight, or now when idle."""
        self.n_outstanding += 1
        self.waiting.append(request)
        stretch = self.stretch
        if stretch is None:
            if self._plan_time.due_ps != self._clock.now_ps:
                self._plan_time.set(self._clock.now_ps)
        elif stretch.n_steps > 1 and self._blocked_by is None:
            n_steps = stretch.steps_begun(self._clock.now_ps)
            if n_steps < stretch.n_steps:
                stretch.n_steps = n_steps
                self._step_end.set(stretch.end_ps(n_steps))

    def held_blocks(self) -> int:
        """KV blocks that hold tokens or are set aside at this instant, those of the step in flight included."""
        held = self.pool.total_blocks - self.pool.free_blocks
        stretch = self.stretch
        if stretch is not None and stretch.n_decoding and not self._scheduler.reserves:
            held += self.cohort.blocks_to_grow(stretch.steps_begun(self._clock.now_ps))
        return held

    def stop(self) -> None:
        """End the run here: commit the steps that are done and keep what the unfinished have got."""
        if self.stretch is not None:
            self.stretch.n_steps = self.stretch.steps_done(self._clock.now_ps)
            if self.stretch.n_steps:
                self._commit(self.stretch)
        for request in self.running:
            if request.phase is Phase.DECODE and request not in self.cohort.lingering:
                self._recorder.span(self.index, request, self.cohort.step)

    def why_waiting(self) -> str:
        """Who waits for what, for requests that nothing will ever start."""
        n_running, n_waiting = len(self.running), len(self.waiting)
        return (
            f"deadlock: replica {self.index} is idle with {n_running} requests admitted and {n_waiting} waiting, "
            f"kept out by {self._blocked_by or 'its scheduler'}; {self.pool.free_blocks} KV blocks are free"
        )

    # -- commit: the steps that are over ---------------------------------------------------------------------------

    def _on_step_end(self) -> None:
        assert self.stretch is not None  # the alarm is set only with a stretch
        self._commit(self.stretch)
        if self._clock.is_last_event():  # fast: nothing else at this instant, so the plan phase may follow at once
            self._plan()
        else:
            self._plan_time.set(self._clock.now_ps)

    def _commit(self, stretch: Stretch) -> None:
        self._recorder.stretch(self.index, stretch)
        self.stretch = None
        if stretch.n_decoding:
            self._commit_decode(stretch.n_steps)
        if stretch.chunks:
            self._commit_chunks(stretch.chunks)
        lingering = self.cohort.lingering
        if lingering and len(lingering) == self.cohort.n:
            self._end_batch()

    def _commit_decode(self, n_steps: int) -> None:
        cohort, pool = self.cohort, self.pool
        n_blocks = cohort.blocks_to_grow(n_steps)
        if self._scheduler.reserves:
            pool.fill(n_blocks)
        else:
            pool.use(n_blocks)
            self._note_peak()
        cohort.advance(n_steps)
        for request in cohort.pop_finished():
            self._last_token(request)
            if not self._scheduler.runs_to_completion:
                self._leave(request, cohort.leave(request))

    def _commit_chunks(self, chunks: Sequence[tuple[Request, int]]) -> None:
        for request, n_tokens in chunks:
            request.prefilled_tokens += n_tokens
            left_tokens = request.prompt_tokens + request.emitted_tokens - request.prefilled_tokens
            if left_tokens <= 0:
                request.padding_tokens = -left_tokens
                request.prefilled_tokens += left_tokens
                self._end_prefill(request)

    def _end_prefill(self, request: Request) -> None:
        """The prefill is complete and has produced a token; the request decodes on, or is done."""
        now_ps = self._clock.now_ps
        self.prefilling.remove(request)
        request.emitted_tokens += 1
        request.joined_ps = now_ps
        if request.first_token_ps is None:
            request.first_token_ps = now_ps
        n_left = self._rows.output_tokens[request.row] - request.emitted_tokens
        if n_left or self._scheduler.runs_to_completion:
            self.cohort.join(request, n_left)
        if not n_left:
            request.join_step = self.cohort.step
            self._last_token(request)
            if not self._scheduler.runs_to_completion:
                self._leave(request, request.prefilled_tokens)

    def _last_token(self, request: Request) -> None:
        """All its tokens are computed; unless the answer leaves whole with its batch, the client has them."""
        self._recorder.span(self.index, request, self.cohort.step)
        if self._scheduler.runs_to_completion:
            self.cohort.lingering.append(request)
        if self._scheduler.stream:
            self._answer(request)

    def _end_batch(self) -> None:
        """All of a padded batch have finished: they leave together, and whole answers with them."""
        done, self.cohort.lingering = self.cohort.lingering, []
        for request in done:
            self._leave(request, self.cohort.leave(request))
            if not self._scheduler.stream:
                request.first_token_ps = self._clock.now_ps
                self._answer(request)

    def _answer(self, request: Request) -> None:
        """The client has its whole answer."""
        self.n_outstanding -= 1
        self._recorder.finish(self.index, request, self._clock.now_ps)
        if self._on_done is not None:
            self._on_done()

    def _leave(self, request: Request, kv_tokens: int) -> None:
        """Give back its seat and its blocks."""
        request.phase = Phase.DONE
        del self.running[request]
        self._release(request, kv_tokens)

    def _release(self, request: Request, kv_tokens: int) -> None:
        n_used = -(-kv_tokens // self.pool.block_size)
        n_reserved = request.reserved_blocks
        self.pool.release(n_used, n_reserved - n_used if n_reserved else 0)
        request.reserved_blocks = 0

    def _note_peak(self) -> None:
        held = self.pool.total_blocks - self.pool.free_blocks
        if held > self.peak_blocks:
            self.peak_blocks = held

    # -- plan: the steps to come -----------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Decide the next steps and sleep through them."""
        just_preempted = self._make_room()
        plan = DECODE_ON
        while self.waiting or self.prefilling:
            plan = self._ask(just_preempted)
            stuck = plan.blocked_by == "blocks" and not plan.prefill and not self.cohort.n and len(self.running) > 1
            if not stuck:
                break
            # Half-done prompts hold all blocks and none of them can go on.
            self._preempt(ask_for_victim(self._scheduler, self._view))
            just_preempted = True
        self._blocked_by = plan.blocked_by
        if plan.prefill:
            self._start_mixed(plan)
        elif self.cohort.n and plan.decode:
            self._start_decode(plan, 1 if just_preempted else plan.valid_steps)
        elif plan.wake_at_ps is not None:
            self._plan_time.set(plan.wake_at_ps)

    def _ask(self, just_preempted: bool) -> StepPlan:
        view, n_growth = self._view, 0
        if not self._scheduler.reserves:
            n_growth = self.cohort.blocks_to_grow(1)
        view.now_ps = self._clock.now_ps
        view.n_decoding = self.cohort.n
        view.free_blocks = self.pool.free_blocks - n_growth
        view.just_preempted = just_preempted
        return ask_for_plan(self._scheduler, view)

    def _make_room(self) -> bool:
        """Preempt until the decoding requests have the blocks of their next step; True if somebody had to go."""
        cohort, pool = self.cohort, self.pool
        if pool.free_blocks >= cohort.n or self._scheduler.reserves:
            return False
        just_preempted = False
        while cohort.blocks_to_grow(1) > pool.free_blocks:
            self._view.now_ps = self._clock.now_ps
            self._preempt(ask_for_victim(self._scheduler, self._view))
            just_preempted = True
        return just_preempted

    def _preempt(self, request: Request) -> None:
        """Take a running request's blocks; it waits at the head of the queue and will compute all again."""
        if request.phase is Phase.DECODE:
            kv_tokens = self.cohort.drop(request)
            self._recorder.span(self.index, request, self.cohort.step)
        else:
            kv_tokens = request.prefilled_tokens
            self.prefilling.remove(request)
        self._release(request, kv_tokens)
        del self.running[request]
        request.phase = Phase.WAITING
        request.prefilled_tokens = 0
        request.n_preemptions += 1
        request.n_recomputed_tokens += kv_tokens
        request.preempted_at_ps = self._clock.now_ps
        self.waiting.appendleft(request)

    def _start_mixed(self, plan: StepPlan) -> None:
        """One step: prompt chunks, and a token for each decoding request if the plan says so."""
        n_tokens = n_pairs = n_context = n_complete = 0
        for i, (request, n_chunk) in enumerate(plan.prefill):
            if request.phase is Phase.WAITING:
                self._admit(request)
                if plan.reserve_tokens:
                    request.reserved_blocks = self.pool.blocks_for(plan.reserve_tokens[i])
                    self.pool.reserve(request.reserved_blocks)
            done = request.prefilled_tokens
            n_blocks = self.pool.blocks_for(done + n_chunk) - self.pool.blocks_for(done)
            if request.reserved_blocks:
                self.pool.fill(n_blocks)
            else:
                self.pool.use(n_blocks)
            n_tokens += n_chunk
            n_pairs += n_chunk * done + n_chunk * (n_chunk + 1) // 2
            n_context += done + n_chunk
            n_complete += n_chunk >= request.prompt_tokens + request.emitted_tokens - done
        self._note_peak()
        cohort, cost = self.cohort, self._cost
        n = cohort.n if plan.decode else 0
        first_ps = cost.tokens_ps(n_tokens + n) + cost.sampled_ps(n + n_complete)
        first_ps += cost.prefill_ps(n_tokens, n_pairs, n_context)
        if n:
            intercept_ps, slope_ps = cost.decode_line(n)
            first_ps += intercept_ps + slope_ps * cohort.kv_tokens
        self._sleep(plan, first_ps, 0, 1, n, n_tokens, n_pairs)

    def _admit(self, request: Request) -> None:
        """A seat for a waiting request, which is nearly always the head of the queue."""
        now_ps = self._clock.now_ps
        if self.waiting[0] is request:
            self.waiting.popleft()
        else:
            self.waiting.remove(request)
        request.phase = Phase.PREFILL
        self.running[request] = None
        self.prefilling.append(request)
        if request.scheduled_ps is None:
            request.scheduled_ps = now_ps
        if request.preempted_at_ps is not None:
            request.preempted_ps += now_ps - request.preempted_at_ps
            request.preempted_at_ps = None

    def _start_decode(self, plan: StepPlan, n_most: int | None) -> None:
        """As many steps as the cohort can make before somebody finishes, blocks run out or the plan ends."""
        cohort, free_blocks = self.cohort, self.pool.free_blocks
        n = cohort.n
        n_steps = cohort.steps_to_finish()
        if n_most is not None and n_most < n_steps:
            n_steps = n_most
        # fast: at most one block a member and block_size steps, so the exact count is seldom needed
        if n * (n_steps // cohort.block_size + 1) > free_blocks and not self._scheduler.reserves:
            n_steps = min(n_steps, cohort.steps_within(free_blocks))
        line = self._lines.get(n)
        if line is None:
            intercept_ps, slope_ps = self._cost.decode_line(n)
            line = self._lines[n] = (self._cost.tokens_ps(n) + self._cost.sampled_ps(n) + intercept_ps, slope_ps)
        self._sleep(plan, line[0] + line[1] * cohort.kv_tokens, line[1] * n, n_steps, n, 0, 0)

    def _sleep(
        self, plan: StepPlan, first_ps: int, growth_ps: int, n_steps: int, n: int, n_tokens: int, n_pairs: int
    ) -> None:
        pool = self.pool
        stretch = self.stretch = Stretch(
            self._clock.now_ps,
            first_ps,
            growth_ps,
            n_steps,
            plan.prefill,
            n_tokens,
            n_pairs,
            n,
            self.cohort.kv_tokens if n else 0,
            pool.used_blocks,
            pool.reserved_blocks,
            len(self.waiting),
            BLOCKED_BY[plan.blocked_by],
        )
        if plan.wake_at_ps is not None:
            stretch.n_steps = min(n_steps, stretch.steps_begun(plan.wake_at_ps))
        self._step_end.set(stretch.end_ps(stretch.n_steps))
