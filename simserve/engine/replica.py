"""Replica: turns plans into time. Plan, sleep until the step run ends or is cut, commit, plan again."""

from collections.abc import Callable

from simserve.cost.model import CostModel
from simserve.engine.alarm import PLAN_PHASE, Alarm, Clock
from simserve.engine.checks import broke, check_prefill
from simserve.engine.offered import OfferedRows
from simserve.engine.prefixes import CachingBatchState
from simserve.engine.recorder import BLOCKED_BY, FINISHED, Recorder, pack_step_run
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.step_run import StepRun
from simserve.schedulers.base import Blocked, StepPlan
from simserve.state.request import DECODE, TRANSFER, WAITING, Request

DECODE_ON = StepPlan()

OnAnswer = Callable[[int, int], None]
"""Called with the row of a request and the instant of its last token."""


class Replica:
    """One copy of a model, on one or more GPUs; or one rank of it with a scheduler of its own.

    State changes only at commits (tokens) and when a step begins (slots and blocks of its chunks).
    """

    __slots__ = (
        "_blocked_by",
        "_blocked_code",
        "_caching",
        "_clock",
        "_coming",
        "_cost",
        "_is_alone",
        "_is_stateful",
        "_lines",
        "_n_ahead",
        "_n_given_back",
        "_on_answer",
        "_plan_time",
        "_recorder",
        "_reserves",
        "_rows",
        "_runs_to_completion",
        "_scheduler",
        "_step_end",
        "_step_run_rows",
        "batch",
        "block_size",
        "block_tokens",
        "cohort",
        "hand_over",
        "id",
        "index",
        "n_away",
        "n_before_queue",
        "n_outstanding",
        "pool",
        "role",
        "step_run",
        "total_blocks",
    )
    # fast: slot access costs the same however many a subclass adds in its __dict__; a shared-key dict holds at most
    # thirty attributes (CPython, dictobject.c)

    most_blocks = 1
    """Blocks that a decoding request begins in a step, at most."""
    drafting_ps = 0
    """Time that its steps spent on drafting."""

    def __init__(
        self,
        index: int,
        setup: ReplicaSetup,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        on_answer: OnAnswer | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self.index = self.id = index
        self.role = setup.role
        self.hand_over: Callable[[Request, Replica, int], None] | None = None
        """Called with each prefilled request; None: requests decode here."""
        self.n_outstanding = 0
        self.n_away = 0
        """Requests with blocks here that have left for another replica, or are in transfer to this one."""
        self._n_given_back = 0
        """Blocks that these have freed during the step in flight."""
        self.n_before_queue = 0
        """Requests from other replicas without blocks here yet."""
        self.total_blocks, self.block_size = setup.n_blocks, setup.block_size
        self.block_tokens = setup.block_tokens
        self.batch = setup.batch(index, recorder)
        self._caching = self.batch if isinstance(self.batch, CachingBatchState) else None
        self.cohort, self.pool = self.batch.cohort, self.batch.pool
        self.step_run: StepRun | None = None
        self._scheduler = setup.scheduler
        self._reserves = setup.scheduler.reserves
        self._runs_to_completion = setup.scheduler.runs_to_completion
        self._is_stateful = setup.scheduler.is_stateful
        self._cost = setup.cost
        self._lines: dict[int, tuple[int, int]] = {}
        self._clock = clock
        self._rows = rows
        self._recorder = recorder
        self._step_run_rows = recorder.step_run_rows[index]
        self._on_answer = on_answer
        self._is_alone = is_alone
        self._n_ahead = int(setup.async_scheduling)
        self._coming: list[tuple[Request, int]] = []
        """(request, steps that begin before the scheduler sees it), with async scheduling."""
        self._blocked_by: Blocked | None = None
        self._blocked_code = 0
        self._step_end = Alarm(clock, self._on_step_end, phase=index)
        self._plan_time = Alarm(clock, self._plan, phase=PLAN_PHASE + index)

    # -- called by the cluster -----------------------------------------------------------------------------------------

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request; plan at the end of the step in flight, or now when idle."""
        self.n_outstanding += 1
        step_run = self.step_run
        if self._n_ahead and (step_run is not None or self.batch.running):
            self._coming.append((request, 1 + step_run.steps_begun(now_ps) if step_run is not None else 1))
        else:
            self.batch.waiting.append(request)
        if step_run is None or (self._blocked_by is None and not self._is_alone):
            self.wake(now_ps, self._n_ahead)

    @property
    def n_waiting(self) -> int:
        """Requests without a slot or blocks."""
        return len(self.batch.waiting) + len(self._coming)

    @property
    def in_transit(self) -> list[Request]:
        """Requests that come from other replicas and do not run here yet."""
        return []

    @property
    def cost(self) -> CostModel:
        """Cost model of its steps."""
        return self._cost

    @property
    def streams(self) -> bool:
        """Tokens are streamed; otherwise answers leave whole."""
        return self._scheduler.stream

    def uncomputed_tokens(self) -> int:
        """Return the prefill tokens left to compute after the committed steps; O(queue)."""
        waiting: list[Request] = [*self.batch.waiting, *(request for request, _ in self._coming)]
        n_waiting = sum(request.prompt_tokens + request.emitted_tokens for request in waiting)
        return n_waiting + sum(request.prefill_left_tokens for request in self.batch.prefilling)

    def step_end_ps(self, now_ps: int) -> int | None:
        """Return the end of the step in flight, cutting the step run there; None: no step is in flight."""
        step_run = self.step_run
        if step_run is None:
            return None
        self.wake(now_ps)
        if step_run.end_ps > now_ps:
            return step_run.end_ps
        self._step_end.due_ps = None  # a step ends at this very instant, so commit now
        self.commit(step_run, now_ps)
        return None

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Drop a timed-out request, with no step in flight. In a padded batch it stays to the end, like a
        finished one. Return None, or when to try again."""
        if any(request is newcomer for newcomer, _ in self._coming):
            self._coming = [(each, n) for each, n in self._coming if each is not request]
        elif request.phase is DECODE and self._runs_to_completion:
            self._linger(request, now_ps)
            return None
        else:
            self.batch.abandon(request)
        self.n_outstanding -= 1
        self.wake(now_ps)
        return None

    def _linger(self, request: Request, now_ps: int) -> None:
        lingering = self.cohort.lingering
        if request in lingering:
            return
        self._recorder.span(self.index, request, self.cohort.step)
        self.cohort.forget(request)
        lingering.append(request)
        self.n_outstanding -= self._scheduler.stream  # whole answers count until they leave
        if len(lingering) == self.cohort.n:
            self._end_batch(now_ps)
        self.wake(now_ps)

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the prefix cache at this instant."""
        if self._caching is None:
            return 0
        step_run = self.step_run
        if step_run is not None and step_run.n_decoding:
            n_steps = step_run.steps_done(self._clock.now_ps)  # their blocks are taken but not committed yet
            self._caching.reclaim(self.cohort.blocks_to_grow(n_steps))
        return self._caching.found_tokens(request)

    def give_back(self, request: Request, now_ps: int) -> None:
        """Free the blocks of a request after its transfer."""
        self.n_away -= 1
        n_blocks = self.batch.give_back(request, request.prefilled_tokens)
        if self.step_run is not None:
            self._n_given_back += n_blocks
        elif self.batch.waiting or self.batch.prefilling:
            self.wake(now_ps)

    def wake(self, now_ps: int, n_ahead: int = 0) -> None:
        """Plan when the step in flight and n_ahead more are over, or now when idle."""
        step_run = self.step_run
        if step_run is None:
            if self._plan_time.due_ps != now_ps:
                self._plan_time.set(now_ps)
        elif step_run.n_steps > 1:
            n_steps = step_run.steps_begun(now_ps) + n_ahead
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)
                self._step_end.set(step_run.end_ps)

    def held_blocks(self) -> int:
        """Return the KV blocks used or reserved at this instant, including those of the step in flight."""
        held = self.pool.total_blocks - self.pool.free_blocks
        step_run = self.step_run
        if step_run is not None and step_run.n_decoding and not self._reserves:
            held += self.cohort.blocks_to_grow(step_run.steps_begun(self._clock.now_ps))
        return held

    def stop(self, now_ps: int) -> None:
        """End the run: commit the steps that are over and record the spans of unfinished requests."""
        if self.step_run is not None:
            self.step_run.cut(self.step_run.steps_done(now_ps))
            if self.step_run.n_steps:
                self.commit(self.step_run, now_ps)
        self._show_arrivals(2)
        for request in self._still_decoding():
            self._recorder.span(self.index, request, self.cohort.step)

    def _still_decoding(self) -> list[Request]:
        """Return the requests with an open span."""
        lingering = self.cohort.lingering
        return [each for each in self.batch.running if each.phase is DECODE and each not in lingering]

    def why_waiting(self) -> str:
        """Explain a deadlock: what waits, and for what."""
        n_running, n_waiting = len(self.batch.running), len(self.batch.waiting)
        return (
            f"deadlock: replica {self.index} is idle with {n_running} requests admitted and {n_waiting} waiting, "
            f"kept out by {self._blocked_by or 'its scheduler'}; {self.pool.free_blocks} KV blocks are free"
        )

    # -- commit: the steps that are over ---------------------------------------------------------------------------

    def _on_step_end(self, now_ps: int) -> None:
        """Commit, plan and sleep; loop without the clock while no other event happens in between."""
        clock, step_run = self._clock, self.step_run
        events = clock.events
        while step_run is not None:
            self.commit(step_run, now_ps)
            if events and events[0][0] <= now_ps:
                self._plan_time.set(now_ps)
                return
            self.decide(now_ps)  # fast: no other event at this instant, so plan at once
            step_run = self.step_run
            if step_run is None:
                return
            now_ps = step_run.end_ps
            if events and events[0][0] <= now_ps:
                self._sleep(step_run)
                return
            clock._now = now_ps

    def _sleep(self, step_run: StepRun) -> None:
        """Sleep until the end of the step run, or of the step that the next arrival falls into."""
        events = self._clock.events
        if self._is_alone and self._blocked_by is None and step_run.n_steps > 1 and events:
            # fast: the next event can only be an arrival for this replica, so cut in advance
            n_steps = step_run.steps_begun(events[0][0]) + self._n_ahead
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)
        self._step_end.set(step_run.end_ps)

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Record a step run, with the counters at its start (nothing was committed since), and apply it."""
        cohort, pool, n = self.cohort, self.pool, step_run.n_decoding
        self.step_run = None
        if self._is_stateful:
            self._scheduler.on_commit(step_run.n_steps if n else 0, bool(step_run.chunks), self._blocked_by)
        self._step_run_rows += pack_step_run(
            step_run.start_ps,
            step_run.first_ps,
            step_run.growth_ps,
            step_run.n_prefill_pairs,
            cohort.kv_tokens if n else 0,
            step_run.n_steps,
            step_run.n_prefill_tokens,
            n,
            pool.used_blocks + self._n_given_back,
            pool.reserved_blocks,
            step_run.queue_len,
            self._blocked_code,
        )
        if n:
            pool.take(cohort.advance(step_run.n_steps), self._reserves)
            if cohort.step >= cohort.next_finish_step:
                for request in cohort.pop_finished():
                    self._last_token(request, now_ps)
                    if not self._runs_to_completion:
                        self.batch.leave(request, cohort.leave(request))
                    if self._is_stateful:
                        self._scheduler.on_leave(request)
        if step_run.chunks:
            self._commit_chunks(step_run, now_ps)
        if cohort.lingering and len(cohort.lingering) == cohort.n:
            self._end_batch(now_ps)
        if self._coming:
            self._show_arrivals(step_run.n_steps)
        self._n_given_back = 0

    def _show_arrivals(self, n_steps: int) -> None:
        """Show the scheduler the arrivals that have waited for n_steps steps, in the order of arrival."""
        self.batch.waiting.extend(request for request, n in self._coming if n <= n_steps)
        self._coming = [(request, n - n_steps) for request, n in self._coming if n > n_steps]

    def _commit_chunks(self, step_run: StepRun, now_ps: int) -> None:
        for request, n_tokens in step_run.chunks:
            request.prefilled_tokens += n_tokens
            left_tokens = request.prompt_tokens + request.emitted_tokens - request.prefilled_tokens
            if self._caching is not None:
                self._caching.computed(request)
            if left_tokens <= 0:
                request.padding_tokens = -left_tokens
                request.prefilled_tokens += left_tokens
                self._end_prefill(request, now_ps)
            elif not request.n_preemptions:
                self._recorder.begin_prompt(request.row, now_ps - step_run.start_ps)

    def _end_prefill(self, request: Request, now_ps: int) -> None:
        """Complete a prefill, which emits a token; the request decodes, leaves for another replica, or is done."""
        self.batch.prefilling.remove(request)
        if not request.emitted_tokens:
            self._recorder.first_token_ps[request.row] = now_ps
        request.emitted_tokens += 1
        request.joined_ps = now_ps
        n_left = self._rows.output_tokens[request.row] - request.emitted_tokens
        if n_left and self.hand_over is not None:
            self._send_away(request)
            self.hand_over(request, self, now_ps)
            return
        if n_left or self._runs_to_completion:
            self.cohort.join(request, n_left)
        if self._is_stateful:
            notify = self._scheduler.on_join if n_left else self._scheduler.on_leave
            notify(request)
        if not n_left:
            request.join_step = self.cohort.step
            self._last_token(request, now_ps)
            if not self._runs_to_completion:
                self.batch.leave(request, request.prefilled_tokens)

    def _send_away(self, request: Request) -> None:
        """Mark a request as in transfer; it holds its blocks until they are fetched."""
        del self.batch.running[request]
        request.phase = TRANSFER
        self.n_away += 1
        self.n_outstanding -= 1
        if self._is_stateful:
            self._scheduler.on_leave(request)

    def _last_token(self, request: Request, now_ps: int) -> None:
        """Close a request's span; without streaming, the client gets the answer with the whole batch."""
        self._recorder.span(self.index, request, self.cohort.step)
        if self._runs_to_completion:
            self.cohort.lingering.append(request)
        if self._scheduler.stream:
            self._answer(request, now_ps)

    def _end_batch(self, now_ps: int) -> None:
        """End a padded batch: all its requests leave together, and whole answers with them."""
        done, self.cohort.lingering = self.cohort.lingering, []
        for request in done:
            self.batch.leave(request, self.cohort.leave(request))
            if not self._scheduler.stream:
                self._recorder.first_token_ps[request.row] = now_ps
                self._answer(request, now_ps)

    def _answer(self, request: Request, now_ps: int) -> None:
        """Record that the client has its whole answer."""
        self.n_outstanding -= 1
        self._recorder.finish_ps[request.row] = now_ps
        self._recorder.status[request.row] = FINISHED
        if self._on_answer is not None:
            self._on_answer(request.row, now_ps)

    # -- plan: the steps to come -----------------------------------------------------------------------------------

    def _plan(self, now_ps: int) -> None:
        """Decide the next steps and sleep through them: the plan phase of an instant."""
        self.decide(now_ps)
        if self.step_run is not None:
            self._sleep(self.step_run)

    def decide(self, now_ps: int) -> None:
        """Make room, ask the scheduler if requests wait, and begin the step run that follows."""
        cohort, batch = self.cohort, self.batch
        # fast: room is made only where a step could begin more blocks than are free
        just_preempted = self.pool.free_blocks < cohort.n * self.most_blocks and batch.make_room(now_ps)
        plan = DECODE_ON
        while batch.waiting or batch.prefilling:
            plan = batch.plan(now_ps, just_preempted)
            if plan.preempt:
                batch.preempt_all(plan.preempt, now_ps)
                continue
            if plan.prefill or cohort.n:
                break
            if just_preempted:
                just_preempted = False  # no step runs, so the next boundary is now
                continue
            if plan.blocked_by != "blocks" or len(batch.running) < 2 or self.n_away:
                break
            # Requests in prefill hold all blocks, and none can continue.
            batch.preempt_one(now_ps)
            just_preempted = True
        self._blocked_by = plan.blocked_by
        self._blocked_code = BLOCKED_BY[plan.blocked_by] if plan.blocked_by else 0
        if plan.prefill:
            # fast: a single chunk is checked as it begins, and by all rules if that fails
            if len(plan.prefill) > 1 or batch.prefilling:
                check_prefill(self._scheduler, batch.view, plan)
            try:
                self._start_mixed(plan, now_ps)
            except (TypeError, ValueError, AttributeError, IndexError):
                check_prefill(self._scheduler, batch.view, plan)
                raise
        elif cohort.n and plan.decode:
            n_most = 1 if just_preempted else plan.valid_steps
            if self._caching is not None and plan.blocked_by == "blocks" and n_most is None:
                n_most = self._caching.steps_before_recheck()
            if self._coming and self._blocked_by is None:
                n_most = 1  # they have already waited for one step
            self._start_decode(plan, now_ps, n_most)
        elif self._coming:
            self._show_arrivals(2)  # no step runs that they could miss
            self.decide(now_ps)
        elif plan.wake_at_ps is not None:
            self._plan_time.set(plan.wake_at_ps)
        elif self._blocked_code:
            self._recorder.stall(self.index, now_ps, self._blocked_code)
        elif self._is_stateful and not batch.running and not batch.waiting:
            self._scheduler.on_idle()

    def _start_mixed(self, plan: StepPlan, now_ps: int) -> None:
        """Begin one step: prompt chunks, and a token for each decoding request if the plan says so."""
        batch, reserves, pads = self.batch, self._reserves, self._runs_to_completion
        n_tokens = n_pairs = n_context = n_complete = n_blocks = 0
        block_size, free_blocks = self.pool.block_size, self.pool.free_blocks
        for i, (request, n_chunk) in enumerate(plan.prefill):
            done = request.prefilled_tokens
            left_tokens = request.prompt_tokens + request.emitted_tokens - done
            if type(n_chunk) is not int or n_chunk < 1 or (n_chunk > left_tokens and not pads):
                check_prefill(self._scheduler, batch.view, plan)
            if request.phase is WAITING:
                batch.admit(request, plan.reserve_tokens[i] if reserves else 0, now_ps)
            elif not batch.prefilling:
                check_prefill(self._scheduler, batch.view, plan)
            n_blocks += -(-(done + n_chunk) // block_size) - -(-done // block_size)
            n_tokens += n_chunk
            n_pairs += n_chunk * done + n_chunk * (n_chunk + 1) // 2
            n_context += done + n_chunk
            n_complete += n_chunk >= left_tokens
        self.pool.take(n_blocks, reserves)
        if free_blocks - self.pool.free_blocks > batch.view.free_blocks:
            rule = f"must not take more blocks than the {batch.view.free_blocks} free ones"
            raise broke(self._scheduler, "plan", now_ps, rule, free_blocks - self.pool.free_blocks)
        cohort = self.cohort
        n, kv_tokens = (cohort.n, cohort.kv_tokens) if plan.decode else (0, 0)
        first_ps = self._cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        self.step_run = StepRun(
            now_ps, first_ps, 0, 1, n, len(batch.waiting) + self.n_before_queue, plan.prefill, n_tokens, n_pairs
        )

    def _start_decode(self, plan: StepPlan, now_ps: int, n_most: int | None) -> None:
        """Begin as many steps as fit before a request finishes, blocks run out or the plan ends."""
        cohort, free_blocks = self.cohort, self.pool.free_blocks
        n = cohort.n
        n_steps = cohort.next_finish_step - cohort.step
        if n_most is not None and n_most < n_steps:
            n_steps = n_most
        # fast: at most one block per member and block_size steps, so the exact count is seldom needed
        if n * (n_steps // cohort.block_size + 1) > free_blocks and not self._reserves:
            n_steps = min(n_steps, cohort.steps_within(free_blocks))
        line = self._lines.get(n)
        if line is None:
            intercept_ps, slope_ps = self._cost.decode_line(n)
            line = self._lines[n] = (self._cost.tokens_ps(n) + self._cost.sampled_ps(n) + intercept_ps, slope_ps)
        base_ps, slope_ps = line
        first_ps = base_ps + slope_ps * cohort.kv_tokens
        queue_len = len(self.batch.waiting) + self.n_before_queue
        self.step_run = StepRun(now_ps, first_ps, slope_ps * n, n_steps, n, queue_len)
        if plan.wake_at_ps is not None:
            self.step_run.cut(min(n_steps, self.step_run.steps_begun(plan.wake_at_ps)))
