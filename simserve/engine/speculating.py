"""Speculating: a replica with speculative decoding; a step emits as many tokens per request as were accepted."""

from bisect import bisect_left, bisect_right
from struct import pack_into
from typing import Any

from simserve.cost.speculative import SpeculativeCost
from simserve.engine.recorder import ACCEPTED_BYTES, pack_step
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.speculation import SpeculatingBatchState
from simserve.engine.step_run import StepRun
from simserve.schedulers.base import StepPlan
from simserve.state.request import Request
from simserve.state.speculative_cohort import SpeculativeCohort

FEW_STEPS = 4
"""Up to this many steps, Python computes the ends faster than numpy."""


class UnevenStepRun(StepRun):
    """Steps with a list of their ends."""

    __slots__ = ("ends_ps",)

    def __init__(self, start_ps: int, ends_ps: list[int], n_decoding: int, queue_len: int) -> None:
        self.ends_ps = ends_ps
        super().__init__(start_ps, ends_ps[0] - start_ps, 0, 1, n_decoding, queue_len)
        self.cut(len(ends_ps))

    def cut(self, n_steps: int) -> None:
        """Shorten the run to n_steps steps."""
        self.n_steps = n_steps
        self.end_ps = self.ends_ps[n_steps - 1] if n_steps else self.start_ps

    def keep_last(self, queue_len: int) -> None:
        """Keep only the last step; the others are over."""
        self.start_ps = self.ends_ps[self.n_steps - 2]
        self.first_ps = self.end_ps - self.start_ps
        self.n_steps = 1
        self.queue_len = queue_len

    def steps_begun(self, at_ps: int) -> int:
        """Return the steps begun before an instant: the least number done at at_ps or later."""
        return bisect_left(self.ends_ps, at_ps) + 1

    def steps_done(self, at_ps: int) -> int:
        """Return the steps done at an instant."""
        return bisect_right(self.ends_ps, at_ps)


class Speculating(Replica):
    """A replica that proposes tokens for each decoding request and verifies them in the same step.

    The tokens of each step are drawn when a request joins, so the ends of steps are known up to the next finish, and a
    step run is as long as without speculation. Each step is a row of its own, since no two grow alike.
    """

    cohort: SpeculativeCohort
    batch: SpeculatingBatchState
    _cost: SpeculativeCost

    def __init__(self, index: int, setup: ReplicaSetup, *args: Any, **kwargs: Any) -> None:
        super().__init__(index, setup, *args, **kwargs)
        assert setup.speculation is not None, "speculation is set up"
        self.most_blocks = -(-setup.speculation.n_slots // setup.block_size)
        self._draft_lines: dict[int, tuple[int, int]] = {}
        self._queued_from: list[int] = []
        """First step, from 0, that begins with each mid-run arrival in the queue; with async scheduling `_coming` has
        it."""

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request, and note when it joined the queue."""
        if self.step_run is not None and not self._n_ahead:
            self._queued_from.append(self.step_run.steps_begun(now_ps))
        super().enqueue(request, now_ps)

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Record a step run step by step, and apply it."""
        cohort, n = self.cohort, step_run.n_decoding
        if step_run.chunks:
            n_context = sum(request.prefilled_tokens + n_tokens for request, n_tokens in step_run.chunks)
            prompts = step_run.n_prefill_tokens, step_run.n_prefill_pairs, n_context
            self.drafting_ps += self._cost.draft_ps(*prompts, n, cohort.kv_tokens if n else 0)
        elif isinstance(step_run, UnevenStepRun):
            self._note_drafting(n, step_run.n_steps)
            if step_run.n_steps > 1:
                self._commit_but_last(step_run)
        n_accepted = cohort.tokens_of_next() - n if n else 0
        super().commit(step_run, now_ps)
        pack_into("<i", self._step_run_rows, len(self._step_run_rows) - ACCEPTED_BYTES, n_accepted)
        self._queued_from.clear()

    def _commit_but_last(self, step_run: UnevenStepRun) -> None:
        """Record and apply all steps but the last; no request finishes in them."""
        cohort, pool, n, rows = self.cohort, self.pool, step_run.n_decoding, self._step_run_rows
        n_first, start_ps, queue_len, code = (
            step_run.n_steps - 1,
            step_run.start_ps,
            step_run.queue_len,
            self._blocked_code,
        )
        queued_from = [n_steps for _, n_steps in self._coming] if self._n_ahead else self._queued_from
        keys, held = cohort.keys_ahead(n_first + 1).tolist(), cohort.held_ahead(n_first).tolist()
        used, reserved, n_new = pool.used_blocks, pool.reserved_blocks, 0
        for i, end_ps in enumerate(step_run.ends_ps[:n_first]):
            n_queued = queue_len + bisect_right(queued_from, i) if queued_from else queue_len
            kept = reserved - n_new if self._reserves else reserved
            n_accepted = keys[i + 1] - keys[i] - n
            # fmt: off
            rows += pack_step(
                start_ps, end_ps - start_ps, 0, 0, keys[i], 1, 0, n, used + n_new, kept, n_queued, code, n_accepted
            )
            # fmt: on
            n_new = held[i]
            start_ps = end_ps
        pool.take(cohort.advance(n_first), self._reserves)
        step_run.keep_last(queue_len + bisect_right(queued_from, n_first))
        if self._coming:
            self._show_arrivals(n_first)

    def _note_drafting(self, n: int, n_steps: int) -> None:
        line = self._draft_lines.get(n)
        if line is None:
            line = self._draft_lines[n] = self._cost.draft_line(n)
        intercept_ps, slope_ps = line
        self.drafting_ps += n_steps * intercept_ps
        if slope_ps:
            self.drafting_ps += slope_ps * int(self.cohort.keys_ahead(n_steps).sum())

    def _start_decode(self, plan: StepPlan, now_ps: int, n_most: int | None) -> None:
        """Begin as many steps as fit before a request finishes, blocks run out or the plan ends."""
        cohort, free_blocks = self.cohort, self.pool.free_blocks
        n = cohort.n
        n_steps = cohort.next_finish_step - cohort.step
        if n_most is not None and n_most < n_steps:
            n_steps = n_most
        if not self._reserves and cohort.blocks_to_grow(n_steps) > free_blocks:
            n_steps = cohort.steps_within(free_blocks)
        line = self._lines.get(n)
        if line is None:
            intercept_ps, slope_ps = self._cost.decode_line(n)
            line = self._lines[n] = (self._cost.tokens_ps(n) + self._cost.sampled_ps(n) + intercept_ps, slope_ps)
        queue_len = len(self.batch.waiting) + self.n_before_queue
        self.step_run = UnevenStepRun(now_ps, self._ends_ps(now_ps, line, n_steps), n, queue_len)
        if plan.wake_at_ps is not None:
            self.step_run.cut(min(n_steps, self.step_run.steps_begun(plan.wake_at_ps)))

    def _ends_ps(self, now_ps: int, line: tuple[int, int], n_steps: int) -> list[int]:
        """Return the ends of the next n_steps steps."""
        base_ps, slope_ps = line
        keys = self.cohort.keys_ahead(n_steps)
        if n_steps > FEW_STEPS:
            steps_ps = keys * slope_ps
            steps_ps += base_ps
            steps_ps[0] += now_ps
            ends_ps: list[int] = steps_ps.cumsum().tolist()
            return ends_ps
        ends_ps = []
        for kv_tokens in keys.tolist():
            now_ps += base_ps + slope_ps * kv_tokens
            ends_ps.append(now_ps)
        return ends_ps
