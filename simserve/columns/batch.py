"""BatchColumns: the requests of one replica in columns: how they come to it, and how they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mypy_extensions import i64

from simserve.columns.arrivals import NextRows
from simserve.columns.handover import HandoverSide
from simserve.columns.live import DECODES, LOST, MIGRATES, PREFILLS, SWAPPED, WAITS
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records
from simserve.columns.swaps import SwapLine
from simserve.engine.losses import LostLife
from simserve.engine.recorder import FINISHED, UNFINISHED
from simserve.engine.recorder import NEVER as NO_INSTANT
from simserve.engine.replica import Replica
from simserve.integers import NONE
from simserve.state.planner import WORDS
from simserve.state.request import Request


class BatchColumns:
    """The requests of a replica. It counts in the replica's own pool, cohort and view for routers; requests are places
    of `live`."""

    def __init__(
        self, replica: Replica, prompts: PromptColumns, records: Records, rows: NextRows, side: HandoverSide
    ) -> None:
        self.id: i64 = replica.id
        self.prompts, self.records, self.side = prompts, records, side
        self.in_flight, self.cohort, self.pool = replica.in_flight, replica.cohort, replica.pool
        self.running, self.contents = prompts.running, prompts.contents
        self._replica, self._rows, self._load = replica, rows, replica.load
        self._live, self._waiting, self._n_ahead = records.live, prompts.waiting, i64(replica.n_ahead)
        self._load.count_uncomputed = self.uncomputed_tokens
        self._load.count_waiting = self.waiting_tokens
        self._load.queues = self._queues = (prompts.waiting, prompts.coming, *side.queues)
        scheduler = replica.scheduler
        self._reserves, self._follows, self.looks = scheduler.reserves, prompts.planner.follows, prompts.planner.looks
        self.orders, self.pads, self.streams = scheduler.orders, scheduler.runs_to_completion, scheduler.stream
        self._decode, self.is_uneven = replica.decode, replica.decode.is_uneven
        self.swaps: SwapLine | None = None
        """Where preempted decoding requests go; None: they recompute."""
        if replica.swaps and replica.tier is not None:
            self.swaps = SwapLine(replica, replica.tier, prompts, prompts.contents)
        self.needs_requests = self.looks or self.is_uneven or replica.memory.caches
        """Its requests are seen as objects."""
        self.lingering: list[int] = []
        """Finished requests of a padded batch, which stay, at full cost, until the whole batch is done."""
        self._requeues_last, self._caches_answers = scheduler.requeues_last, scheduler.caches_answers
        self._has_windows = len(replica.decode.windows) > 0
        self.drains = False
        """It notes when it may have nothing left to do."""
        self._n_outstanding: i64 = 0
        self._loads = side.loads if side.loads.counts else None
        """Where its requests are counted, if its router is not asked."""

    # -- requests come -------------------------------------------------------------------------------------------------

    def _count(self, n: i64) -> None:
        """Count requests that come, or go."""
        self._n_outstanding += n
        if self._loads is not None:
            self._loads.count(self.id, self._n_outstanding)
        if n < 0:
            self._load.count_out()
        else:
            self._load.n_outstanding = self._n_outstanding
            self._load.n_arrived += n

    def uncomputed_tokens(self) -> int:
        """Return the prefill tokens left to compute after the committed steps; O(queue)."""
        live, n_left = self._live, 0
        for line in (self.prompts.prefilling, self._waiting, self.prompts.coming):
            for place in line.places():
                if live.phase[place] < DECODES:  # other replicas compute what has another phase
                    n_left += live.left_tokens(place)
        return n_left

    def waiting_tokens(self) -> int:
        """Return the prompt tokens of the requests without a slot or blocks, computed elsewhere or not; O(queue)."""
        live, n_tokens = self._live, 0
        for line in self._queues:
            for place in line.places():
                n_tokens += live.prompt_tokens[place]
        return n_tokens

    def arrive(self, place: i64, request: Request | None) -> None:
        """Accept a request, as routers saw it, which is queued at once or when another replica has blocks for it."""
        self.contents.come(place, request)
        self._count(1)
        self._load.prompt_tokens += self._live.prompt_tokens[place]
        self._live.replica[place] = self.id

    def queue(self, place: i64, now_ps: i64) -> bool:
        """Queue a request; return whether the replica is idle, and plans at this instant."""
        if self.side.waits(place):
            self._note_arrival(now_ps)
            return False
        leads = self.orders and (len(self._replica.memory.reading) > 0 or self._waiting.may_lead(place))
        step_run, n_ahead, coming = self.in_flight.step_run, self._n_ahead, self.prompts.coming
        if step_run is None:
            if self.running.n and (n_ahead or not coming.looks):
                coming.come(place, n_ahead)
            else:
                self._waiting.append(place)
            return True
        if n_ahead or coming.skips:
            coming.come(place, step_run.steps_begun(now_ps) + n_ahead)
        else:
            self._waiting.append(place)
            self._note_arrival(now_ps)
        self.cut(now_ps, leads)
        return False

    def cut(self, now_ps: i64, leads: bool) -> None:
        """End the step run where a request that has come can be seen, unless it comes behind a blocked head."""
        step_run = self.in_flight.step_run
        if step_run is not None and (leads or not self.prompts.blocked):
            n_steps = self.prompts.coming.seen_after(step_run.steps_begun(now_ps) + self._n_ahead)
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)

    def wake(self, now_ps: i64) -> bool:
        """Plan when the step in flight is over; return whether the replica is idle, and plans at this instant."""
        step_run = self.in_flight.step_run
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
        self._load.prompt_tokens += self._live.prompt_tokens[place]
        can_start = self.side.come(place)
        self._note_arrival(now_ps)
        return can_start and self.wake(now_ps)

    def _note_arrival(self, now_ps: i64) -> None:
        """Note an arrival during a step run, if its steps are rows of their own."""
        step_run = self.in_flight.step_run
        if self.is_uneven and step_run is not None:
            self._decode.arrived(step_run, now_ps)

    # -- requests leave ------------------------------------------------------------------------------------------------

    def give_back(self, place: i64, now_ps: i64) -> bool:
        """Free the blocks of a request that has been fetched; return whether the replica is idle and requests may have
        waited for them."""
        self.running.n_away -= 1
        if self._live.phase[place] != MIGRATES:  # else they are lost already
            self.in_flight.see(now_ps)
            self.in_flight.free(self.contents.release(place, self._live.prefilled_tokens[place]))
        is_idle = self.wake(now_ps)
        return is_idle and (self._waiting.n > 0 or self.prompts.prefilling.n > 0 or self.drains)

    def let_go(self, place: i64, now_ps: i64) -> None:
        """Free the slot and blocks taken ahead for a request that has ended."""
        self.free_ahead(place, now_ps)
        self._live.remove(place)

    def free_ahead(self, place: i64, now_ps: i64) -> None:
        """Free the slot and blocks taken ahead for a request that ends before it decodes here."""
        self.in_flight.see(now_ps)
        self.in_flight.free(self.contents.let_go(place))
        self.running.n_away -= 1
        self._count(-1)

    def withdraw(self, place: i64, now_ps: i64) -> bool:
        """Drop a request without blocks here; return whether the replica is idle, and plans at this instant."""
        self.side.withdraw(place)
        self._count(-1)
        return self.wake(now_ps)

    def count_out(self) -> None:
        """Count a request out that has no blocks here."""
        self._count(-1)

    def stored_tokens(self, place: i64) -> int:
        """Return the tokens stored for a request, padding included."""
        live = self._live
        if place in self.lingering:
            return live.padding_tokens[place] + live.prompt_tokens[place] + live.output_tokens[place] - 1
        if live.phase[place] == DECODES:
            return self.running.stored_tokens(place)
        return live.prefilled_tokens[place]

    def close(self, place: i64) -> None:
        """Record a request that has left before its end."""
        self.records.end(place, UNFINISHED, NO_INSTANT)
        if self._follows:
            self.prompts.planner.gone(place, is_ended=True)

    def forget(self, place: i64) -> None:
        """Forget a request that has left before its end."""
        self.close(place)
        self._live.remove(place)

    def abandon(self, place: i64, now_ps: i64) -> bool:
        """Drop a request of a client that has given up, with no step in flight; return whether the replica plans. In a
        padded batch it stays to the end, like a finished one."""
        if self._live.phase[place] == DECODES and self.pads:
            self._linger(place, now_ps)
            return self.wake(now_ps)
        self.remove(place)
        self._count(-1)
        self.close(place)
        if not self.side.ended(place, now_ps):
            self._live.remove(place)
        return self.wake(now_ps)

    def remove(self, place: i64) -> None:
        """Take a request from the queue, or its slot and blocks."""
        phase, kv_tokens, prompts = self._live.phase[place], self.stored_tokens(place), self.prompts
        if phase == SWAPPED:
            assert self.swaps is not None, "it is in host memory"
            self.contents.forget(place)
            self.swaps.abandon(place)
        elif phase <= WAITS:
            if place in prompts.coming.places():
                prompts.coming.drop(place)
            else:
                self.contents.forget(place)
                self._waiting.drop(place)
        else:
            if phase == DECODES:
                self._stop_decoding(place)
            else:
                self._stop_prompt(place)
            self.running.leave(place)
            self.contents.release(place, kv_tokens)

    def _stop_prompt(self, place: i64) -> None:
        self.prompts.prefilling.drop(place)
        if self._follows:
            self.prompts.planner.abandoned_by(place)

    def lose(self, place: i64, now_ps: i64) -> int:
        """Lose a request without tokens with its decode replica, even during a step; while that computes a part of its
        prompt, its blocks are in use. Return the tokens stored for it so far."""
        live, pool, n_stored = self._live, self.pool, self.stored_tokens(place)
        if self.in_flight.step_run is not None and self.prompts.computes(place):
            self._stop_prompt(place)
            self.running.leave(place)
            self.running.n_away += 1
            live.phase[place] = LOST
            self.close(place)
        else:
            self.in_flight.see(now_ps)
            n_used: i64 = pool.used_blocks
            self.remove(place)
            self.in_flight.free(n_used - pool.used_blocks)
            self.forget(place)
        self._count(-1)
        return n_stored

    def unanswered(self) -> list[tuple[int, int]]:
        """Return the requests that are there without a whole answer, each with the tokens stored for it."""
        answered = self.lingering if self.streams else []
        return [(place, self.stored_tokens(place)) for place in self._there() if place not in answered]

    def _there(self) -> list[int]:
        """Return all requests that are there."""
        swapped = [] if self.swaps is None else self.swaps.places
        waiting, coming = self._waiting.places(), self.prompts.coming.places()
        return [*waiting, *coming, *swapped, *self.running.places()]

    def decoding(self) -> list[int]:
        """Return the requests that decode, in the order of admission."""
        return [place for place in self.running.places() if self._live.phase[place] == DECODES]

    def _depart(self, place: i64, left_ps: int) -> None:
        """Let a decoding request go on elsewhere with its keys and values."""
        live = self._live
        live.prefilled_tokens[place] = self._stop_decoding(place)
        self.running.leave(place)
        live.phase[place], live.is_kept[place], live.preempted_ps[place] = MIGRATES, 0, left_ps
        if self._follows:
            self.prompts.planner.gone(place, is_ended=False)
        self.records.end(place, UNFINISHED, NO_INSTANT)

    def lose_all(self, left_ps: int, departing: Sequence[int] = ()) -> list[LostLife]:
        """Lose all blocks, at an instant, and all requests, with the chunks of the step in flight; return those without
        an answer. departing: they go on elsewhere with their keys and values."""
        self.in_flight.land()
        for place in departing:
            self._depart(place, left_ps)
        live, running, there, pool = self._live, self.running, self._there(), self.pool
        self._close_spans()
        unanswered = self.unanswered()
        for place in [] if self.swaps is None else list(self.swaps.places):
            self.remove(place)
        for place in running.places():
            if live.phase[place] == DECODES and place in self.lingering:
                running.stop_decoding(place)
            elif live.phase[place] == DECODES:
                running.drop(place)
            running.leave(place)
        there += [place for place in self.prompts.places_of_step() if live.phase[place] == LOST]
        self.prompts.clear()
        self.lingering = []
        pool.release(pool.used_blocks, pool.reserved_blocks)
        lost = [live.lost(place, n_stored, left_ps) for place, n_stored in unanswered]
        for place, _ in unanswered:
            self.close(place)
        for place in there:
            live.remove(place)
        self.running.returned.clear()
        self._n_outstanding = self._load.n_outstanding = 0
        running.n_away = len(departing)
        return lost

    def _close_spans(self) -> None:
        """Record the spans of requests that decode still."""
        ended = [*self.lingering, *self.running.returned]
        for place in self.running.places():
            if self._live.phase[place] == DECODES and place not in ended:
                self.records.span(place, self.cohort.step)

    def _end_lost(self, place: i64, n_tokens: i64) -> None:
        """End a chunk of a request that was lost during the step."""
        live = self._live
        self.records.recorder.lose_chunk(live.row[place], int(live.life[place]), n_tokens)
        self.running.n_away -= 1
        self.contents.release(place, live.prefilled_tokens[place])
        live.remove(place)

    def stop_reading(self, place: i64) -> i64:
        """Let a request no longer wait for its prefix; return when a copy for it alone ends, NONE if there is none."""
        reading = self.prompts.reading
        return NONE if reading is None else reading.stop_reading(place)

    def _linger(self, place: i64, now_ps: i64) -> None:
        """Let a request of a padded batch stay, to no end."""
        if place in self.lingering:
            return
        self.records.span(place, self.cohort.step)
        self.running.cancel(place)
        self.lingering.append(place)
        if self.streams:  # whole answers count until they leave
            self.records.end(place, UNFINISHED, NO_INSTANT)
            self._count(-1)
        self.end_batch(now_ps)

    def make_room(self, now_ps: i64) -> bool:
        """Preempt until the decoding requests have blocks for their next step; return True if any was preempted."""
        just_preempted = False
        while not self._reserves and self.cohort.blocks_to_grow(1) > self.pool.free_blocks:
            self.preempt(self.victim(), now_ps)
            just_preempted = True
        if just_preempted:
            if self.prompts.n_swapped:
                self.prompts.hides = True  # but a request for which the policy itself preempts starts at once
            self.prompts.planner.preempted()
        return just_preempted

    def victim(self) -> i64:
        """Return the request to preempt: the one that the policy names, or the one admitted last."""
        prompts = self.prompts
        if not self._follows:
            return self.running.newest
        victim = prompts.planner.victim()
        if not self.looks and self.cohort.n < 2 and prompts.prefilling.n:
            return prompts.prefilling.tail
        return cast(int, victim)

    def preempt_planned(self, now_ps: i64) -> None:
        """Preempt the requests that the plan names, or the one admitted last, which may be the prompt itself."""
        victims = self.prompts.planner.victims()
        for place in victims or [int(self.running.newest)]:
            self.preempt(place, now_ps)

    def preempt(self, place: i64, now_ps: i64) -> None:
        """Take the slot and blocks of a request, which waits again before all others."""
        live, row = self._live, self._live.row[place]
        kv_tokens = findable_tokens = live.prefilled_tokens[place]
        is_decoding = False
        if live.phase[place] == DECODES:
            is_decoding = True
            kv_tokens = self._stop_decoding(place)
            if self._caches_answers:
                findable_tokens = kv_tokens
        live.phase[place] = WAITS
        self.prompts.prefilling.keep(PREFILLS)
        self.running.leave(place)
        self.contents.preempt(place, kv_tokens, findable_tokens)
        live.n_preemptions[place] += 1
        live.preempted_ps[place] = now_ps
        if is_decoding and self.swaps is not None and self.swaps.has_room(kv_tokens):
            self.swaps.swap_out(place, kv_tokens)
            if self._follows:
                self.prompts.planner.requeued(place, now_ps)
            return
        self.records.recorder.preempt(row, kv_tokens)
        live.prefilled_tokens[place] = 0
        self.contents.requeued(place)
        if self._follows:
            self.prompts.planner.requeued(place, now_ps)
        if self._requeues_last:
            self._waiting.append(place)
        else:
            self._waiting.append_left(place)

    def _stop_decoding(self, place: i64) -> i64:
        """Take a request from those that decode before its end; return the tokens it holds."""
        if not self.running.has_returned(place):
            self.records.span(place, self.cohort.step)
        kv_tokens = self.running.drop(place)
        if self._follows:
            self.prompts.planner.left(place)
        return kv_tokens

    def end(self, place: i64, kv_tokens: i64, now_ps: i64) -> None:
        """End a request that has its last token."""
        self.records.span(place, self.cohort.step)
        self._answer(place, now_ps)
        self._leave(place, kv_tokens)
        if not self.side.ended(place, now_ps):
            self._live.remove(place)

    def _answer(self, place: i64, now_ps: i64) -> None:
        """Record that a client has its whole answer."""
        self.records.end(place, FINISHED, now_ps)
        self._count(-1)
        self._rows.answered(self._live.row[place], now_ps)

    def _leave(self, place: i64, kv_tokens: i64) -> None:
        """Free the slot and blocks of a request."""
        self.running.leave(place)
        self.contents.release(place, kv_tokens)
        if self._follows:
            self.prompts.planner.left(place)
            self.prompts.planner.gone(place, is_ended=True)

    def finish(self, place: i64, now_ps: i64) -> None:
        """End a decoding request that has its last token; in a padded batch it stays."""
        if not self.pads:
            self.end(place, self.running.stop_decoding(place), now_ps)
            return
        self.records.span(place, self.cohort.step)
        self.lingering.append(place)
        if self.streams:
            self._answer(place, now_ps)

    def end_batch(self, now_ps: i64) -> None:
        """End a padded batch if all its requests are done: they leave together, and whole answers with them."""
        if not self.lingering or len(self.lingering) < self.cohort.n:
            return
        done, self.lingering = self.lingering, []
        for place in done:
            kv_tokens = self.running.stop_decoding(place)
            if not self.streams:
                self._live.first_token_ps[place] = now_ps
                self._answer(place, now_ps)
            self._leave(place, kv_tokens)
            self._live.remove(place)

    def end_chunk(self, place: i64, n_tokens: i64, now_ps: i64) -> None:
        """Let requests find what a chunk has computed; it may have been the last of its prompt."""
        done = self._live.prefilled_tokens[place] + self._live.padding_tokens[place]
        self.contents.computed(place, done - n_tokens)
        if self._has_windows:
            self.contents.drop(place, done - n_tokens, done)
        if self._live.phase[place] == DECODES:
            self._end_prefill(place, now_ps)
        elif self._live.phase[place] == LOST:
            self._end_lost(place, n_tokens)

    def _end_prefill(self, place: i64, now_ps: i64) -> None:
        """Complete a prefill, which emits a token; the request decodes, or is done."""
        live = self._live
        live.joined_ps[place] = now_ps
        live.join_step[place] = self.cohort.step
        if live.first_token_ps[place] < 0:
            self.records.first_token(place, now_ps)
        live.emitted_tokens[place] += 1
        n_left = live.output_tokens[place] - live.emitted_tokens[place]
        if n_left and self.side.takes(place, now_ps):
            self._count(-1)
            if self._follows:
                self.prompts.planner.left(place)
                self.prompts.planner.gone(place, is_ended=False)
        elif n_left:
            self.running.join(place, n_left)
            self.prompts.joined(place)
        elif self.pads:
            self.running.join(place, 0)
            self.finish(place, now_ps)
        else:
            self.end(place, live.prefilled_tokens[place], now_ps)

    # -- the end of the run --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give the replica the requests that are there."""
        batch = self._replica.batch
        self.prompts.coming.show_all(self._waiting)
        self._replica.blocked_by = WORDS[self.prompts.blocked]
        self._close_spans()
        batch.running.clear()
        for place in self.running.places():
            if not self.streams or place not in self.lingering:
                batch.running[self._still_there(place)] = None
        waiting = [self._still_there(place) for place in self._waiting.places()]
        if not self.looks:
            batch.waiting.extend(waiting)
        if self.swaps is not None:
            batch.elsewhere += [self._still_there(place) for place in self.swaps.places]
        batch.n_away = self.running.n_away
        batch.elsewhere += [self._still_there(place) for place in self.side.places()]

    def _still_there(self, place: i64) -> Request:
        """Record a request that is there as the run ends; return it, with the tokens stored for it."""
        self.records.end(place, UNFINISHED, NO_INSTANT)
        live = self._live
        request = live.requests.get(place)
        if request is None:
            request = Request(live.row[place], 0, live.prompt_tokens[place], live.most_tokens[place])
        request.prefilled_tokens = self.stored_tokens(place)
        return request
