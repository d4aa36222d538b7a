"""ReplicaColumns: the requests of one replica in columns, and its loop: plan, advance, commit."""

from __future__ import annotations

from mypy_extensions import i64

from simserve.columns.arrivals import NextRows
from simserve.columns.handover import Side
from simserve.columns.live import DECODES, PREFILLS, WAITS
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records, counts
from simserve.columns.units import Unit
from simserve.engine.recorder import FINISHED, UNFINISHED
from simserve.engine.recorder import NEVER as NO_INSTANT
from simserve.engine.replica import Replica
from simserve.engine.stepping import LockStep
from simserve.integers import NEVER
from simserve.state.planner import BLOCKS, WORDS
from simserve.state.request import Request
from simserve.units import EndsTooLate


class ReplicaColumns(Unit):
    """A replica that walks its queue in order, with layers that keep all tokens.

    It counts in the replica's own pool, cohort and view for routers; requests are places of `live`.
    """

    def __init__(
        self,
        replica: Replica,
        prompts: PromptColumns,
        records: Records,
        rows: NextRows,
        side: Side,
    ) -> None:
        super().__init__(replica.id)
        self.id: i64 = replica.id
        self._n_outstanding: i64 = 0
        self._replica, self._prompts, self._records, self._rows = replica, prompts, records, rows
        self._live, self._recorder, self._waiting = records.live, records.recorder, prompts.waiting
        self._load, self._pool, self._cohort = replica.load, replica.pool, replica.cohort
        self._in_flight, self._decode, self._n_ahead = replica.in_flight, replica.decode, i64(replica.n_ahead)
        self._running, self._contents = prompts.running, prompts.contents
        self._load.count_uncomputed = prompts.uncomputed_tokens
        self._load.queues = (prompts.waiting, prompts.coming, *side.queues)
        self.side = side
        """Its side in a hand-over."""
        scheduler = replica.scheduler
        self._reserves, self._is_stateful = scheduler.reserves, scheduler.is_stateful
        self._requeues_last, self._caches_answers = scheduler.requeues_last, scheduler.caches_answers
        self.holds_prompts = False
        """The next step has no prompts, as long as requests decode: other ranks have none."""
        self._blocked_outside: i64 = 0
        """What keeps out requests of other replicas, as recorded."""

    # -- arrivals --------------------------------------------------------------------------------------------------

    def _count(self, n: i64) -> None:
        """Count requests that come, or go."""
        self._n_outstanding += n
        self.side.loads.count(self.id, self._n_outstanding)
        if n < 0:
            self._load.count_out()
        else:
            self._load.n_outstanding = self._n_outstanding

    def arrive(self, place: i64, request: Request | None) -> None:
        """Accept a request, as routers saw it, which is queued at once or when another replica has blocks for it."""
        self._contents.come(place, request)
        self._count(1)
        self._live.replica[place] = self.id

    def queue(self, place: i64, now_ps: i64) -> bool:
        """Queue a request; return whether the replica is idle, and plans at this instant."""
        if self.side.waits(place):
            return False
        step_run, n_ahead = self._in_flight.step_run, self._n_ahead
        if step_run is None:
            if n_ahead and self._running.n:
                self._prompts.come(place, 1)
            else:
                self._waiting.append(place)
            return True
        n_begun = step_run.steps_begun(now_ps)
        if n_ahead:
            self._prompts.come(place, 1 + n_begun)
        else:
            self._waiting.append(place)
        if not self._prompts.blocked and n_begun + n_ahead < step_run.n_steps:
            step_run.cut(n_begun + n_ahead)
        return False

    def wake(self, now_ps: i64) -> bool:
        """Plan when the step in flight is over; return whether the replica is idle, and plans at this instant."""
        step_run = self._in_flight.step_run
        if step_run is None:
            return True
        if step_run.n_steps > 1:
            n_begun = step_run.steps_begun(now_ps)
            if n_begun < step_run.n_steps:
                step_run.cut(n_begun)
        return False

    def fetch(self, place: i64, now_ps: i64) -> bool:
        """Queue a request that another replica prefills; return whether the replica is idle, and plans at this
        instant."""
        self._count(1)
        return self.side.come(place) and self.wake(now_ps)

    def give_back(self, place: i64, now_ps: i64) -> bool:
        """Free the blocks of a request that has been fetched; return whether the replica is idle and requests may have
        waited for them."""
        self._running.n_away -= 1
        self._in_flight.free(self._contents.release(place, self._live.prefilled_tokens[place]))
        return self.wake(now_ps) and (self._waiting.n > 0 or self._prompts.prefilling.n > 0)

    def let_go(self, place: i64) -> None:
        """Free the slot and blocks taken ahead for a request that has ended."""
        self._in_flight.free(self._contents.let_go(place))
        self._running.n_away -= 1
        self._count(-1)
        self._live.remove(place)

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
        prompts = self._prompts
        return prompts.prefilling.n > 0 or (prompts.waiting.n > 0 and self._running.n < prompts.slots)

    @property
    def only_waits(self) -> bool:
        """Requests are there, and none decodes."""
        prompts = self._prompts
        return not self._cohort.n and prompts.waiting.n + prompts.prefilling.n + prompts.coming.n > 0

    def add_to(self, step: LockStep) -> None:
        """Add to a step of all ranks what was planned here."""
        step_run, prompts = self._in_flight.step_run, self._prompts
        if step_run is not None:
            n_complete = prompts.n_complete if prompts.n_chunks else 0
            n_decoding: i64 = step_run.n_decoding
            step.add(step_run, step_run.n_prefill_tokens + n_decoding, n_decoding + n_complete)

    def last(self, end_ps: i64) -> None:
        """Let the step in flight, if any, end then."""
        step_run = self._in_flight.step_run
        if step_run is not None:
            step_run.last(end_ps - step_run.start_ps)

    # -- plan --------------------------------------------------------------------------------------------------------

    def end_ps(self) -> i64:
        """Return the end of the step run in flight; NEVER without one. Raises EndsTooLate."""
        step_run = self._in_flight.step_run
        if step_run is None:
            return NEVER
        if step_run.end_ps >= NEVER:
            raise EndsTooLate
        return step_run.end_ps

    def plan(self, now_ps: i64) -> None:
        """Make room, walk the queue if requests wait, and begin the step run that follows."""
        self.side.before_plan(now_ps)
        self._begin(now_ps)
        self._blocked_outside = self.side.after_plan(self._in_flight.step_run)

    def _begin(self, now_ps: i64) -> None:
        cohort, prompts, waiting, prefilling = self._cohort, self._prompts, self._waiting, self._prompts.prefilling
        n: i64 = cohort.n
        has_room = self._pool.free_blocks >= n
        prompts.n_chunks = prompts.blocked = 0
        prompts.has_planned = False
        if n and has_room and not (waiting.n or prefilling.n or self._prompts.coming.n):
            self._in_flight.step_run = self._decode.start(now_ps, None, self.side.n_before_queue)
            return
        just_preempted = not has_room and self._make_room(now_ps)
        while (waiting.n or prefilling.n) and not (self.holds_prompts and cohort.n):
            prompts.plan(just_preempted)
            if prompts.planner.preempts:
                self._preempt(self._running.newest, now_ps)  # it may be the prompt itself
                just_preempted = True
                continue
            if prompts.n_chunks or cohort.n:
                break
            if just_preempted:
                just_preempted = False  # no step runs, so the next boundary is now
                continue
            if prompts.blocked != BLOCKS or self._running.n < 2 or self._running.n_away:
                break
            self._preempt(self._victim(), now_ps)  # requests in prefill hold all blocks, and none can continue
            just_preempted = True
        if prompts.n_chunks:
            self._in_flight.step_run = prompts.start(now_ps, self.side.n_before_queue)
        elif cohort.n:
            self._decode_on(now_ps, just_preempted)
        elif self._prompts.coming.n:
            self._prompts.show(2)  # no step runs that they could miss
            self._begin(now_ps)
        elif prompts.blocked:
            self._recorder.stall(self.id, now_ps, prompts.blocked)
        elif not self._running.n and not waiting.n:
            prompts.planner.idle()

    def _decode_on(self, now_ps: i64, just_preempted: bool) -> None:
        """Begin decode steps, as many as the plan holds for."""
        blocked, n_most = self._prompts.blocked, 1 if just_preempted else None
        if not just_preempted and self._prompts.has_planned and self._prompts.planner.valid_steps:
            n_most = self._prompts.planner.valid_steps
        elif blocked == BLOCKS and not just_preempted and self._waiting.n:
            n_most = self._contents.steps_before_recheck(self._waiting.head)
        if not blocked and self._prompts.coming.n:
            n_most = 1  # they have already waited for one step
        self._in_flight.step_run = self._decode.start(now_ps, n_most, self._waiting.n + self.side.n_before_queue)

    # -- preemption --------------------------------------------------------------------------------------------------

    def _make_room(self, now_ps: i64) -> bool:
        """Preempt until the decoding requests have blocks for their next step; return True if any was preempted."""
        just_preempted = False
        while not self._reserves and self._cohort.blocks_of_next() > self._pool.free_blocks:
            self._preempt(self._victim(), now_ps)
            just_preempted = True
        if just_preempted:
            self._prompts.planner.preempted()
        return just_preempted

    def _victim(self) -> i64:
        """Return the request to preempt: the one that the policy names, or the one admitted last."""
        prompts = self._prompts
        if not self._is_stateful:
            return self._running.newest
        victim = prompts.planner.victim()
        if self._cohort.n < 2 and prompts.prefilling.n:
            return prompts.prefilling.tail
        assert isinstance(victim, int), "a request decodes"
        return victim

    def _preempt(self, place: i64, now_ps: i64) -> None:
        """Take the slot and blocks of a request, which waits again before all others."""
        live, row = self._live, self._live.row[place]
        kv_tokens = findable_tokens = live.prefilled_tokens[place]
        if live.phase[place] == DECODES:
            self._records.span(place, self._cohort.step)
            kv_tokens = self._running.drop(place)
            if self._caches_answers:
                findable_tokens = kv_tokens
            if self._is_stateful:
                self._prompts.planner.left(place)
        live.phase[place] = WAITS
        self._prompts.prefilling.keep(PREFILLS)
        self._running.leave(place)
        self._contents.preempt(place, kv_tokens, findable_tokens)
        self._recorder.preempt(row, kv_tokens)
        live.prefilled_tokens[place] = 0
        live.n_preemptions[place] += 1
        live.preempted_ps[place] = now_ps
        if self._requeues_last:
            self._waiting.append(place)
        else:
            self._waiting.append_left(place)

    # -- commit ------------------------------------------------------------------------------------------------------

    def commit(self, now_ps: i64) -> None:
        """Record the step run, with the counters at its start, and apply it."""
        step_run, cohort, records = self._in_flight.step_run, self._cohort, self._records
        assert step_run is not None, "a step is over"
        n: i64 = step_run.n_decoding
        used_blocks: i64 = self._pool.used_blocks
        reserved_blocks: i64 = self._pool.reserved_blocks
        if self._in_flight.has_changed:
            used_blocks, reserved_blocks = self._in_flight.land()
        if self._is_stateful:
            n_decoded = step_run.n_steps if n else 0
            self._prompts.planner.committed(n_decoded, step_run.n_prefill_tokens > 0, self._prompts.blocked)
        blocked = self._prompts.blocked
        if not blocked:
            blocked = self._blocked_outside
        at, cells = records.steps.room(), records.steps.cells
        cells[at] = self.id
        cells[at + 1] = step_run.start_ps
        cells[at + 2] = step_run.first_ps
        cells[at + 3] = step_run.growth_ps
        cells[at + 4] = step_run.n_prefill_pairs
        cells[at + 5] = cohort.kv_tokens if n else 0
        cells[at + 6] = counts(step_run.n_steps, step_run.n_prefill_tokens)
        cells[at + 7] = counts(n, used_blocks)
        cells[at + 8] = counts(reserved_blocks, step_run.queue_len)
        cells[at + 9] = counts(blocked, 0)
        self._in_flight.step_run = None
        if n:
            self._in_flight.apply(step_run.n_steps)
            if cohort.step >= cohort.next_finish_step:
                n_finished = self._running.pop_finished()
                for i in range(n_finished):
                    place = self._running.finished[i]
                    self._end(place, self._running.stop_decoding(place), now_ps)
                    if self._is_stateful:
                        self._prompts.planner.left(place)
        if self._prompts.n_chunks:
            if self.side.streams:
                self.side.send(self._prompts, step_run.start_ps, now_ps)
            self._prompts.commit(now_ps - step_run.start_ps)
            for i in range(self._prompts.n_chunks):
                place = self._prompts.complete(i)
                if place >= 0:
                    self._end_prefill(place, now_ps)
            self._prompts.n_chunks = 0
        if self._prompts.coming.n:
            self._prompts.show(step_run.n_steps)

    def _end(self, place: i64, kv_tokens: i64, now_ps: i64) -> None:
        """End a request that has its last token."""
        self._records.span(place, self._cohort.step)
        self._records.end(place, FINISHED, now_ps)
        self._count(-1)
        self._rows.answered(self._live.row[place], now_ps)
        self._running.leave(place)
        self._contents.release(place, kv_tokens)
        if not self.side.ended(place, now_ps):
            self._live.remove(place)

    def _end_prefill(self, place: i64, now_ps: i64) -> None:
        """Complete a prefill, which emits a token; the request decodes, or is done."""
        live = self._live
        live.joined_ps[place] = now_ps
        live.join_step[place] = self._cohort.step
        if not live.emitted_tokens[place]:
            live.first_token_ps[place] = now_ps
        live.emitted_tokens[place] += 1
        n_left = live.output_tokens[place] - live.emitted_tokens[place]
        if n_left and self.side.takes(place, now_ps):
            self._count(-1)
        elif n_left:
            self._running.join(place, n_left)
            self._prompts.joined(place)
            return
        else:
            self._end(place, live.prefilled_tokens[place], now_ps)
        if self._is_stateful:
            self._prompts.planner.left(place)

    # -- the end of the run --------------------------------------------------------------------------------------------

    def stop(self, now_ps: i64) -> None:
        """Commit the steps that are over, and give the replica the requests that are there."""
        step_run, batch, live = self._in_flight.step_run, self._replica.batch, self._live
        if step_run is not None:
            step_run.cut(step_run.steps_done(now_ps))
            if step_run.n_steps:
                self.commit(now_ps)
        self._prompts.show(2)
        self._replica.blocked_by = WORDS[self._prompts.blocked]
        running: list[int] = []
        place = self._running.newest
        while place >= 0:
            running.append(place)
            place = live.older[place]
        for place in reversed(running):
            if live.phase[place] == DECODES:
                self._records.span(place, self._cohort.step)
            batch.running[self._still_there(place)] = None
        while self._waiting.n:
            batch.waiting.append(self._still_there(self._waiting.pop_left()))
        batch.n_away = self._running.n_away
        self.side.stop([self._still_there(place) for place in self.side.places()])

    def _still_there(self, place: i64) -> Request:
        """Record a request that is there as the run ends; return it."""
        self._records.end(place, UNFINISHED, NO_INSTANT)
        return Request(self._live.row[place], 0, self._live.prompt_tokens[place], self._live.output_tokens[place])
