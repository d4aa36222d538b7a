"""Prefill: what a step does to prompts: a chunk of each that the plan names, beside a token for decoding requests."""

from collections.abc import Callable

from simserve.cost.model import CostModel
from simserve.engine.batch_state import BatchState
from simserve.engine.checks import broke, check_prefill
from simserve.engine.decode import Decode
from simserve.engine.recorder import Recorder
from simserve.engine.step_run import StepRun
from simserve.schedulers.base import Scheduler
from simserve.state.request import DONE, WAITING, Request
from simserve.state.step_plan import StepPlan


class Prefill:
    """Prompts of one replica that are computed, in chunks or whole."""

    def __init__(
        self,
        batch: BatchState,
        decode: Decode,
        cost: CostModel,
        scheduler: Scheduler,
        recorder: Recorder,
        *,
        waits_for_host: bool,
    ) -> None:
        self._batch, self._decode, self._cost, self._scheduler = batch, decode, cost, scheduler
        self._recorder = recorder
        self._reserves, self._pads = scheduler.reserves, scheduler.runs_to_completion
        self._has_ids, self._windows = batch.memory.has_ids, decode.windows
        self._waits_for_host = waits_for_host
        self._step_run = StepRun()

    def start(self, plan: StepPlan, now_ps: int) -> StepRun:
        """Return one step: prompt chunks, and a token for each decoding request if the plan says so.

        Raises PolicyError for chunks that break a rule.
        """
        batch, cohort, step_run = self._batch, self._batch.cohort, self._step_run
        try:  # fast: chunks are checked as they begin, and by all rules if that fails
            n_context, n_complete = self._begin(plan, step_run, now_ps)
        except (TypeError, ValueError, AttributeError, IndexError):
            check_prefill(self._scheduler, batch.view, plan)
            raise
        n, kv_tokens = (cohort.n, cohort.kv_tokens) if plan.decode else (0, 0)
        n_tokens, n_pairs = step_run.n_prefill_tokens, step_run.n_prefill_pairs
        first_ps = self._cost.mixed_ps(n_tokens, n_pairs, n_context, n, kv_tokens, n + n_complete)
        if self._windows:
            chunks = [(each.prefilled_tokens, each.prefilled_tokens + n_each) for each, n_each in plan.prefill]
            first_ps += self._decode.mixed_windows_ps(chunks, n_tokens, n)
        if self._waits_for_host:
            first_ps = max(first_ps, self._cost.host_ps(n + n_complete))
        step_run.begin(now_ps, first_ps, 0, 1)
        step_run.n_decoding, step_run.queue_len = n, len(batch.waiting) + batch.n_before_queue
        return step_run

    def _begin(self, plan: StepPlan, step_run: StepRun, now_ps: int) -> tuple[int, int]:
        """Give the chunks of a step their slots and blocks; return the keys that they attend, a key once a chunk, and
        the prompts that they complete."""
        batch, reserves, pads = self._batch, self._reserves, self._pads
        n_tokens = n_pairs = n_context = n_complete = n_blocks = n_begun = 0
        pool, layers, chunks = self._batch.pool, self._batch.pool.layers, plan.prefill
        block_size, free_blocks = pool.block_size, pool.free_blocks
        if len(chunks) > 1 and (len(dict(chunks)) < len(chunks) or reserves):
            check_prefill(self._scheduler, batch.view, plan)
        for request, n_chunk in chunks:
            left_tokens = request.prompt_tokens + request.emitted_tokens - request.prefilled_tokens
            if request.finder is not None:
                left_tokens = request.prefill_left_tokens
            if type(n_chunk) is not int or n_chunk < 1 or (n_chunk > left_tokens and not pads):
                check_prefill(self._scheduler, batch.view, plan)
            if request.phase is WAITING:
                batch.admit(request, plan.reserve_tokens[n_begun] if reserves else 0, now_ps)
                if layers is not None:
                    n_blocks += layers.n_states
            elif request not in batch.prefilling:
                check_prefill(self._scheduler, batch.view, plan)
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
            raise broke(self._scheduler, "plan", now_ps, rule, free_blocks - pool.free_blocks)
        step_run.chunks, step_run.n_prefill_tokens, step_run.n_prefill_pairs = chunks, n_tokens, n_pairs
        return n_context, n_complete

    def commit(self, step_run: StepRun, now_ps: int, on_done: Callable[[Request, int], None]) -> None:
        """Apply the chunks of a step that is over; on_done is called with each prompt that is complete."""
        batch, memory, keeps_all = self._batch, self._batch.memory, self._batch.pool.layers is None
        for request, n_tokens in step_run.chunks:
            request.prefilled_tokens = n_done = request.prefilled_tokens + n_tokens
            left_tokens = request.prompt_tokens + request.emitted_tokens - n_done
            if self._has_ids:
                memory.computed(request, n_done - n_tokens)
            if not keeps_all:
                memory.drop(request, (n_done - n_tokens, n_done), self._reserves)
            if request.phase is DONE:  # its decode replica was lost during the step
                self._recorder.lose_chunk(request.row, request, n_tokens)
                batch.n_away -= 1
                batch.release(request, request.prefilled_tokens)
            elif left_tokens <= 0:
                if left_tokens:
                    request.padding_tokens = -left_tokens
                    request.prefilled_tokens = n_done + left_tokens
                on_done(request, now_ps)
            elif not request.n_preemptions:
                self._recorder.begin_prompt(request.row, now_ps - step_run.start_ps)
