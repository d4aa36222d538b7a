"""ReplicaColumns: a replica with its requests in columns, and its loop: plan, advance, commit."""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from simserve.columns.batch import BatchColumns
from simserve.columns.handover import HandoverSide
from simserve.columns.records import counts
from simserve.columns.tiers import TierSide
from simserve.columns.units import RankUnit
from simserve.engine.lock_step import LockStep
from simserve.engine.recorder import pack_step
from simserve.engine.replica import Replica
from simserve.engine.slowness import Window
from simserve.engine.step_run import StepRun
from simserve.integers import IS_COMPILED, NEVER
from simserve.state.planner import BLOCKS
from simserve.units import EndsTooLate


class ReplicaColumns(RankUnit):
    """A replica that plans, steps and commits; its requests are those of a batch."""

    def __init__(self, replica: Replica, batch: BatchColumns) -> None:
        super().__init__(replica.id)
        self.batch = batch
        self._prompts, self._records, self._recorder = batch.prompts, batch.records, batch.records.recorder
        self._running, self._contents = batch.running, batch.contents
        self._pool, self._cohort = batch.pool, batch.cohort
        prompts = batch.prompts
        self._waiting, self._prefilling, self._coming = prompts.waiting, prompts.prefilling, prompts.coming
        self._in_flight, self._decode, self._side = replica.in_flight, replica.decode, batch.side
        self._is_followed, self._pads, self._orders = prompts.planner.follows, batch.pads, batch.orders
        self._has_windows, self._most_blocks = len(replica.decode.windows) > 0, i64(replica.decode.most_blocks)
        self._is_uneven = batch.is_uneven
        self._is_whole = type(batch.side) is HandoverSide and not self._has_windows and not self._orders
        """Nothing comes before its plans, and nothing follows them."""
        self._wake_ps: i64 = NEVER
        """When it plans next without a step in flight; NEVER: when something comes."""
        self.frozen_ps: i64 = NEVER
        """When its last step ends, as it has failed; NEVER: it has not."""
        self._on_empty: Callable[[int], None] | None = None
        self.tier: TierSide | None = None
        """Its side of host memory, if it has any."""
        self._is_written = self._is_uneven or not IS_COMPILED
        """Its rows are written, not noted. fast: interpreted, to pack a row takes half as long."""
        self._reads_ahead = self._has_preempted = False
        """Blocks ran out at the last plan."""
        self._slowness = replica.slowness
        self._blocked_outside: i64 = 0
        """What keeps out requests of other replicas, as recorded."""

    def let_drain(self, on_empty: Callable[[int], None]) -> None:
        """Call on_empty with instants at which it may have nothing left to do."""
        self._on_empty, self._is_whole, self.batch.drains = on_empty, False, True

    def use(self, tier: TierSide) -> None:
        """Use host memory."""
        self.tier, self._reads_ahead = tier, tier.reads_ahead
        self._is_written, self._is_whole = True, False

    # -- plan --------------------------------------------------------------------------------------------------------

    def end_ps(self) -> i64:
        """Return the end of the step run in flight; NEVER without one. Raises EndsTooLate."""
        step_run = self._in_flight.step_run
        if step_run is None:
            return self._wake_ps
        if step_run.end_ps >= NEVER:
            raise EndsTooLate
        return step_run.end_ps

    def plan(self, now_ps: i64) -> None:
        """Make room, walk the queue if requests wait, and begin the step run that follows."""
        self._wake_ps = NEVER
        if self._is_whole:  # fast: nothing is called where there is nothing
            self._begin(now_ps)
            return
        tier = self.tier
        if tier is not None:
            tier.before_plan(now_ps)
        self._side.before_plan(now_ps)
        n_running = self._running.n
        self._begin(now_ps)
        step_run = self._in_flight.step_run
        self._blocked_outside = self._side.after_plan(step_run)
        if tier is not None:
            blocked = tier.after_plan(step_run, now_ps)
            if blocked:
                self._blocked_outside = blocked
        if step_run is not None and step_run.n_steps > 1 and self._running.returned:
            step_run.cut(1)  # their spans go on with its token; a request behind them may start after it
        if step_run is None:
            is_away = self._side.n_elsewhere() > 0 or (tier is not None and tier.reads)
            returns = self._has_preempted and self._prompts.n_swapped > 0
            if returns or (self._running.n < n_running and is_away):
                self.plan(now_ps)  # no step runs, so the next boundary is now, with room for those
        elif self._slowness.windows and not self._decode.steps_singly and self._slowness.speed(now_ps) < 1:
            worked_ps: int = step_run.first_ps - step_run.wait_ps  # copies keep their rate
            step_run.last(self._slowness.step_ps(worked_ps, now_ps) + step_run.wait_ps)
        elif step_run.n_steps > 1:
            if self._has_windows and BLOCKS in (self._prompts.blocked, self._blocked_outside):
                step_run.cut(1)  # windows may free the blocks that others wait for
            elif self._orders and self._coming.n:
                step_run.cut(1)  # an arrival that the scheduler sees a step later may go before the blocked head
        if self._on_empty is not None:
            self._on_empty(now_ps)

    def _begin(self, now_ps: i64) -> None:
        cohort, prompts, waiting, prefilling = self._cohort, self._prompts, self._waiting, self._prefilling
        n: i64 = cohort.n
        has_room = self._pool.free_blocks >= n * self._most_blocks
        prompts.n_chunks = prompts.blocked = 0
        prompts.has_planned = self._has_preempted = False
        if n and has_room and not (waiting.n or prefilling.n or self._coming.n):
            self._in_flight.step_run = self._decode.start(now_ps, None, self._side.n_before_queue)
            return
        just_preempted = self._has_preempted = not has_room and self.batch.make_room(now_ps)
        while (waiting.n or prefilling.n) and not (self.holds_prompts and cohort.n):
            prompts.plan(just_preempted, now_ps)
            if prompts.planner.preempts:
                self.batch.preempt_planned(now_ps)
                just_preempted = just_preempted or prompts.blocked == BLOCKS
                continue
            if self._reads_ahead and self.tier is not None and self.tier.begin_read(now_ps):
                continue  # without it, as it waits until its prefix is there
            if prompts.n_chunks or cohort.n:
                break
            if just_preempted:
                just_preempted = False  # no step runs, so the next boundary is now
                continue
            if prompts.blocked != BLOCKS or self._running.n < 2 or self._running.n_away:
                break
            if self._reads_ahead and self.tier is not None and self.tier.reads:
                break
            # requests in prefill hold all blocks, and none can continue
            self.batch.preempt(self.batch.victim(), now_ps)
            just_preempted = True
        if prompts.n_chunks:
            self._in_flight.step_run = prompts.start(now_ps, self._side.n_before_queue)
        elif cohort.n and (prompts.planner.decodes or not prompts.has_planned):
            self._decode_on(now_ps, just_preempted)
        elif self._coming.n:
            self._coming.show_all(waiting)
            self._begin(now_ps)
        elif prompts.has_planned and prompts.planner.wake_ps < NEVER:
            self._wake_ps = prompts.planner.wake_ps
        elif prompts.blocked:
            self._recorder.stall(self.place, now_ps, prompts.blocked)
        elif not self._running.n and not waiting.n:
            prompts.planner.idle()

    def _decode_on(self, now_ps: i64, just_preempted: bool) -> None:
        """Begin decode steps, as many as the plan holds for."""
        blocked, n_most = self._prompts.blocked, 1 if just_preempted else None
        if blocked == BLOCKS and not just_preempted and self._waiting.n:
            n_most = self._contents.steps_before_recheck(self._waiting.first())
        if self._prompts.has_planned and self._prompts.planner.valid_steps:
            n_most = min(self._prompts.planner.valid_steps, n_most or NEVER)
        if not blocked and self._coming.n:
            n_most = self._coming.left(self._coming.head)
        step_run = self._decode.start(now_ps, n_most, self._waiting.n + self._side.n_before_queue)
        self._in_flight.step_run = step_run
        if self._prompts.has_planned and self._prompts.planner.wake_ps < NEVER:
            n_steps = step_run.steps_begun(self._prompts.planner.wake_ps)
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)

    # -- commit ------------------------------------------------------------------------------------------------------

    def commit(self, now_ps: i64) -> None:
        """Record the step run, with the counters at its start, and apply it."""
        in_flight, prompts, cohort = self._in_flight, self._prompts, self._cohort
        step_run = in_flight.step_run
        if step_run is None:
            return  # it wakes, and plans
        if self.tier is not None:
            self.tier.before_commit(step_run, now_ps)
        if self._running.returned and step_run.n_decoding:
            self._running.give_tokens(now_ps)
        if self._is_uneven:
            self._commit_but_last(step_run)
        n: i64 = step_run.n_decoding
        if self._has_windows:
            self._decode.windows_ps.append(self._decode.window_ps(n))
        used_blocks: i64 = self._pool.used_blocks
        reserved_blocks: i64 = self._pool.reserved_blocks
        if in_flight.has_changed:
            used_blocks, reserved_blocks = in_flight.land()
        if self._is_followed:
            self._report(step_run.n_steps if n else 0, step_run.n_prefill_tokens > 0)
        blocked = prompts.blocked
        if not blocked:
            blocked = self._blocked_outside
        if self._is_written:
            self._write(step_run, (used_blocks, reserved_blocks), blocked)
        else:
            self._note(step_run, used_blocks, reserved_blocks, blocked)
        in_flight.step_run = None
        if n:
            in_flight.apply(step_run.n_steps)
            if cohort.step >= cohort.next_finish_step:
                n_finished = self._running.pop_finished()
                for i in range(n_finished):
                    self.batch.finish(self._running.finished[i], now_ps)
        if prompts.n_chunks:
            if self._side.streams:
                self._side.send(prompts, step_run.start_ps, now_ps)
            prompts.commit(now_ps - step_run.start_ps)
            for i in range(prompts.n_chunks):
                self.batch.end_chunk(prompts.places[i], prompts.tokens[i], now_ps)
            prompts.n_chunks = 0
        if self._pads:
            self.batch.end_batch(now_ps)
        if self._coming.n or self._coming.skips:
            self._coming.show(step_run.n_steps, step_run.n_prefill_tokens > 0, self._waiting)
        if self.tier is not None:
            self.tier.after_commit(now_ps)

    def _note(self, step_run: StepRun, used_blocks: i64, reserved_blocks: i64, blocked: i64) -> None:
        """Record a step run with the counters at its start."""
        n, records = step_run.n_decoding, self._records
        at, cells = records.steps.room(), records.steps.cells
        cells[at] = self.place
        cells[at + 1] = step_run.start_ps
        cells[at + 2] = step_run.first_ps
        cells[at + 3] = step_run.growth_ps
        cells[at + 4] = step_run.n_prefill_pairs
        cells[at + 5] = self._cohort.kv_tokens if n else 0
        cells[at + 6] = counts(step_run.n_steps, step_run.n_prefill_tokens)
        cells[at + 7] = counts(n, used_blocks)
        cells[at + 8] = counts(reserved_blocks, step_run.queue_len)
        cells[at + 9] = counts(blocked, 0)

    def _write(self, step_run: StepRun, blocks: tuple[int, int], blocked: int) -> None:
        """Record a step run behind others that were written, not noted, as each step is a row of its own."""
        n = step_run.n_decoding
        self._recorder.step_run_rows[self.place] += pack_step(
            step_run.start_ps,
            step_run.first_ps,
            step_run.growth_ps,
            step_run.n_prefill_pairs,
            self._cohort.kv_tokens if n else 0,
            step_run.n_steps,
            step_run.n_prefill_tokens,
            n,
            *blocks,
            step_run.queue_len,
            blocked,
            step_run.n_accepted,
        )

    def _commit_but_last(self, step_run: StepRun) -> None:
        """Record and apply all steps of an uneven run but the last, and note the accepted tokens of that one."""
        prompts, blocked = self._prompts, self._prompts.blocked or self._blocked_outside
        if step_run.n_steps > 1:
            n_first = step_run.n_steps - 1
            if self._is_followed:
                self._report(n_first, False)
            queued_from, used_blocks = self._coming.left_steps(), self._in_flight.used_at_start
            rows = self._recorder.step_run_rows[self.place]
            self._decode.commit_but_last(step_run, used_blocks, blocked, queued_from, rows)
            self._coming.show(n_first, False, self._waiting)
        step_run.n_accepted = self._decode.n_accepted(step_run, prompts.chunks())

    def _report(self, n_steps: i64, has_prefill: bool) -> None:
        """Tell a policy that follows requests about steps that are over, and about tokens beyond one a step."""
        planner = self._prompts.planner
        planner.committed(n_steps, has_prefill, self._prompts.blocked)
        if n_steps and self._is_uneven:
            for request, n_tokens in self._cohort.accepted(n_steps):
                planner.accepted(self._prompts.live.place_of(request), n_tokens)

    def halt(self) -> None:
        """Neither end the step in flight nor plan of itself any more."""
        self._wake_ps = NEVER

    def slow(self, window: Window) -> None:
        """Take longer for the steps that begin in a window, from now on: one by one there, as each is rounded."""
        self._slowness.begin(window)
        self._is_whole = False
        self.batch.wake(window[0])

    def stop(self, now_ps: i64) -> None:
        """Commit the steps that are over as the run ends."""
        step_run = self._in_flight.step_run
        if step_run is not None:
            step_run.cut(step_run.steps_done(now_ps))
            if step_run.n_steps:
                self.commit(now_ps)

    # -- ranks that step together ------------------------------------------------------------------------------------

    @property
    def steps(self) -> bool:
        """A step is in flight."""
        return self._in_flight.step_run is not None

    @property
    def decodes(self) -> bool:
        """Requests decode."""
        return self._cohort.n > 0

    @property
    def has_prompts(self) -> bool:
        """Prompts are in a slot, or wait for one that is free."""
        return self._prefilling.n > 0 or (self._waiting.n > 0 and self._running.n < self._prompts.slots)

    @property
    def only_waits(self) -> bool:
        """Requests are there, and none decodes."""
        return not self._cohort.n and self._waiting.n + self._prefilling.n + self._coming.n > 0

    def add_to(self, step: LockStep) -> None:
        """Add to a step of all ranks what was planned here."""
        step_run, prompts = self._in_flight.step_run, self._prompts
        if step_run is not None:
            n_complete = prompts.n_complete if prompts.n_chunks else 0
            n_decoding: i64 = step_run.n_decoding
            n_tokens = step_run.n_prefill_tokens + n_decoding * self._cohort.n_tokens
            step.add(step_run, n_tokens, n_decoding + n_complete)

    def passes_stages(self, ends_ps: tuple[int, ...], stage_ps: int) -> None:
        """Note when the step in flight, if any, leaves the stages of a pipeline, each after stage_ps."""
        if self._in_flight.step_run is not None:
            self._side.passes_stages(self._prompts, ends_ps, stage_ps)

    def last(self, end_ps: i64, wait_ps: i64) -> None:
        """Let the step in flight, if any, end then, after a wait for copies."""
        step_run = self._in_flight.step_run
        if step_run is not None:
            step_run.last(end_ps - step_run.start_ps)
            step_run.wait_ps = wait_ps
