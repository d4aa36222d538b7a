"""Prompts: waiting and partly computed ones of a replica, in columns, and the chunks of a step."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from simserve.columns.contents import BlockContents
from simserve.columns.live import DECODES, PREFILLS, WAITS, Line
from simserve.columns.records import Records
from simserve.columns.running import Running
from simserve.cost.step import StepCost
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.integers import NONE, append, filled, vec
from simserve.state.step_plan import WalkLimits

SEATS: Final = BLOCKED_BY["seats"]
BLOCKS: Final = BLOCKED_BY["blocks"]
BUDGET: Final = BLOCKED_BY["budget"]


class PromptColumns:
    """Prompts that wait, and those with a slot; a step computes chunks of them within the limits of a walk."""

    def __init__(
        self, replica: Replica, limits: WalkLimits, running: Running, records: Records, contents: BlockContents
    ) -> None:
        live = records.live
        self.live, self.running, self._recorder, self.contents = live, running, records.recorder, contents
        self._pool, self._cohort, self._cost = replica.pool, replica.cohort, replica.cost
        self._step_cost = replica.cost if isinstance(replica.cost, StepCost) else None
        """The cost model, if it is compiled. fast: called without boxing its arguments."""
        self._waits_for_host = replica.decode.waits_for_host
        self._block_size: i64 = replica.pool.block_size
        self._budget: i64 = limits.budget_tokens
        self.slots: i64 = limits.slots
        self._most_chunk: i64 = limits.most_chunk_tokens
        self._reserves_prompt = limits.reserves_prompt
        self.coming, self.waiting, self.prefilling = Line(live), Line(live), Line(live)
        self._n_shown: i64 = 0
        """Steps that have begun."""
        self._step_run = StepRun()
        self.places: vec[i64] = filled(16, 0)
        self.tokens: vec[i64] = filled(16, 0)
        """Requests and tokens of these."""
        self.n_chunks: i64 = 0
        """Chunks of the step that is planned or in flight, and ..."""
        self.n_complete: i64 = 0
        """... how many of these are the last of their prompts."""
        self.blocked: i64 = 0
        """Why the last plan did not admit the head of the queue, as recorded."""

    def come(self, place: i64, n_steps: i64) -> None:
        """Keep an arrival until n_steps more have begun, as steps are planned ahead."""
        self.live.due_step[place] = self._n_shown + n_steps
        self.coming.append(place)

    def show(self, n_steps: i64) -> None:
        """Let n_steps begin: queue the arrivals that have waited for as many."""
        self._n_shown += n_steps
        coming, due_step = self.coming, self.live.due_step
        while coming.n and due_step[coming.head] <= self._n_shown:
            self.waiting.append(coming.pop_left())

    def walk(self, just_preempted: bool) -> i64:
        """Choose chunks along the queue until tokens, slots or blocks run out; return the place that is left out."""
        live, contents, block_size, most = self.live, self.contents, self._block_size, self._most_chunk
        contents.forget_hits()
        budget: i64 = self._budget - self._cohort.n
        slots: i64 = self.slots - self.running.n - self.running.n_promised
        free: i64 = self._pool.free_blocks - self._cohort.blocks_of_next()
        self.n_chunks = self.blocked = 0
        n_started, place = self.prefilling.n, self.prefilling.head
        for i in range(n_started + self.waiting.n):
            if i == n_started:
                place = self.waiting.head
            is_new = i >= n_started
            if budget <= 0:
                self.blocked = BUDGET
                return place
            n_found: i64 = 0
            n_idle: i64 = 0
            if is_new:
                if slots <= 0:
                    self.blocked = SEATS
                    return place
                slots -= 1
                n_found = contents.hit(place)
                n_idle = contents.n_idle
            done = live.prefilled_tokens[place] + n_found
            n_left = live.left_tokens(place) - n_found
            n_tokens = n_left if n_left < most else most  # fast: without a call of min
            if n_tokens > budget:
                n_tokens = budget
            n_needed = n_left if is_new and self._reserves_prompt else n_tokens
            n_blocks = n_idle - -(done + n_needed) // block_size - -(-done // block_size)
            if n_blocks > free or (is_new and just_preempted):
                self.blocked = BLOCKS
                return place
            free -= n_blocks
            budget -= n_tokens
            self._add_chunk(place, n_tokens)
            place = live.after[place]
        return NONE

    def _add_chunk(self, place: i64, n_tokens: i64) -> None:
        at = self.n_chunks
        self.n_chunks = at + 1
        if at == len(self.places):
            self.places = append(self.places, place)
            self.tokens = append(self.tokens, n_tokens)
            return
        self.places[at] = place
        self.tokens[at] = n_tokens

    def start(self, now_ps: i64, n_before_queue: i64) -> StepRun:
        """Return one step: the chunks get their slots and blocks, and each decoding request a token.

        n_before_queue: requests that wait beside the queue.
        """
        live, block_size, cohort = self.live, self._block_size, self._cohort
        n_tokens: i64 = 0
        n_pairs: i64 = 0
        n_context: i64 = 0
        n_complete: i64 = 0
        n_blocks: i64 = 0
        for i in range(self.n_chunks):
            place, n_chunk = self.places[i], self.tokens[i]
            if live.phase[place] == WAITS:
                self._admit(place, now_ps)
            done = live.prefilled_tokens[place]
            end = done + n_chunk
            n_blocks += -(-end // block_size) - -(-done // block_size)
            n_tokens += n_chunk
            n_pairs += n_chunk * (done + end + 1) // 2
            n_context += end
            if n_chunk == live.left_tokens(place):
                n_complete += 1
        self.n_complete = n_complete
        self._pool.take(n_blocks, False)
        n: i64 = cohort.n
        kv_tokens = cohort.kv_tokens if n else 0
        if self._step_cost is None:
            first_ps = self._cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        else:
            first_ps = self._step_cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        if self._waits_for_host:
            first_ps = max(first_ps, self._cost.host_ps(n + n_complete))
        step_run = self._step_run
        step_run.begin(now_ps, first_ps, 0, 1)
        step_run.n_prefill_tokens, step_run.n_prefill_pairs = n_tokens, n_pairs
        step_run.n_decoding, step_run.queue_len = n, self.waiting.n + n_before_queue
        return step_run

    def _admit(self, place: i64, now_ps: i64) -> None:
        """Give the head of the queue a slot, and what it finds of its own."""
        live = self.live
        self.waiting.pop_left()
        live.phase[place] = PREFILLS
        self.prefilling.append(place)
        self.running.admit(place)
        if live.n_preemptions[place]:
            self._recorder.resume(live.row[place], live.preempted_ps[place], now_ps)
        else:
            live.scheduled_ps[place] = now_ps
        self.contents.hold(place)

    def commit(self, step_ps: i64) -> None:
        """Apply the chunks of a step that is over; the complete prompts decode from now on."""
        live = self.live
        for i in range(self.n_chunks):
            place = self.places[i]
            live.prefilled_tokens[place] += self.tokens[i]
            if not live.left_tokens(place):
                live.phase[place] = DECODES
            elif not live.n_preemptions[place]:
                live.chunks_ps[place] += step_ps
        self.prefilling.keep(PREFILLS)

    def complete(self, i: i64) -> i64:
        """Let requests find what chunk i computed; return its place if it was the last of its prompt, else NONE."""
        place = self.places[i]
        self.contents.computed(place, self.live.prefilled_tokens[place] - self.tokens[i])
        if self.live.phase[place] == DECODES:
            return place
        return NONE
