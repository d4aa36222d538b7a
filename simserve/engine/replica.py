"""Replica: turns plans into time. Plan, sleep until the step run ends or is cut, commit, plan again."""

from collections.abc import Callable
from typing import Final, Protocol, cast

from simserve.cost.model import CostModel
from simserve.engine.alarm import READ_PHASE, Alarm, Clock
from simserve.engine.checks import broke, check_prefill
from simserve.engine.host_tier import HostStore, HostTier, Sharer
from simserve.engine.offered import OfferedRows
from simserve.engine.recorder import BLOCKED_BY, FINISHED, Recorder, pack_step
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.role import Role
from simserve.engine.step_run import StepRun
from simserve.state.queues import Ordered
from simserve.state.request import DECODE, DONE, TRANSFER, WAITING, Request
from simserve.state.step_plan import Blocked, StepPlan

DECODE_ON: Final = StepPlan()

OnAnswer = Callable[[int, int], None]
"""Called with the row of a request and the instant of its last token."""


class Group(Protocol):
    """Ranks that step together."""

    cost: CostModel
    """Cost model of each rank."""


class Stepping(Protocol):
    """When the next step may start and when it ends."""

    n_stages: int
    """Pipeline stages that a step passes through."""
    group: "Group | None"
    """Ranks that step together."""
    first_lane: int
    """Id of the replica that is the first lane on the same GPUs."""

    def plan_at(self, at_ps: int) -> None:
        """Plan at an instant, as the last event."""

    def wake(self, now_ps: int, n_ahead: int = 0) -> None:
        """Plan when the step in flight and n_ahead more are over, or now when idle."""

    def commit_now(self, now_ps: int) -> None:
        """Commit a step that ends at this very instant, before its alarm goes off."""

    def halt(self) -> None:
        """Neither end the step in flight nor plan any more."""


