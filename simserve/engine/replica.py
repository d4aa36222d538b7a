"""Replica: turns plans into time. Plan, sleep until the step run ends or is cut, commit, plan again."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from simserve.engine.alarm import Clock
from simserve.engine.decode import Decode
from simserve.engine.hooks import Hooks, Stepping
from simserve.engine.host_tier import HostTier
from simserve.engine.live_view import LiveView
from simserve.engine.offered import OfferedRows
from simserve.engine.prefill import Prefill
from simserve.engine.recorder import BLOCKED_BY, FINISHED, Recorder, pack_step
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.role import Role
from simserve.engine.step_run import StepRun
from simserve.state.request import TRANSFER, Request
from simserve.state.step_plan import Blocked, StepPlan

DECODE_ON: Final = StepPlan()

OnAnswer = Callable[[int, int], None]
"""Called with the row of a request and the instant of its last token."""


class Replica:
    """One copy of a model, on one or more GPUs; or one rank of it with a scheduler of its own.

    This is its loop. Its parts keep what is true: `batch` what waits and runs, `in_flight` the steps that are not over,
    `prefill` and `decode` what these do to requests, `load` what routers see, `stepping` when steps start and end.
    `role` and other `hooks` come in at fixed points; `lifecycle` is what happens between steps.

    State changes only at commits (tokens) and when a step begins (slots and blocks of its chunks).
    """

    # fmt: off
    __slots__ = (
        "_after_commit", "_after_plan", "_apply", "_before_commit", "_before_plan", "_blocked_code", "_coming",
        "_ended", "_hands_over", "_is_stateful", "_is_uneven", "_most_blocks", "_on_answer", "_orders",
        "_runs_to_completion", "_start_decode", "_step_run_rows", "_windows", "batch", "blocked_by", "cohort",
        "cost", "decode", "enqueue", "follows_plans", "holds_prompts", "hooks", "id", "in_flight", "is_alone",
        "load", "n_ahead", "on_empty", "pool", "prefill", "recorder", "role", "rows", "scheduler", "stepping",
        "streams", "tier",
    )
    # fmt: on
    # fast: slot access costs the same however many attributes there are; a shared-key dict holds at most thirty
    # (CPython, dictobject.c)

    stepping: Stepping

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
        tier: HostTier | None = None,
    ) -> None:
        self.id = index
        self.is_alone = is_alone
        """All requests come to this replica, and none waits for an answer."""
        self.rows, self.recorder = rows, recorder
        self._step_run_rows = recorder.step_run_rows[index]
        self._on_answer = on_answer
        self.tier = tier
        self.batch = setup.batch(index, recorder, tier)
        self.cohort, self.pool = self.batch.cohort, self.batch.pool
        self._coming = self.batch.coming
        self.in_flight = setup.in_flight(self.batch)
        self._apply = self.in_flight.apply  # fast: found once
        self.load = LiveView(index, self.batch, self.in_flight, clock, caches=setup.caches_prefixes)
        self.decode: Decode = setup.decode(self.cohort, self.pool)
        self._is_uneven, self._most_blocks = self.decode.is_uneven, self.decode.most_blocks
        self._start_decode = self.decode.start
        self._windows = self.decode.windows
        self.prefill: Prefill = setup.prefill(self.batch, self.decode, recorder)
        self.scheduler = scheduler = setup.scheduler
        self._is_stateful, self._runs_to_completion = scheduler.is_stateful, scheduler.runs_to_completion
        self._orders, self.streams = scheduler.orders, scheduler.stream
        self.cost = setup.cost
        """Cost model of its steps."""
        self.n_ahead = int(setup.async_scheduling)
        """Steps that are planned ahead."""
        self.holds_prompts = False
        """The next step has no prompts, as long as requests decode: other ranks have none."""
        self.blocked_by: Blocked | None = None
        """Why the last plan did not admit the head of the queue."""
        self._blocked_code = 0
        self.on_empty: Callable[[int], None] | None = None
        """Called when it may have nothing left to do, while it drains."""
        self.enqueue: Callable[[Request, int], None] = self.queue_up
        """Accepts a request from the router, at an instant."""
        self.role = Role()
        """Its side in a hand-over; of the base, it serves requests from prompt to answer."""
        self.hooks: list[Hooks] = []
        self._find_hooks()

    def play(self, role: Role) -> None:
        """Take a side in a hand-over."""
        self.role, self.enqueue = role, role.enqueue
        self.hook_in(role)

    def hook_in(self, hooks: Hooks) -> None:
        """Call hooks at fixed points of the loop: in turn before plans and after commits, in reverse in between."""
        self.hooks.append(hooks)
        self._find_hooks()

    def _find_hooks(self) -> None:
        """Find what comes in where. fast: found once, and nothing is called where there is nothing."""
        in_turn, in_reverse = self.hooks, self.hooks[::-1]
        self._before_plan: Sequence[Callable[[int], None]] = _methods(in_turn, "before_plan")
        self._after_plan: Sequence[Callable[[StepRun | None, int], Blocked | None]] = _methods(in_reverse, "after_plan")
        self._before_commit: list[Callable[[StepRun, int], None]] = _methods(in_reverse, "before_commit")
        self._after_commit: Sequence[Callable[[int], None]] = _methods(in_turn, "after_commit")
        self._ended: Sequence[Callable[[Request, int], None]] = _methods(in_turn, "ended")
        self._hands_over = type(self.role).hands_over is not Role.hands_over
        if self._is_uneven:
            self._before_commit.append(self._commit_but_last)
        if self._is_stateful:
            self._before_commit.append(self._report)
        if self._windows:
            self._before_commit.append(self._note_windows)
        self.follows_plans = bool(self._after_plan or self._windows or self._orders)
        """Something follows its plans."""

    # -- arrivals --------------------------------------------------------------------------------------------------

    def queue_up(self, request: Request, now_ps: int) -> None:
        """Queue a request; plan at the end of the step in flight, or now when idle.

        While the head is blocked, only an arrival that may go before it makes the replica plan.
        """
        load, batch, step_run = self.load, self.batch, self.in_flight.step_run
        load.n_outstanding += 1
        if load.block_tokens is not None:
            request.finder = batch.memory
        may_lead = self._orders and batch.may_lead(request)
        if self.n_ahead and (step_run is not None or batch.running):
            n_steps = 1 + step_run.steps_begun(now_ps) if step_run is not None else 1
            self._coming.append((request, n_steps))
        else:
            batch.waiting.append(request)
            if step_run is not None:
                self.decode.arrived(step_run, now_ps)
        if step_run is None or may_lead or (self.blocked_by is None and not self.is_alone):
            self.stepping.wake(now_ps, self.n_ahead)

    def join(self, request: Request) -> None:
        """Let a request with all its keys and values decode."""
        self.batch.running[request] = None
        self.cohort.join(request, self.rows.output_tokens[request.row] - request.emitted_tokens)
        self.batch.notices.on_resume(request)

    @property
    def in_transit(self) -> list[Request]:
        """Requests that come from other replicas or from host memory and do not run here yet."""
        return [*self.batch.swapped, *self.role.in_transit]

    # -- plan: the steps to come -----------------------------------------------------------------------------------

    def decide(self, now_ps: int) -> None:
        """Make room, ask the scheduler if requests wait, and begin the step run that follows."""
        if before := self._before_plan:
            for prepare in before:
                prepare(now_ps)
        batch, coming, n = self.batch, self._coming, self.cohort.n
        # fast: room is made only where a step could begin more blocks than are free
        has_room = not n or self.pool.free_blocks >= n * self._most_blocks
        if n and has_room and not (batch.waiting or batch.prefilling or coming):
            # fast: the decoding requests simply go on
            self.blocked_by, self._blocked_code = None, 0
            start = self._start_decode  # fast: CPython looks for a method of this name first
            self.in_flight.step_run = start(now_ps, None, batch.n_before_queue)
            if self.follows_plans:
                self._follow_plan(now_ps)
            return
        n_before, has_preempted = len(batch.running), not has_room and batch.make_room(now_ps)
        plan, just_preempted = self._planned(now_ps, has_preempted)
        self.blocked_by = blocked_by = plan.blocked_by
        self._blocked_code = BLOCKED_BY[blocked_by] if blocked_by else 0
        if plan.prefill:
            self.in_flight.step_run = self.prefill.start(plan, now_ps)
        elif self.cohort.n and plan.decode:
            self._decode_on(plan, just_preempted, now_ps)
        elif coming:
            batch.show(2)  # no step runs that they could miss
            self.decide(now_ps)
        elif plan.wake_at_ps is not None:
            self.stepping.plan_at(plan.wake_at_ps)
        elif self._blocked_code:
            self.recorder.stall(self.id, now_ps, self._blocked_code)
        elif not batch.running and not batch.waiting:
            batch.notices.on_idle()
        if not self.follows_plans:
            return
        self._follow_plan(now_ps)
        if self.in_flight.step_run is None:
            # No step runs, so the next boundary is now: swapped requests may return at it, and handed-over ones have
            # room before the scheduler plans.
            is_away = len(batch.startable) < len(batch.waiting) or bool(batch.memory.reading)
            if (len(batch.running) < n_before and is_away) or (has_preempted and batch.swapped):
                self.decide(now_ps)

    def _planned(self, now_ps: int, just_preempted: bool) -> tuple[StepPlan, bool]:
        """Return the plan under which something goes on, if anything does, and whether requests were preempted."""
        batch, plan = self.batch, DECODE_ON
        while (batch.waiting or batch.prefilling) and not (self.holds_prompts and self.cohort.n):
            plan = batch.plan(now_ps, just_preempted)
            if plan.preempt:
                batch.preempt_all(plan.preempt, now_ps)
                just_preempted = just_preempted or plan.blocked_by == "blocks"
                continue
            if plan.prefill and batch.reads_ahead and batch.begin_read(plan, now_ps):
                continue  # without it, as it waits until its prefix is there
            if plan.prefill or self.cohort.n:
                break
            if just_preempted:
                just_preempted = False  # no step runs, so the next boundary is now
                continue
            if plan.blocked_by != "blocks" or len(batch.running) < 2 or batch.n_away or batch.memory.reading:
                break
            # Requests in prefill hold all blocks, and none can continue.
            batch.preempt_one(now_ps)
            just_preempted = True
        return plan, just_preempted

    def _decode_on(self, plan: StepPlan, just_preempted: bool, now_ps: int) -> None:
        """Begin decode steps, as many as the plan holds for."""
        batch, memory, blocked_by = self.batch, self.batch.memory, self.blocked_by
        n_most = 1 if just_preempted else plan.valid_steps
        if memory.keeps and blocked_by == "blocks" and n_most is None and batch.waiting:
            n_most = memory.steps_before_recheck(batch.waiting[0], self.cohort.steps_within)
        if blocked_by is None and self._coming:
            n_most = 1  # they have already waited for one step
        start = self._start_decode
        self.in_flight.step_run = step_run = start(now_ps, n_most, len(batch.waiting) + batch.n_before_queue)
        if plan.wake_at_ps is not None:
            step_run.cut(min(step_run.n_steps, step_run.steps_begun(plan.wake_at_ps)))

    def _follow_plan(self, now_ps: int) -> None:
        """Let the hooks change what the plan began, and say what keeps out requests outside the queue."""
        step_run, why = self.in_flight.step_run, None
        for follow in self._after_plan:
            why = follow(step_run, now_ps) or why
        if why is not None and self.blocked_by is None:
            self._blocked_code = BLOCKED_BY[why]
        if step_run is not None and step_run.n_steps > 1:
            if self._windows and "blocks" in (self.blocked_by, why):
                step_run.cut(1)  # windows may free the blocks that others wait for
            elif self._orders and self._coming:
                step_run.cut(1)  # an arrival that the scheduler sees a step later may go before the blocked head
        if self.on_empty is not None:
            self.on_empty(now_ps)

    # -- commit: the steps that are over ---------------------------------------------------------------------------

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Record a step run, with the counters at its start (nothing was committed since), and apply it."""
        if before := self._before_commit:  # fast: to find nothing in a list takes longer than to see that it is empty
            for use in before:
                use(step_run, now_ps)
        batch, cohort, n, n_steps = self.batch, self.cohort, step_run.n_decoding, step_run.n_steps
        pool, in_flight = self.pool, self.in_flight
        in_flight.step_run, used_blocks, reserved_blocks = None, pool.used_blocks, pool.reserved_blocks
        if in_flight.has_changed:  # fast: seldom
            used_blocks, reserved_blocks = in_flight.land()
        self._step_run_rows += pack_step(
            step_run.start_ps,
            step_run.first_ps,
            step_run.growth_ps,
            step_run.n_prefill_pairs,
            cohort.kv_tokens if n else 0,
            n_steps,
            step_run.n_prefill_tokens,
            n,
            used_blocks,
            reserved_blocks,
            step_run.queue_len,
            self._blocked_code,
            step_run.n_accepted,
        )
        if n:
            apply = self._apply
            apply(n_steps)
            if cohort.step >= cohort.next_finish_step:
                for request in cohort.pop_finished():
                    self._last_token(request, now_ps)
                    if not self._runs_to_completion:
                        batch.leave(request, cohort.leave(request))
                    if self._is_stateful:
                        self.scheduler.on_leave(request)
        if step_run.chunks:
            self.prefill.commit(step_run, now_ps, self._end_prefill)
        if cohort.lingering and len(cohort.lingering) == cohort.n:
            self.end_batch(now_ps)
        if self._coming:
            batch.show(n_steps)
        if after := self._after_commit:
            for follow in after:
                follow(now_ps)

    def _commit_but_last(self, step_run: StepRun, _: int) -> None:
        """Record and apply all steps of an uneven run but the last, and note the accepted tokens of that one."""
        if step_run.n_steps > 1:
            n_first, batch = step_run.n_steps - 1, self.batch
            if self._is_stateful:
                self._report_steps(n_first, False)
            queued_from, used_blocks = [n_steps for _, n_steps in batch.coming], self.in_flight.used_at_start
            self.decode.commit_but_last(step_run, used_blocks, self._blocked_code, queued_from, self._step_run_rows)
            batch.show(n_first)
        chunks = [(each.prefilled_tokens, each.prefilled_tokens + n_tokens) for each, n_tokens in step_run.chunks]
        step_run.n_accepted = self.decode.n_accepted(step_run, chunks)

    def _report(self, step_run: StepRun, _: int) -> None:
        """Tell a stateful policy what is over."""
        self._report_steps(step_run.n_steps if step_run.n_decoding else 0, step_run.n_prefill_tokens > 0)

    def _report_steps(self, n_steps: int, has_prefill: bool) -> None:
        """Tell a stateful policy about decode steps that are over, and about tokens beyond one a step."""
        self.scheduler.on_commit(n_steps, has_prefill, self.blocked_by)
        if n_steps:
            for request, n_tokens in self.cohort.accepted(n_steps):
                self.scheduler.on_accept(request, n_tokens)

    def _note_windows(self, step_run: StepRun, _: int) -> None:
        """Keep what a row does not say: the time of attention in windows."""
        self.decode.windows_ps.append(self.decode.window_ps(step_run.n_decoding))

    def _end_prefill(self, request: Request, now_ps: int) -> None:
        """Complete a prefill, which emits a token; the request decodes, leaves for another replica, or is done."""
        self.batch.prefilling.remove(request)
        if not request.emitted_tokens:
            self.recorder.first_token_ps[request.row] = now_ps
        request.emitted_tokens += 1
        request.joined_ps = now_ps
        n_left = self.rows.output_tokens[request.row] - request.emitted_tokens
        if n_left and self._hands_over and self.role.hands_over(request):
            self._send_away(request)
            self.role.hand_over(request, now_ps)
            return
        if n_left or self._runs_to_completion:
            self.cohort.join(request, n_left)
        if self._is_stateful:
            notify = self.scheduler.on_join if n_left else self.scheduler.on_leave
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
        self.batch.n_away += 1
        self.load.count_out()
        self.batch.notices.on_leave(request)

    def _last_token(self, request: Request, now_ps: int) -> None:
        """Close a request's span; without streaming, the client gets the answer with the whole batch."""
        self.recorder.span(self.id, request, self.cohort.step)
        if self._runs_to_completion:
            self.cohort.lingering.append(request)
        if self.streams:
            self._answer(request, now_ps)
        if ended := self._ended:
            for forget in ended:
                forget(request, now_ps)

    def end_batch(self, now_ps: int) -> None:
        """End a padded batch: all its requests leave together, and whole answers with them."""
        done, self.cohort.lingering = self.cohort.lingering, []
        for request in done:
            self.batch.leave(request, self.cohort.leave(request))
            if not self.streams:
                self.recorder.first_token_ps[request.row] = now_ps
                self._answer(request, now_ps)

    def _answer(self, request: Request, now_ps: int) -> None:
        """Record that the client has its whole answer."""
        load = self.load
        load.n_outstanding = n_outstanding = load.n_outstanding - 1  # fast: count_out, inlined
        on_fewer = load.on_fewer
        if on_fewer is not None:
            on_fewer(self.id, n_outstanding)
        recorder, row = self.recorder, request.row
        recorder.finish_ps[row] = now_ps
        recorder.status[row] = FINISHED
        on_answer = self._on_answer
        if on_answer is not None:
            on_answer(row, now_ps)


def _methods(hooks: Sequence[Hooks], name: str) -> list[Any]:
    """Return the methods of a name that do something, of hooks in turn."""
    return [getattr(each, name) for each in hooks if getattr(type(each), name) is not getattr(Hooks, name)]
