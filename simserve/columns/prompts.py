"""Prompts: waiting and partly computed ones of a replica, in columns, and the chunks of a step."""

from __future__ import annotations

from mypy_extensions import i64

from simserve.columns.contents import BlockContents
from simserve.columns.lines import Coming, Line
from simserve.columns.live import DECODES, LOST, PASSES, PREFILLS, WAITS
from simserve.columns.records import Records
from simserve.columns.running import Running
from simserve.cost.step import StepCost
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.integers import NONE, append, filled, vec
from simserve.state.planner import Planner, limit
from simserve.state.walk import Walk


class Reading:
    """Says which requests wait for their prefixes."""

    def is_reading(self, place: i64) -> bool:
        """Return whether the prefix of a request is on its way."""
        raise NotImplementedError

    def stop_reading(self, place: i64) -> i64:
        """Let a request no longer wait for its prefix; return when a copy for it alone ends, NONE if there is none."""
        raise NotImplementedError


class PromptColumns(Walk):
    """Prompts that wait, and those with a slot; a step computes chunks of them, as the planner of a policy decides."""

    def __init__(
        self, replica: Replica, planner: Planner, queue: Line, running: Running, records: Records, blocks: BlockContents
    ) -> None:
        """Let requests wait in a queue."""
        super().__init__()
        live = records.live
        self.live, self.running, self._recorder, self.contents = live, running, records.recorder, blocks
        self._pool, self._cohort, self._cost = replica.pool, replica.cohort, replica.cost
        self._counts, self._decode = replica.pool.counts, replica.decode
        self._has_windows = len(replica.decode.windows) > 0
        self._step_cost = replica.cost if isinstance(replica.cost, StepCost) else None
        """The cost model, if it is compiled. fast: called without boxing its arguments."""
        self.total_blocks, self.block_size = replica.pool.total_blocks, replica.pool.block_size
        self.max_model_len, self.decode_tokens = replica.view.max_model_len, replica.cohort.n_tokens
        self.planner, self._reserves, self._is_followed = planner, planner.reserves, planner.follows
        self.slots: i64 = limit(replica.scheduler.max_running)
        """Most running requests, as far as the policy limits them itself."""
        self.coming = Coming(live, replica.scheduler.recv_interval)
        self.waiting, self.prefilling = queue, Line(live)
        self.n_swapped: i64 = 0
        """Requests in host memory."""
        self.hides = False
        """Waiting requests are not seen, as swapped ones come first."""
        self.reading: Reading | None = None
        """What says which prefixes are on their way."""
        self.now_ps: i64 = 0
        """Instant of the last plan."""
        self._step_run = StepRun()
        self.places: vec[i64] = filled(16, 0)
        self.tokens: vec[i64] = filled(16, 0)
        """Requests and tokens of these, and ..."""
        self._reserved: vec[i64] = filled(16, 0)
        """... the tokens for which each reserves blocks, if the policy does."""
        self.n_chunks: i64 = 0
        """Chunks of the step that is planned or in flight."""
        self.n_complete: i64 = 0
        """How many of these are the last of their prompts."""
        self.blocked: i64 = 0
        """Why the last plan did not admit the head of the queue, as recorded."""
        self.has_planned = False
        """The planner was asked about the step that begins."""
        self._place: i64 = NONE
        """The request that the walk is at, and ..."""
        self._next: i64 = NONE
        """... the one behind it in its line."""
        self._is_started = False
        """The walk is at the partly computed prompts still."""
        self._n_found: i64 = 0
        """Tokens that it finds if it waits, NONE: not looked up; and ..."""
        self._n_idle: i64 = 0
        """... the free blocks that these take."""

    def plan(self, just_preempted: bool, now_ps: i64) -> None:
        """Let the planner choose chunks."""
        running, cohort, planner = self.running, self._cohort, self.planner
        self.now_ps = now_ps
        self.contents.forget_hits()
        self.n_decoding = cohort.n
        self.n_running, self.n_members = running.n + running.n_promised, running.n
        self.n_prefilling = self.prefilling.n
        self.free_blocks = self._pool.free_blocks
        if not self._reserves:
            self.free_blocks -= cohort.blocks_of_next()
        self.just_preempted = just_preempted
        self._is_started, self._next, self.n_chunks = True, self.prefilling.head, 0
        if not self.n_prefilling:
            self.skip_started()
        planner.plan(self)
        self.has_planned = True
        self.blocked = planner.blocked

    def skip_started(self) -> None:
        """Go to the last of the partly computed prompts, so that the next request is the first that waits."""
        self._is_started = False
        self._next = self.waiting.head if self.waiting.n and not self.hides else NONE

    def next(self) -> bool:
        """Go to the next request; return whether there is one."""
        if self._next < 0 and self._is_started:
            self.skip_started()
        place = self._next
        if self.reading is not None and not self._is_started:
            while place >= 0 and self.reading.is_reading(place):
                place = self.live.after[place]
        self._place = place
        if place < 0:
            return False
        self._next = self.live.after[place]
        self.is_new = not self._is_started
        self._n_found = NONE if self.is_new else 0
        return True

    def go_to(self, place: i64) -> None:
        """Go to a request, whatever is before it."""
        self._place = place

    def _find(self) -> None:
        """Look up what a waiting request finds. fast: only where the policy asks."""
        self._n_found = self.contents.hit(self._place)
        self._n_idle = self.contents.n_idle

    def left_tokens(self) -> i64:
        """Return the tokens to compute before it can produce its next one, without its prefix cache hit."""
        if self._n_found < 0:
            self._find()
        return self.live.left_tokens(self._place) - self._n_found

    def new_tokens(self) -> i64:
        """Return the most tokens that it can still produce."""
        return self.live.most_tokens[self._place] - self.live.emitted_tokens[self._place]

    def most_tokens(self) -> i64:
        """Return the most tokens that it can ever store: its prompt and the longest answer."""
        return self.live.prompt_tokens[self._place] + self.live.most_tokens[self._place]

    def blocks_to_admit(self, n_tokens: i64) -> i64:
        """Return the free blocks that the next n_tokens of a new request take."""
        if self._n_found < 0:
            self._find()
        return self._n_idle + self._counts.most(self._n_found + n_tokens, self._n_found)

    def blocks_for_chunk(self, n_tokens: i64) -> i64:
        """Return the blocks that the next n_tokens begin."""
        return self._counts.begun(self.live.prefilled_tokens[self._place], n_tokens)

    def tokens_of_hit(self) -> i64:
        """Return the tokens that would fill the free blocks which a new request takes besides those for its chunks."""
        if self._n_found < 0:
            self._find()
        return self._counts.tokens_to_fill(self._n_idle + self._counts.n_states)

    def missing_block(self) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        return self.contents.missing_block(self._place)

    def blocks_for(self, n_tokens: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever holds."""
        return self._counts.most(n_tokens, 0)

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the tokens that n_blocks hold."""
        return self._counts.tokens_in(n_blocks)

    def take(self, n_tokens: i64, reserve_tokens: i64) -> None:
        """Let the step compute so many tokens of the request, which reserves blocks for others if the policy does."""
        at = self.n_chunks
        self.n_chunks = at + 1
        if at == len(self.places):
            self.places, self.tokens = append(self.places, self._place), append(self.tokens, n_tokens)
            self._reserved = append(self._reserved, reserve_tokens)
            return
        self.places[at] = self._place
        self.tokens[at] = n_tokens
        if self._reserves:
            self._reserved[at] = reserve_tokens

    def start(self, now_ps: i64, n_before_queue: i64) -> StepRun:
        """Return one step: the chunks get slots and blocks, and decoding requests a token if the policy lets them."""
        live, counts, cohort, chunks = self.live, self._counts, self._cohort, list[tuple[int, int]]()
        free_blocks: i64 = self._pool.free_blocks
        n_tokens: i64 = 0
        n_pairs: i64 = 0
        n_context: i64 = 0
        n_complete: i64 = 0
        n_blocks: i64 = 0
        for i in range(self.n_chunks):
            place, n_chunk = self.places[i], self.tokens[i]
            if live.phase[place] == WAITS:
                if self.planner.looks:
                    self.waiting.drop(place)
                    live.phase[place] = PASSES
                elif self.waiting.head == place:
                    self.waiting.pop_left()
                else:
                    self._pass(i)
            if live.phase[place] <= WAITS:
                self._admit(place, self._reserved[i], now_ps)
                n_blocks += counts.n_states
            done = live.prefilled_tokens[place]
            end = done + n_chunk
            n_blocks += counts.filled(end) - counts.filled(done)
            if self._has_windows:
                chunks.append((done, end))
            n_tokens += n_chunk
            n_pairs += n_chunk * (done + end + 1) // 2
            n_context += end
            if n_chunk >= live.left_tokens(place):
                n_complete += 1
        self.n_complete = n_complete
        self._pool.take(n_blocks, self._reserves)
        self.planner.check_blocks(free_blocks - self._pool.free_blocks)
        n: i64 = cohort.n if self.planner.decodes else 0
        kv_tokens = cohort.kv_tokens if n else 0
        if self._step_cost is None:
            first_ps = self._cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        else:
            first_ps = self._step_cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        if self._has_windows:
            first_ps += self._decode.mixed_windows_ps(chunks, n_tokens, n)
        if self._decode.waits_for_host:
            first_ps = max(first_ps, self._cost.host_ps(n + n_complete))
        step_run = self._step_run
        step_run.begin(now_ps, first_ps, 0, 1)
        step_run.n_prefill_tokens, step_run.n_prefill_pairs = n_tokens, n_pairs
        step_run.n_decoding, step_run.queue_len = n, self.waiting.n + n_before_queue
        return step_run

    def computes(self, place: i64) -> bool:
        """Return whether the step in flight computes a part of a prompt."""
        return place in self.places_of_step()

    def places_of_step(self) -> list[int]:
        """Return the prompts of which the step in flight computes a part."""
        return [int(self.places[i]) for i in range(self.n_chunks)]

    def clear(self) -> None:
        """Lose all prompts, and the chunks of the step in flight."""
        for line in (self.waiting, self.coming, self.prefilling):
            line.clear()
        self.n_chunks = 0

    def chunks(self) -> list[tuple[int, int]]:
        """Return the tokens [first, end) of each chunk of the step in flight."""
        chunks = list[tuple[int, int]]()
        for i in range(self.n_chunks):
            done = self.live.prefilled_tokens[self.places[i]]
            chunks.append((done, done + self.tokens[i]))
        return chunks

    def _pass(self, first: i64) -> None:
        """Let the requests of chunks from the first on leave the queue, before others that wait."""
        phase = self.live.phase
        for i in range(first, self.n_chunks):
            if phase[self.places[i]] == WAITS:
                phase[self.places[i]] = PASSES
        self.waiting.keep(WAITS)

    def _admit(self, place: i64, reserve_tokens: i64, now_ps: i64) -> None:
        """Give a request that leaves the queue a slot, what its policy reserves, and what it finds."""
        live = self.live
        if self._is_followed:
            self.planner.admitted(place)
        live.phase[place] = PREFILLS
        self.prefilling.append(place)
        self.running.admit(place)
        if live.scheduled_ps[place] >= 0:
            self._recorder.resume(live.row[place], live.preempted_ps[place], now_ps)
        else:
            live.scheduled_ps[place] = now_ps
        if self._reserves:
            live.reserved_blocks[place] = self.blocks_for(reserve_tokens)
        self.contents.hold(place)

    def joined(self, place: i64) -> None:
        """Tell a policy that follows requests that one decodes from the next step on."""
        if self._is_followed:
            live = self.live
            member, prompt_tokens, n_emitted = place, live.prompt_tokens[place], live.emitted_tokens[place]
            self.planner.joined(member, prompt_tokens, live.most_tokens[place], n_emitted)

    def resumed(self, place: i64) -> None:
        """Tell a policy that follows requests that one decodes with keys and values from elsewhere."""
        if self._is_followed:
            live = self.live
            member, prompt_tokens, n_emitted = place, live.prompt_tokens[place], live.emitted_tokens[place]
            self.planner.resumed(member, prompt_tokens, live.most_tokens[place], n_emitted)

    def commit(self, step_ps: i64) -> None:
        """Apply the chunks of a step that is over; the complete prompts decode from now on."""
        live = self.live
        for i in range(self.n_chunks):
            place = self.places[i]
            live.prefilled_tokens[place] += self.tokens[i]
            n_left = live.left_tokens(place)
            if n_left < 0:  # of a padded batch
                live.padding_tokens[place] = -n_left
                live.prefilled_tokens[place] += n_left
            if live.phase[place] == LOST:
                continue
            if n_left <= 0:
                live.phase[place] = DECODES
            elif not live.n_preemptions[place] and live.first_token_ps[place] < 0:
                live.chunks_ps[place] += step_ps
            if self._is_followed:
                self.planner.computed(place)
        self.prefilling.keep(PREFILLS)
