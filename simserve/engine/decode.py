"""Decode: what a step does to decoding requests: one token each, or as many as are accepted of those proposed."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final, cast

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.cost.model import CostModel
from simserve.cost.speculative import SpeculativeCost
from simserve.engine.recorder import STEP_RUN_ROW, pack_step
from simserve.engine.step_run import StepRun, check_duration
from simserve.state.acceptance import Acceptance
from simserve.state.block_counts import GroupCounts
from simserve.state.cohort import Cohort
from simserve.state.kv_pool import KvPool
from simserve.state.speculative_cohort import SpeculativeCohort
from simserve.units import EndsTooLate

FEW_STEPS: Final = 32
"""Up to this many steps, Python computes the ends faster than numpy."""


class Decode:
    """Decoding requests that get one token a step."""

    cohort: Cohort
    is_uneven = False
    """No two steps grow alike, so each is a row of its own."""

    def __init__(self, cohort: Cohort, pool: KvPool, cost: CostModel, *, reserves: bool, waits_for_host: bool) -> None:
        self.cohort = cohort
        self._n_slots = cohort.n_slots
        layers = pool.layers
        n_slots = cohort.n_slots
        self._counts = pool.counts
        self.most_blocks = self._counts.filled(n_slots)
        """Blocks that a decoding request begins in a step, at most."""
        self.windows = [] if layers is None else [group.layers for group in layers.windows]
        """Groups of layers with a window."""
        self.steps_singly = False
        """A step run is one step, since others step with the replica."""
        self.drafting_ps = 0
        """Time that steps spent on drafting."""
        self.windows_ps = array("q")
        """Time of decode attention in layers with a window, in the first step of each row; empty without windows."""
        self._pool = pool
        self._cost = cost
        self._reserves, self.waits_for_host = reserves, waits_for_host
        self._lines = cost.step_lines
        self._step_run = StepRun()

    def start(self, now_ps: int, n_most: int | None, queue_len: int) -> StepRun:
        """Return as many steps as fit before a request finishes or bends or blocks run out, and n_most at most."""
        cohort, free_blocks, lines = self.cohort, self._pool.free_blocks, self._lines
        n = cohort.n
        if n >= len(lines.base_ps) or lines.base_ps[n] < 0:
            self._look_up(n)
        n_steps = cohort.next_finish_step - cohort.step
        if self.steps_singly:
            n_steps = 1
        elif self.windows:
            n_steps = min(n_steps, cohort.steps_to_bend())
        if n_most is not None and n_most < n_steps:
            n_steps = n_most
        # fast: each step begins at most most_blocks for each member, so the exact count is seldom needed
        if (
            n * n_steps * self.most_blocks > free_blocks
            and not self._reserves
            and self._may_lack(n, n_steps, free_blocks)
        ):
            n_steps = min(n_steps, cohort.steps_within(free_blocks))
        step_run = self._run(now_ps, n, n_steps)
        step_run.n_decoding, step_run.queue_len = n, queue_len
        if self.waits_for_host:
            host_ps = lines.host_ps[n]
            if step_run.first_ps < host_ps or self.is_uneven:
                step_run.hold_to(host_ps)
        return step_run

    def _run(self, now_ps: int, n: int, n_steps: int) -> StepRun:
        """Return n_steps steps of n members."""
        step_run, lines = self._step_run, self._lines
        base_ps: int = lines.base_ps[n]  # Python's integers from here on: machine integers would wrap in silence
        slope_ps: int = lines.slope_ps[n]
        step_run.begin(now_ps, base_ps + slope_ps * self.cohort.kv_tokens, slope_ps * n, n_steps)
        if self.windows:
            slopes = self._cost.window_slopes(n)
            step_run.first_ps += sum(map(mul, slopes, self.cohort.window_keys))
            step_run.growth_ps += sum(map(mul, slopes, self.cohort.growth))
            check_duration(step_run.first_ps, step_run.growth_ps, step_run.n_steps)
            step_run.cut(step_run.n_steps)
        return step_run

    def _may_lack(self, n: int, n_steps: int, free_blocks: int) -> bool:
        """Return whether n members may begin more blocks in n_steps: each fills at most n_slots tokens a step."""
        return n * self._counts.filled(n_steps * self._n_slots + 1) > free_blocks

    def _look_up(self, n: int) -> None:
        """Note the times of a step of n members."""
        cost, (intercept_ps, slope_ps) = self._cost, self._cost.decode_line(n)
        base_ps = cost.tokens_ps(n) + cost.sampled_ps(n) + intercept_ps
        self._lines.note(n, base_ps, slope_ps, cost.host_ps(n))

    def mixed_windows_ps(self, chunks: Sequence[tuple[int, int]], n_tokens: int, n: int) -> int:
        """Return the time of attention in layers with a window, of a step with chunks [first, end) and n decoding
        requests."""
        counts = cast(GroupCounts, self._counts)
        reads = [counts.reads_of(i, chunks) for i, group in enumerate(self.windows) if group.attends]
        return self._cost.prefill_windows_ps(n_tokens, reads) + self.window_ps(n)

    def window_ps(self, n: int) -> int:
        """Return the time of n decoding requests' attention in layers with a window, in the next step."""
        return sum(map(mul, self._cost.window_slopes(n), self.cohort.window_keys)) if n else 0

    def arrived(self, step_run: StepRun, now_ps: int) -> None:
        """Note an arrival during a step run."""

    def n_accepted(self, step_run: StepRun, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the tokens of the step run beyond one each, before it is committed.

        chunks: the tokens [first, end) of each prompt that it computes.
        """
        return 0

    def commit_but_last(
        self, step_run: StepRun, used_blocks: int, blocked_code: int, queued_from: Sequence[int], rows: bytearray
    ) -> None:
        """Record and apply all steps of an uneven run but the last; no request finishes in them.

        used_blocks: those at its start. queued_from: first step, from 0, that begins with each arrival that is shown
        later. rows: step-run rows.
        """


@dataclass(frozen=True)
class Speculation:
    """Proposals and their acceptance."""

    acceptance: Acceptance
    n_slots: int
    """Tokens beyond those stored that a request has blocks for before a step: its next one and the proposed ones."""

    @classmethod
    def drawn(cls, rates: tuple[float, ...], seed: int, n_slots: int) -> "Speculation":
        """Return a speculation with acceptances of these rates, drawn from a seed."""
        return cls(Acceptance(rates, seed), n_slots)


class UnevenStepRun(StepRun):
    """Steps with a list of their ends."""

    def __init__(self, start_ps: int, ends_ps: list[int]) -> None:
        if ends_ps[-1] < start_ps:
            raise EndsTooLate
        self.ends_ps = ends_ps
        super().__init__()
        self.begin(start_ps, ends_ps[0] - start_ps, 0, 1)
        self.cut(len(ends_ps))

    def cut(self, n_steps: i64) -> None:
        """Shorten the run to n_steps steps."""
        self.n_steps = n_steps
        self.end_ps = self.ends_ps[n_steps - 1] if n_steps else self.start_ps

    def last(self, step_ps: i64) -> None:
        """Shorten the run to one step of this duration."""
        self.first_ps = step_ps
        self.ends_ps = [self.start_ps + step_ps]
        self.cut(1)

    def hold_to(self, least_ps: int) -> None:
        """Let no step be shorter than least_ps."""
        ends_ps = np.array(self.ends_ps)
        steps_ps = np.maximum(np.diff(ends_ps, prepend=int(self.start_ps)), least_ps)
        self.ends_ps = (self.start_ps + steps_ps.cumsum()).tolist()
        self.first_ps = self.ends_ps[0] - self.start_ps
        self.cut(self.n_steps)

    def keep_last(self, queue_len: int) -> None:
        """Keep only the last step; the others are over."""
        self.start_ps = self.ends_ps[self.n_steps - 2]
        self.first_ps = self.end_ps - self.start_ps
        self.n_steps = 1
        self.queue_len = queue_len

    def steps_begun(self, at_ps: i64) -> i64:
        """Return the steps begun before an instant: the least number done at at_ps or later."""
        return bisect_left(self.ends_ps, at_ps) + 1

    def steps_done(self, at_ps: i64) -> i64:
        """Return the steps done at an instant."""
        return bisect_right(self.ends_ps, at_ps)


class Speculative(Decode):
    """Decoding requests for which tokens are proposed, and verified in the same step.

    The tokens of each step are drawn when a request joins, so the ends of steps are known up to the next finish, and a
    step run is as long as without speculation. Each step is a row of its own, since no two grow alike.
    """

    is_uneven = True

    def __init__(
        self, cohort: SpeculativeCohort, pool: KvPool, cost: SpeculativeCost, *, reserves: bool, waits_for_host: bool
    ) -> None:
        super().__init__(cohort, pool, cost, reserves=reserves, waits_for_host=waits_for_host)
        self._courses, self._drafting, windows = cohort, cost, self.windows
        n_attending, n_drafts = sum(group.attends for group in windows), cost.drafting.n_windows
        self._draft_windows = list(enumerate(windows))[n_attending - n_drafts : n_attending]
        """Groups of the draft model with a window, and their places among all windows."""
        self._draft_lines: dict[int, tuple[int, int]] = {}
        self._queued_from: list[int] = []
        """First step, from 0, that begins with each mid-run arrival in the queue."""

    def _run(self, now_ps: int, n: int, n_steps: int) -> StepRun:
        """Return n_steps steps of n members."""
        base_ps: int = self._lines.base_ps[n]  # Python's integers from here on
        slope_ps: int = self._lines.slope_ps[n]
        if n_steps == 1 and not self.windows:
            self._step_run.begin(now_ps, base_ps + slope_ps * self._courses.keys_of_next(), 0, 1)
            return self._step_run
        if self.windows:
            steps_ps = base_ps + slope_ps * self._courses.keys_ahead(n_steps) + self._windows_ahead_ps(n, n_steps)
            return UnevenStepRun(now_ps, (now_ps + steps_ps.cumsum()).tolist())
        return UnevenStepRun(now_ps, self._ends_ps(now_ps, (base_ps, slope_ps), n_steps))

    def _windows_ahead_ps(self, n: int, n_steps: int) -> NDArray[np.int64]:
        """Return the time of n decoding requests' attention in layers with a window, in each of the next n_steps."""
        slopes = np.array(self._cost.window_slopes(n), np.int64)
        windows_ps: NDArray[np.int64] = slopes @ self._courses.window_keys_ahead(n_steps)[: len(slopes)]
        return windows_ps

    def _ends_ps(self, now_ps: int, line: tuple[int, int], n_steps: int) -> list[int]:
        """Return the ends of the next n_steps steps."""
        base_ps, slope_ps = line
        keys = self._courses.keys_ahead(n_steps)
        ends_ps: list[int] = []
        if n_steps > FEW_STEPS:
            steps_ps = keys * slope_ps
            steps_ps += base_ps
            steps_ps[0] += now_ps
            ends_ps = steps_ps.cumsum().tolist()
            return ends_ps
        few_keys: list[int] = keys.tolist()
        for kv_tokens in few_keys:
            now_ps += base_ps + slope_ps * kv_tokens
            ends_ps.append(now_ps)
        return ends_ps

    def arrived(self, step_run: StepRun, now_ps: int) -> None:
        """Note an arrival during a step run."""
        self._queued_from.append(step_run.steps_begun(now_ps))

    def n_accepted(self, step_run: StepRun, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the accepted tokens of a single step, before it is committed; note the time of its drafts.

        The run ends with that step, so the arrivals during it are forgotten.
        """
        cohort, n = self._courses, step_run.n_decoding
        self._queued_from.clear()
        if chunks:
            n_context = sum(end for _, end in chunks)
            prompts = step_run.n_prefill_tokens, step_run.n_prefill_pairs, n_context
            self.drafting_ps += self._drafting.draft_ps(*prompts, n, cohort.kv_tokens if n else 0)
            if self._draft_windows:
                reads = [group.reads_of(chunks) for _, group in self._draft_windows]
                keys = [cohort.window_keys[place] for place, _ in self._draft_windows] if n else ()
                self.drafting_ps += self._drafting.draft_windows_ps(step_run.n_prefill_tokens, reads, n, keys)
        else:
            self._note_drafting(n, 1, cohort.keys_of_next())
        return cohort.tokens_of_next() - n if n else 0

    def commit_but_last(
        self, step_run: StepRun, used_blocks: int, blocked_code: int, queued_from: Sequence[int], rows: bytearray
    ) -> None:
        """Record and apply all steps of an uneven run but the last; no request finishes in them."""
        assert isinstance(step_run, UnevenStepRun), "decode steps are uneven"
        cohort, pool, n = self._courses, self._pool, step_run.n_decoding
        n_first, start_ps, queue_len = step_run.n_steps - 1, step_run.start_ps, step_run.queue_len
        queued_from = sorted([*queued_from, *self._queued_from])
        reserved, ends_ps = pool.reserved_blocks, step_run.ends_ps[:n_first]
        if n_first > FEW_STEPS:
            first = pack_step(start_ps, 0, 0, 0, 0, 1, 0, n, used_blocks, reserved, queue_len, blocked_code, 0)
            rows += self._rows_from(first, np.array(ends_ps), queued_from)
            self._note_drafting(n, n_first, int(cohort.keys_ahead(n_first).sum()))
        else:
            keys: list[int] = cohort.keys_ahead(n_first + 1).tolist()
            held: list[int] = cohort.held_ahead(n_first).tolist()
            n_new, held_blocks = 0, cohort.held_blocks
            for i, end_ps in enumerate(ends_ps):
                n_queued = queue_len + bisect_right(queued_from, i) if queued_from else queue_len
                kept = reserved - n_new if self._reserves else reserved
                used, last_ps, n_accepted = used_blocks + n_new, end_ps - start_ps, keys[i + 1] - keys[i] - n
                rows += pack_step(
                    start_ps, last_ps, 0, 0, keys[i], 1, 0, n, used, kept, n_queued, blocked_code, n_accepted
                )
                n_new = held[i] - held_blocks
                start_ps = end_ps
            self._note_drafting(n, n_first, sum(keys) - keys[n_first])
        if self.windows:
            self.windows_ps.extend(self._windows_ahead_ps(n, n_first).tolist())
        n_blocks = cohort.advance(n_first)
        if cohort.n_dropped:
            pool.drop(cohort.n_dropped, self._reserves)
        pool.take(n_blocks, self._reserves)
        step_run.keep_last(queue_len + bisect_right(queued_from, n_first))

    def _rows_from(self, first: bytes, ends_ps: NDArray[np.int64], queued_from: list[int]) -> bytes:
        """Return the rows of steps with these ends, from the first one without its duration, keys and tokens."""
        cohort, n_steps = self._courses, len(ends_ps)
        rows = np.frombuffer(bytearray(first * n_steps), STEP_RUN_ROW)
        keys, n_new = cohort.keys_ahead(n_steps + 1), cohort.held_ahead(n_steps - 1) - cohort.held_blocks
        rows["start_ps"][1:] = ends_ps[:-1]
        rows["first_ps"] = ends_ps - rows["start_ps"]
        rows["kv_tokens"] = keys[:-1]
        rows["accepted_tokens"] = keys[1:] - keys[:-1] - rows["decode_requests"]
        rows["kv_blocks_used"][1:] += n_new
        if self._reserves:
            rows["kv_blocks_reserved"][1:] -= n_new
        if queued_from:
            rows["queue_len"] += np.searchsorted(queued_from, np.arange(n_steps), side="right")
        return rows.tobytes()

    def _note_drafting(self, n: int, n_steps: int, n_keys: int) -> None:
        """Add the time that n_steps of n requests, which attend n_keys in all, spend on drafting."""
        line = self._draft_lines.get(n)
        if line is None:
            line = self._draft_lines[n] = self._drafting.draft_line(n)
        intercept_ps, slope_ps = line
        self.drafting_ps += n_steps * intercept_ps + slope_ps * n_keys
        if self._draft_windows:
            first, last = self._draft_windows[0][0], self._draft_windows[-1][0]
            keys = self._courses.window_keys_ahead(n_steps)[first : last + 1].sum(axis=1).tolist()
            self.drafting_ps += self._drafting.draft_windows_ps(0, (), n, keys)