class Replica:
    """One copy of a model, on one or more GPUs; or one rank of it with a scheduler of its own.

    Its parts are independent of each other: `stepping` says when steps start and end, `decode` what they do to decoding
    requests, `batch.memory` what a request may hold, and `role` what comes before the queue and after the prompt.

    State changes only at commits (tokens) and when a step begins (slots and blocks of its chunks).
    """

    __slots__ = (
        "_blocked_code",
        "_clock",
        "_coming",
        "_commits_more",
        "_follow_up",
        "_has_ids",
        "_is_stateful",
        "_is_uneven",
        "_memory",
        "_mixed_run",
        "_most_blocks",
        "_n_given_back",
        "_n_left",
        "_n_moved",
        "_n_taken",
        "_on_answer",
        "_on_empty",
        "_orders",
        "_overlaps",
        "_plans_more",
        "_prepare",
        "_reads_end",
        "_recorder",
        "_reserves",
        "_rows",
        "_runs_to_completion",
        "_start_decode",
        "_step_run_rows",
        "_swap",
        "_waits_for_host",
        "_windows",
        "batch",
        "block_size",
        "block_tokens",
        "blocked_by",
        "cohort",
        "cost",
        "decode",
        "enqueue",
        "holds_prompts",
        "id",
        "is_alone",
        "n_ahead",
        "n_away",
        "n_before_queue",
        "n_outstanding",
        "on_fewer",
        "pool",
        "role",
        "scheduler",
        "step_run",
        "stepping",
        "streams",
        "tier",
        "total_blocks",
    )
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
        store: HostStore | None = None,
    ) -> None:
        self.id = index
        self.is_alone = is_alone
        """All requests come to this replica, and none waits for an answer."""
        self.role: Role | None = None
        self.holds_prompts = False
        """The next step has no prompts, as long as requests decode: other ranks have none."""
        self.n_outstanding = 0
        self.on_fewer: Callable[[int, int], None] | None = None
        """Called with its id when fewer requests are outstanding, and their number, if its router asks for that."""
        self.n_away = 0
        """Requests with blocks here that have left for another replica, or are in transfer to this one."""
        self._n_given_back = 0
        """Blocks that these have freed during the step in flight."""
        self._n_moved = 0
        """Blocks that windows have left during the step run in flight, as far as this is applied by now."""
        self._n_taken = 0
        """Blocks that its steps began until then."""
        self._n_left = 0
        """Blocks used less since its start for both reasons; others may share what windows left."""
        self.n_before_queue = 0
        """Requests from other replicas that had no blocks here at the last plan."""
        self.total_blocks, self.block_size = setup.n_blocks, setup.block_size
        self.block_tokens = setup.block_size if setup.caches_prefixes else None
        self.tier = setup.tier(store)
        if store is not None and self.tier is not None:
            store.sharers.append(Sharer(index, self.tier, self._on_store_change))
        self.batch = setup.batch(index, recorder, self.tier)
        self._memory, self._swap = self.batch.memory, self.batch.swap
        self._has_ids = self._memory.has_ids
        self.cohort, self.pool = self.batch.cohort, self.batch.pool
        self._windows = [group.layers for group in setup.layers.windows]
        self.decode = setup.decode(self.cohort, self.pool)
        self._is_uneven, self._most_blocks = self.decode.is_uneven, self.decode.most_blocks
        self._start_decode = self.decode.start  # fast: found once
        self.step_run: StepRun | None = None
        self._mixed_run = StepRun()
        self.scheduler = setup.scheduler
        self._reserves = setup.scheduler.reserves
        self._runs_to_completion = setup.scheduler.runs_to_completion
        self._is_stateful = setup.scheduler.is_stateful
        self._orders, self.streams = setup.scheduler.orders, setup.scheduler.stream
        self._overlaps = self.tier is not None and self.tier.overlaps
        self._reads_end = Alarm(clock, self._on_read, READ_PHASE)
        has_more = self.tier is not None or bool(self._windows)
        self._plans_more = has_more or self._orders
        self._commits_more = has_more or self._is_uneven or self._is_stateful or self._runs_to_completion
        """Other parts take part after its plans, or in its commits."""
        self._prepare: Callable[[int], None] | None = None if self.tier is None else self._before_plan
        self._follow_up: Callable[[int], None] | None = None if self.tier is None else self._after_commit
        """What comes before its plans, and after its commits.

        fast: found once, and nothing is called where there is nothing.
        """
        self.enqueue: Callable[[Request, int], None] = self.queue_up
        """Accepts a request from the router, at an instant."""
        self.cost = setup.cost
        """Cost model of its steps."""
        self._waits_for_host = setup.n_ranks == 1 and setup.cost.host_ps(1) > 0
        """The host may take longer than the kernels; ranks in lockstep wait for it together."""
        self._clock = clock
        self._rows = rows
        self._recorder = recorder
        self._step_run_rows = recorder.step_run_rows[index]
        self._on_answer = on_answer
        self.n_ahead = int(setup.async_scheduling)
        """Steps that are planned ahead."""
        self._coming: list[tuple[Request, int]] = []
        """(request, steps that begin before the scheduler sees it), with async scheduling."""
        self.blocked_by: Blocked | None = None
        """Why the last plan did not admit the head of the queue."""
        self._blocked_code = 0
        self._on_empty: Callable[[int], None] | None = None
        """Called when it has nothing left to do, while it drains."""

    def play(self, role: Role) -> None:
        """Take a role in a hand-over."""
        self.role = role
        self.enqueue = role.enqueue
        self._plans_more = self._plans_more or role.plans
        self._commits_more = self._commits_more or role.precedes_commits
        if self.tier is None:
            self._prepare = role.before_plan if role.plans else None
            self._follow_up = role.after_commit if role.follows_commits else None

    # -- called by the cluster -----------------------------------------------------------------------------------------

    def queue_up(self, request: Request, now_ps: int) -> None:
        """Queue a request; plan at the end of the step in flight, or now when idle.

        While the head is blocked, only an arrival that may go before it makes the replica plan.
        """
        self.n_outstanding += 1
        if self.block_tokens is not None:
            request.finder = self._memory
        step_run = self.step_run
        may_lead = self._orders and bool(self._memory.reading or cast(Ordered, self.batch.waiting).may_lead(request))
        if self.n_ahead and (step_run is not None or self.batch.running):
            self._coming.append((request, 1 + step_run.steps_begun(now_ps) if step_run is not None else 1))
        else:
            self.batch.waiting.append(request)
            if self._is_uneven and step_run is not None:
                self.decode.arrived(step_run, now_ps)
        if step_run is None or may_lead or (self.blocked_by is None and not self.is_alone):
            self.stepping.wake(now_ps, self.n_ahead)

    @property
    def n_waiting(self) -> int:
        """Requests without a slot or blocks."""
        n_waiting = len(self.batch.waiting) + len(self._coming)
        return n_waiting if self.role is None else n_waiting + self.role.n_coming

    @property
    def in_transit(self) -> list[Request]:
        """Requests that come from other replicas or from host memory and do not run here yet."""
        swapped = () if self._swap is None else self._swap.swapped
        return [*swapped, *(() if self.role is None else self.role.in_transit)]

    def uncomputed_tokens(self) -> int:
        """Return the prefill tokens left to compute after the committed steps; O(queue)."""
        role, waiting = self.role, (*self.batch.waiting, *(request for request, _ in self._coming))
        unstarted: list[Request] = [each for each in waiting if role is None or not role.holds(each)]
        n_waiting = sum(request.prompt_tokens + request.emitted_tokens for request in unstarted)
        return n_waiting + sum(request.prefill_left_tokens for request in self.batch.prefilling)

    def step_end_ps(self, now_ps: int) -> int | None:
        """Return the end of the step in flight, cutting the step run there; None: no step is in flight."""
        step_run = self.step_run
        if step_run is None:
            return None
        self.stepping.wake(now_ps)
        if step_run.end_ps > now_ps:
            return step_run.end_ps
        self.stepping.commit_now(now_ps)
        return None

    def drain(self, on_empty: Callable[[int], None], now_ps: int) -> None:
        """Call on_empty with the instant at which it has nothing left to do; it may be called again."""
        self._on_empty = on_empty
        self._plans_more = True
        self.stepping.wake(now_ps)

    @property
    def is_empty(self) -> bool:
        """It has no requests, and neither its step nor its blocks are in use."""
        return not self.n_outstanding and not self.n_away and self.step_run is None

    def note_empty(self, now_ps: int) -> None:
        """Plan, and note there that it may have nothing left to do; for events after which it need not plan."""
        if self._on_empty is not None:
            self.stepping.wake(now_ps)

    def stored_tokens(self, request: Request) -> int:
        """Return the tokens stored for a request, now or when it finished; padding included."""
        if request.phase is DONE or request in self.cohort.lingering:
            return request.padding_tokens + request.prompt_tokens + self._rows.output_tokens[request.row] - 1
        return self.batch.stored_tokens(request)

    def fail(self, now_ps: int) -> list[tuple[Request, int]]:
        """Lose the step in flight, all blocks and all requests; return these without an answer, each with the tokens
        stored for it. Other replicas may lose requests with it; nothing is done here any more."""
        self._commit_done(now_ps)
        self.step_run = None
        self.stepping.halt()
        batch, cohort = self.batch, self.cohort
        swapped = [] if self._swap is None else list(self._swap.swapped)
        there = [*batch.waiting, *(request for request, _ in self._coming), *swapped, *batch.running]
        self._close_spans()
        lost = [(each, self.stored_tokens(each)) for each in there if self._recorder.status[each.row] != FINISHED]
        for request in swapped:
            batch.abandon(request)
        for request in batch.running:
            if request in cohort.lingering:
                cohort.leave(request)
            elif request.phase is DECODE:
                cohort.drop(request)
                cohort.pop_kept_blocks(request)
        for request in [*batch.waiting]:
            batch.waiting.remove(request)
        batch.running.clear()
        batch.prefilling.clear()
        cohort.lingering.clear()
        self._coming.clear()
        self._memory.reading.clear()
        self._reads_end.due_ps = None
        if self.tier is not None:
            self.tier.fail()
        self.pool.release(self.pool.used_blocks, self.pool.reserved_blocks)
        self.n_outstanding = self.n_away = 0
        for request in there:
            request.phase = DONE
        return lost

    def drop(self, request: Request, now_ps: int) -> int:
        """Drop a request without tokens that its decode replica has lost, even during a step; while that computes a
        part of its prompt, its blocks are in use. Return the tokens stored for it so far."""
        batch, step_run, n_stored = self.batch, self.step_run, self.stored_tokens(request)
        self.count_out()
        if any(request is newcomer for newcomer, _ in self._coming):
            self._coming = [(each, n) for each, n in self._coming if each is not request]
            request.phase = DONE
        elif step_run is not None and any(request is each for each, _ in step_run.chunks):
            batch.withdraw(request)
            self.n_away += 1
        else:
            self._move_until(now_ps)
            n_used = self.pool.used_blocks
            batch.abandon(request)
            if step_run is not None:
                self._n_given_back += n_used - self.pool.used_blocks
        self.stepping.wake(now_ps)
        return n_stored

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Drop a timed-out request, with no step in flight. In a padded batch it stays to the end, like a
        finished one. Return None, or when to try again."""
        read = self._memory.reading.get(request)
        if read is not None:
            if read.request is request:
                return read.end_ps  # a copy in flight ends first
            del self._memory.reading[request]
        role = self.role
        if role is not None:
            if role.holds(request):
                return role.abandon(request, now_ps)
            role.ended(request, now_ps)
        if any(request is newcomer for newcomer, _ in self._coming):
            self._coming = [(each, n) for each, n in self._coming if each is not request]
            request.phase = DONE
        elif request.phase is DECODE and self._runs_to_completion:
            self._linger(request, now_ps)
            return None
        else:
            self.batch.abandon(request)
        self.count_out()
        self.stepping.wake(now_ps)
        return None

    def _linger(self, request: Request, now_ps: int) -> None:
        lingering = self.cohort.lingering
        if request in lingering:
            return
        self._recorder.span(self.id, request, self.cohort.step)
        self.cohort.forget(request)
        lingering.append(request)
        if self.streams:  # whole answers count until they leave
            self.count_out()
        if len(lingering) == self.cohort.n:
            self._end_batch(now_ps)
        self.stepping.wake(now_ps)

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the prefix cache at this instant."""
        if self.block_tokens is None:
            return 0
        step_run = self.step_run
        if step_run is not None and step_run.n_decoding:
            n_steps = step_run.steps_done(self._clock.now_ps)  # their blocks are taken but not committed yet
            self._move_until(self._clock.now_ps)
            self._memory.reclaim(self.cohort.blocks_begun(n_steps) - self._n_taken)
        return self._memory.found_tokens(request)

    def blocks_for(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds here."""
        return self.pool.most_blocks(n_tokens)

    def held_blocks(self) -> int:
        """Return the KV blocks used or reserved at this instant, including those of the step in flight."""
        self._move_until(self._clock.now_ps)
        held = self.pool.total_blocks - self.pool.free_blocks
        step_run = self.step_run
        if step_run is not None and step_run.n_decoding and not self._reserves:
            held += self.cohort.blocks_begun(step_run.steps_begun(self._clock.now_ps)) - self._n_taken
            if self._windows:
                held -= self.cohort.blocks_dropped(step_run.steps_done(self._clock.now_ps)) - self._n_moved
        return held

    def stop(self, now_ps: int) -> None:
        """End the run: commit the steps that are over and record the spans of unfinished requests."""
        self._commit_done(now_ps)
        self._show_arrivals(2)
        self._close_spans()

    def _commit_done(self, now_ps: int) -> None:
        """Commit the steps that are over, without the one in flight."""
        if self.step_run is not None:
            self.step_run.cut(self.step_run.steps_done(now_ps))
            if self.step_run.n_steps:
                self.commit(self.step_run, now_ps)

    def _close_spans(self) -> None:
        """Record the spans of unfinished requests."""
        ended = [*self.cohort.lingering, *(() if self._swap is None else self._swap.returned)]
        for request in self.batch.running:
            if request.phase is DECODE and request not in ended:
                self._recorder.span(self.id, request, self.cohort.step)

    # -- called by its parts -------------------------------------------------------------------------------------------

    def count_out(self) -> None:
        """Count a request out that is no longer outstanding here."""
        self.n_outstanding -= 1
        if self.on_fewer is not None:
            self.on_fewer(self.id, self.n_outstanding)

    def note_queued(self, now_ps: int) -> None:
        """Note that a request waits from now on, during the step run in flight."""
        if self._is_uneven and self.step_run is not None:
            self.decode.arrived(self.step_run, now_ps)

    def give_back(self, request: Request, now_ps: int) -> None:
        """Free the blocks of a request after its transfer. A step run ends early, as others may wait for them."""
        self.n_away -= 1
        self._move_until(now_ps)
        n_blocks = self.batch.release(request, request.prefilled_tokens)
        step_run = self.step_run
        if step_run is not None:
            self._n_given_back += n_blocks
            if step_run.n_steps > 1:
                self.stepping.wake(now_ps)
        elif self.batch.waiting or self.batch.prefilling or self._on_empty is not None:
            self.stepping.wake(now_ps)

    def let_go(self, request: Request) -> None:
        """Free the slot and blocks taken ahead for a request that ends before it decodes here."""
        self._move_until(self._clock.now_ps)
        n_blocks = self._memory.let_go(request)
        if self.step_run is not None:
            self._n_given_back += n_blocks
        self.n_away -= 1
        self.count_out()

    def join(self, request: Request) -> None:
        """Let a request with all its keys and values decode."""
        self.batch.running[request] = None
        self.cohort.join(request, self._rows.output_tokens[request.row] - request.emitted_tokens)
        if self._is_stateful:
            self.scheduler.on_resume(request)

    def why_waiting(self) -> str:
        """Explain a deadlock: what waits, and for what."""
        n_running, n_waiting = len(self.batch.running), len(self.batch.waiting)
        return (
            f"deadlock: replica {self.id} is idle with {n_running} requests admitted and {n_waiting} waiting, "
            f"kept out by {self.blocked_by or 'its scheduler'}; {self.pool.free_blocks} KV blocks are free"
        )

    # -- commit: the steps that are over ---------------------------------------------------------------------------

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Record a step run, with the counters at its start (nothing was committed since), and apply it."""
        cohort, pool, has_more = self.cohort, self.pool, self._commits_more
        n_accepted = self._before_commit(step_run, now_ps) if has_more else 0
        self.step_run = None
        n, n_steps = step_run.n_decoding, step_run.n_steps
        used_blocks, reserved_blocks = pool.used_blocks, pool.reserved_blocks
        if self._n_given_back:
            used_blocks += self._n_given_back
            self._n_given_back = 0
        if self._n_left:
            used_blocks += self._n_left
            reserved_blocks -= self._n_left if self._reserves else 0
            self._n_left = 0
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
            n_accepted,
        )
        if n:
            if has_more and self._windows:
                self._move_windows(n_steps)
            elif n_blocks := cohort.advance(n_steps):
                pool.take(n_blocks, self._reserves)
            if cohort.step >= cohort.next_finish_step:
                for request in cohort.pop_finished():
                    self._last_token(request, now_ps)
                    if not self._runs_to_completion:
                        self.batch.leave(request, cohort.leave(request))
                    if self._is_stateful:
                        self.scheduler.on_leave(request)
        if step_run.chunks:
            self._commit_chunks(step_run, now_ps)
        if has_more and cohort.lingering and len(cohort.lingering) == cohort.n:
            self._end_batch(now_ps)
        if self._coming:
            self._show_arrivals(n_steps)
        follow_up = self._follow_up
        if follow_up is not None:
            follow_up(now_ps)

    def _move_windows(self, n_steps: int) -> None:
        """Apply n_steps of decode, and free the blocks that windows keep no longer."""
        cohort, pool = self.cohort, self.pool
        self._move_ahead(n_steps - 1)
        self._n_left = 0
        n_blocks = cohort.advance(n_steps)
        pool.drop(cohort.n_dropped - self._n_moved, self._reserves)
        if n_blocks > self._n_taken:
            pool.take(n_blocks - self._n_taken, self._reserves)
        self._n_moved = self._n_taken = 0
        if cohort.drops is not None:
            for request, n_before, n_tokens in cohort.drops.due:
                self._memory.drop(request, (n_before, n_tokens), self._reserves)

    def _move_ahead(self, n_steps: int) -> None:
        """Free what windows keep no longer in the first n_steps of the run in flight, up to the last block with an id:
        such blocks become idle in turn, after those taken and freed before."""
        cohort, pool, drops = self.cohort, self.pool, self.cohort.drops
        while drops is not None and drops.next_step - cohort.step <= n_steps:
            n_used, n = pool.used_blocks, drops.next_step - cohort.step
            n_named, n_dropped, n_taken = drops.pop(), cohort.blocks_dropped(n), cohort.blocks_begun(n)
            if n_taken > self._n_taken:
                pool.take(n_taken - self._n_taken, self._reserves)
                self._n_taken = n_taken
            if n_dropped - n_named > self._n_moved:
                pool.drop(n_dropped - n_named - self._n_moved, self._reserves)
            for request, n_before, n_tokens in drops.due:
                self._memory.drop(request, (n_before, n_tokens), self._reserves)
            self._n_moved = n_dropped
            self._n_left += n_used - pool.used_blocks

    def _move_until(self, now_ps: int) -> None:
        """Free what windows keep no longer, before the cache of a step run in flight is used."""
        step_run = self.step_run
        if self.cohort.drops is not None and step_run is not None and step_run.n_decoding:
            self._move_ahead(min(step_run.steps_done(now_ps), step_run.n_steps - 1))

    def _before_commit(self, step_run: StepRun, now_ps: int) -> int:
        """Prepare a commit; return the accepted tokens of the last step."""
        if step_run.wait_ps:
            self._recorder.wait_for_copies(self.id, step_run.wait_ps)
        if self.role is not None:
            self.role.before_commit(step_run, now_ps)
        if self._swap is not None and step_run.n_decoding:
            self._swap.give_tokens(self.cohort, now_ps)
        n_accepted = self._commit_but_last(step_run) if self._is_uneven else 0
        if self._is_stateful:
            self._report_steps(step_run.n_steps if step_run.n_decoding else 0, step_run.n_prefill_tokens > 0)
        if self._windows:
            self.decode.windows_ps.append(self.decode.window_ps(step_run.n_decoding))
        return n_accepted

    def _after_commit(self, now_ps: int) -> None:
        """Copy to host memory, then let the role follow."""
        if self.tier is not None:
            self.tier.copy(now_ps)
        if self.role is not None:
            self.role.after_commit(now_ps)

    def _commit_but_last(self, step_run: StepRun) -> int:
        """Record and apply all steps of an uneven run but the last; return the accepted tokens of that one."""
        if step_run.n_steps > 1:
            n_first = step_run.n_steps - 1
            if self._is_stateful:
                self._report_steps(n_first, False)
            queued_from = [n_steps for _, n_steps in self._coming]
            used_blocks = self.pool.used_blocks + self._n_given_back
            self.decode.commit_but_last(step_run, used_blocks, self._blocked_code, queued_from, self._step_run_rows)
            if self._coming:
                self._show_arrivals(n_first)
        return self.decode.n_accepted(step_run)

    def _report_steps(self, n_steps: int, has_prefill: bool) -> None:
        """Tell a stateful policy about decode steps that are over, and about tokens beyond one a step."""
        self.scheduler.on_commit(n_steps, has_prefill, self.blocked_by)
        if n_steps:
            for request, n_tokens in self.cohort.accepted(n_steps):
                self.scheduler.on_accept(request, n_tokens)

    def _show_arrivals(self, n_steps: int) -> None:
        """Show the scheduler the arrivals that have waited for n_steps steps, in the order of arrival."""
        self.batch.waiting.extend(request for request, n in self._coming if n <= n_steps)
        self._coming = [(request, n - n_steps) for request, n in self._coming if n > n_steps]

    def _commit_chunks(self, step_run: StepRun, now_ps: int) -> None:
        keeps_all = self.pool.layers is None
        for request, n_tokens in step_run.chunks:
            request.prefilled_tokens = n_done = request.prefilled_tokens + n_tokens
            left_tokens = request.prompt_tokens + request.emitted_tokens - n_done
            if self._has_ids:
                self._memory.computed(request, n_done - n_tokens)
            if not keeps_all:
                self._memory.drop(request, (n_done - n_tokens, n_done), self._reserves)
            if request.phase is DONE:  # its decode replica was lost during the step
                self._recorder.lose_chunk(request, n_tokens)
                self.n_away -= 1
                self.batch.release(request, request.prefilled_tokens)
            elif left_tokens <= 0:
                if left_tokens:
                    request.padding_tokens = -left_tokens
                    request.prefilled_tokens = n_done + left_tokens
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
        if n_left and self.role is not None and self.role.hands_over(request):
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
        self.n_away += 1
        self.count_out()
        if self._is_stateful:
            self.scheduler.on_leave(request)

    def _last_token(self, request: Request, now_ps: int) -> None:
        """Close a request's span; without streaming, the client gets the answer with the whole batch."""
        self._recorder.span(self.id, request, self.cohort.step)
        if self._runs_to_completion:
            self.cohort.lingering.append(request)
        if self.streams:
            self._answer(request, now_ps)
        if self.role is not None:
            self.role.ended(request, now_ps)

    def _end_batch(self, now_ps: int) -> None:
        """End a padded batch: all its requests leave together, and whole answers with them."""
        done, self.cohort.lingering = self.cohort.lingering, []
        for request in done:
            self.batch.leave(request, self.cohort.leave(request))
            if not self.streams:
                self._recorder.first_token_ps[request.row] = now_ps
                self._answer(request, now_ps)

    def _answer(self, request: Request, now_ps: int) -> None:
        """Record that the client has its whole answer."""
        self.n_outstanding = n_outstanding = self.n_outstanding - 1  # fast: count_out, inlined
        on_fewer = self.on_fewer
        if on_fewer is not None:
            on_fewer(self.id, n_outstanding)
        recorder, row = self._recorder, request.row
        recorder.finish_ps[row] = now_ps
        recorder.status[row] = FINISHED
        on_answer = self._on_answer
        if on_answer is not None:
            on_answer(row, now_ps)

    @property
    def has_prompts(self) -> bool:
        """Prompts are in a slot, or wait for one that is free."""
        batch = self.batch
        return bool(batch.prefilling) or (bool(batch.waiting) and len(batch.running) < batch.max_running)

    @property
    def only_waits(self) -> bool:
        """Requests are there, and none decodes."""
        return not self.cohort.n and bool(self.batch.waiting or self.batch.prefilling or self._coming)

    # -- plan: the steps to come -----------------------------------------------------------------------------------

    def decide(self, now_ps: int) -> None:
        """Make room, ask the scheduler if requests wait, and begin the step run that follows."""
        batch, has_more = self.batch, self._plans_more
        prepare = self._prepare
        if prepare is not None:
            prepare(now_ps)
        n = self.cohort.n
        # fast: room is made only where a step could begin more blocks than are free
        has_room = not n or self.pool.free_blocks >= n * self._most_blocks
        if n and has_room and not (batch.waiting or batch.prefilling or self._coming):
            # fast: the decoding requests simply go on
            self.blocked_by, self._blocked_code = None, 0
            start = self._start_decode  # fast: CPython looks for a method of this name first
            self.step_run = step_run = start(now_ps, None, self.n_before_queue)
            if self._waits_for_host:
                step_run.hold_to(self.cost.host_ps(n))
            if has_more:
                self._after_plan(now_ps)
            return
        cohort, n_before = self.cohort, len(batch.running) if has_more else 0
        just_preempted = not has_room and batch.make_room(now_ps)
        has_preempted, plan = just_preempted, DECODE_ON
        while (batch.waiting or batch.prefilling) and not (self.holds_prompts and cohort.n):
            plan = batch.plan(now_ps, just_preempted)
            if plan.preempt:
                batch.preempt_all(plan.preempt, now_ps)
                just_preempted = just_preempted or plan.blocked_by == "blocks"
                continue
            if self._overlaps and plan.prefill and batch.begin_read(plan, now_ps):
                continue  # without it, as it waits until its prefix is there
            if plan.prefill or cohort.n:
                break
            if just_preempted:
                just_preempted = False  # no step runs, so the next boundary is now
                continue
            if plan.blocked_by != "blocks" or len(batch.running) < 2 or self.n_away or self._memory.reading:
                break
            # Requests in prefill hold all blocks, and none can continue.
            batch.preempt_one(now_ps)
            just_preempted = True
        self.blocked_by = blocked_by = plan.blocked_by
        self._blocked_code = BLOCKED_BY[blocked_by] if blocked_by else 0
        if plan.prefill:
            try:  # fast: chunks are checked as they begin, and by all rules if that fails
                self._start_mixed(plan, now_ps)
            except (TypeError, ValueError, AttributeError, IndexError):
                check_prefill(self.scheduler, batch.view, plan)
                raise
        elif cohort.n and plan.decode:
            n_most = 1 if just_preempted else plan.valid_steps
            if self._memory.keeps and blocked_by == "blocks" and n_most is None and batch.waiting:
                n_most = self._memory.steps_before_recheck(batch.waiting[0], cohort.steps_within)
            if self._coming and blocked_by is None:
                n_most = 1  # they have already waited for one step
            step_run = self._start_decode(now_ps, n_most, len(batch.waiting) + self.n_before_queue)
            if self._waits_for_host:
                step_run.hold_to(self.cost.host_ps(cohort.n))
            if plan.wake_at_ps is not None:
                step_run.cut(min(step_run.n_steps, step_run.steps_begun(plan.wake_at_ps)))
            self.step_run = step_run
        elif self._coming:
            self._show_arrivals(2)  # no step runs that they could miss
            self.decide(now_ps)
        elif plan.wake_at_ps is not None:
            self.stepping.plan_at(plan.wake_at_ps)
        elif self._blocked_code:
            self._recorder.stall(self.id, now_ps, self._blocked_code)
        elif self._is_stateful and not batch.running and not batch.waiting:
            self.scheduler.on_idle()
        if has_more:
            self._after_plan(now_ps)
            if has_preempted and self.step_run is None and self._swap is not None and self._swap.swapped:
                self.decide(now_ps)  # no step runs, so the next boundary, at which they may return, is now
            elif self.step_run is None and len(batch.running) < n_before and len(batch.startable) < len(batch.waiting):
                self.decide(now_ps)  # likewise for handed-over requests, which have room before the scheduler plans

    def _before_plan(self, now_ps: int) -> None:
        """Let requests decode that have their keys and values again, then let others in: with host memory."""
        role = self.role
        if self.tier is not None:
            self.tier.is_planning = True
        if role is not None:
            role.let_decode()
        if self._swap is not None:
            for request in self.batch.swap_in(self._swap, now_ps):
                self.join(request)
        if role is not None:
            role.before_plan(now_ps)

    def _after_plan(self, now_ps: int) -> None:
        """Let the other parts change what the plan began, and say what keeps out requests outside the queue."""
        step_run = self.step_run
        why = None if self.role is None else self.role.after_plan(step_run)
        if self.tier is not None:
            why = self._wait_for_copies(self.tier, step_run, now_ps) or why
        if why is not None and self.blocked_by is None:
            self._blocked_code = BLOCKED_BY[why]
        if self._windows and step_run is not None and step_run.n_steps > 1 and "blocks" in (self.blocked_by, why):
            step_run.cut(1)  # windows may free the blocks that others wait for
        if self._orders and self._coming and step_run is not None:
            step_run.cut(1)  # an arrival that the scheduler sees a step later may go before the blocked head
        if self._on_empty is not None and self.is_empty:
            self._on_empty(now_ps)

    def _wait_for_copies(self, tier: HostTier, step_run: StepRun | None, now_ps: int) -> Blocked | None:
        """Lengthen a step by the copies it waits for; return what keeps out swapped requests.

        Copies of a boundary precede its step, as in vLLM before V1 (worker/worker.py, execute_worker).
        """
        self._memory.fetch()
        tier.is_planning = False
        wait_ps = tier.copy(now_ps)
        if self._overlaps:
            self._await_reads()
        if step_run is None:
            return None
        due_ps = self._reads_end.due_ps
        if due_ps is not None and step_run.n_steps > 1 and due_ps < step_run.end_ps:
            step_run.cut(max(1, step_run.steps_done(due_ps)))  # their blocks come before those of the read, in turn
        if wait_ps:
            step_run.wait_ps = wait_ps
            step_run.last(step_run.first_ps + wait_ps)
        drops = self.cohort.drops
        if drops is not None and step_run.n_decoding:
            # what leaves a window gets its ids then, and is copied from the end of that step on
            step_run.cut(min(step_run.n_steps, drops.next_step - self.cohort.step))
        swap = self._swap
        if swap is None:
            return None
        if swap.returned and step_run.n_steps > 1:
            step_run.cut(1)  # their spans go on with its token; a request behind them may start after it
        if self._orders and self._is_stateful and len(swap.swapped) > 1:
            step_run.cut(1)  # another may be first to return after each token, and may fit
        step_run.queue_len += len(swap.swapped)
        if not swap.swapped:
            return None
        return "seats" if len(self.batch.running) >= self.batch.max_running else "blocks"

    def _await_reads(self) -> None:
        """Wake when the first of the reads in flight ends."""
        end_ps = min((read.end_ps for read in self._memory.reading.values()), default=None)
        if end_ps is not None and end_ps != self._reads_end.due_ps:
            self._reads_end.set(end_ps)

    def _on_read(self, now_ps: int) -> None:
        """Let requests find what has been read; they may start at the next step boundary."""
        self._move_until(now_ps)
        n_blocks = self._memory.end_reads(now_ps)
        if self.step_run is not None:
            self._n_given_back += n_blocks
        self._await_reads()
        self.stepping.wake(now_ps)

    def _on_store_change(self, now_ps: int) -> None:
        """Plan again at the next step boundary if the head of the queue waits for blocks: its hit may change."""
        if self.blocked_by == "blocks" and self.step_run is not None:
            self.stepping.wake(now_ps)

    def _start_mixed(self, plan: StepPlan, now_ps: int) -> None:
        """Begin one step: prompt chunks, and a token for each decoding request if the plan says so."""
        batch, reserves, pads = self.batch, self._reserves, self._runs_to_completion
        n_tokens = n_pairs = n_context = n_complete = n_blocks = n_begun = 0
        pool, layers, chunks = self.pool, self.pool.layers, plan.prefill
        block_size, free_blocks = pool.block_size, pool.free_blocks
        if len(chunks) > 1 and (len(dict(chunks)) < len(chunks) or reserves):
            check_prefill(self.scheduler, batch.view, plan)
        for request, n_chunk in chunks:
            left_tokens = request.prompt_tokens + request.emitted_tokens - request.prefilled_tokens
            if request.finder is not None:
                left_tokens = request.prefill_left_tokens
            if type(n_chunk) is not int or n_chunk < 1 or (n_chunk > left_tokens and not pads):
                check_prefill(self.scheduler, batch.view, plan)
            if request.phase is WAITING:
                batch.admit(request, plan.reserve_tokens[n_begun] if reserves else 0, now_ps)
                if layers is not None:
                    n_blocks += layers.n_states
            elif request not in batch.prefilling:
                check_prefill(self.scheduler, batch.view, plan)
            done = request.prefilled_tokens
            end = done + n_chunk
            if layers is None:
                n_blocks -= -end // block_size
                if done:
                    n_blocks += -done // block_size
            else:
                n_blocks += layers.filled(end) - layers.filled(done)
            n_tokens += n_chunk
            n_pairs += n_chunk * (done + end + 1) // 2
            n_context += end
            if n_chunk >= left_tokens:
                n_complete += 1
            if reserves:
                n_begun += 1
        pool.take(n_blocks, reserves)
        if free_blocks - pool.free_blocks > batch.view.free_blocks:
            rule = f"must not take more blocks than the {batch.view.free_blocks} free ones"
            raise broke(self.scheduler, "plan", now_ps, rule, free_blocks - pool.free_blocks)
        n, kv_tokens = (self.cohort.n, self.cohort.kv_tokens) if plan.decode else (0, 0)
        first_ps = self.cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        if self._windows:
            first_ps += self._windows_ps(plan, n_tokens, n)
        if self._waits_for_host:
            first_ps = max(first_ps, self.cost.host_ps(n + n_complete))
        self.step_run = step_run = self._mixed_run
        step_run.begin(now_ps, first_ps, 0, 1)
        step_run.n_decoding, step_run.queue_len = n, len(batch.waiting) + self.n_before_queue
        step_run.chunks, step_run.n_prefill_tokens, step_run.n_prefill_pairs = chunks, n_tokens, n_pairs

    def _windows_ps(self, plan: StepPlan, n_tokens: int, n: int) -> int:
        """Return the attention of a step in layers with a window."""
        chunks = [(each.prefilled_tokens, each.prefilled_tokens + n_each) for each, n_each in plan.prefill]
        reads = [group.reads_of(chunks) for group in self._windows if group.attends]
        return self.cost.prefill_windows_ps(n_tokens, reads) + self.decode.window_ps(n)
