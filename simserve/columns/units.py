"""StepUnit: what plans and steps at once: a replica on its own, or the ranks of a lane."""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import i64

from simserve.engine.lock_step import Lane, LockStep
from simserve.integers import NEVER
from simserve.units import EndsTooLate


class StepUnit:
    """Replicas of which the steps begin and end at the same instants."""

    def __init__(self, place: i64) -> None:
        self.place = place
        """Id of the first of them, by which units come in turn."""

    def end_ps(self) -> i64:
        """Return the end of the step run in flight; NEVER without one. Raises EndsTooLate."""
        raise NotImplementedError

    def plan(self, now_ps: i64) -> None:
        """Begin what follows, unless a step is in flight."""
        raise NotImplementedError

    def commit(self, now_ps: i64) -> None:
        """Record what is over, and apply it."""
        raise NotImplementedError

    @property
    def steps(self) -> bool:
        """A step is in flight."""
        raise NotImplementedError

    def halt(self) -> None:
        """Neither end the step in flight nor plan of itself any more."""
        raise NotImplementedError


class RankUnit(StepUnit):
    """A replica that may be a rank among others."""

    holds_prompts = False
    """The next step has no prompts, as long as requests decode: other ranks have none."""

    @property
    def decodes(self) -> bool:
        """Requests decode."""
        raise NotImplementedError

    @property
    def has_prompts(self) -> bool:
        """Prompts are in a slot, or wait for one that is free."""
        raise NotImplementedError

    @property
    def only_waits(self) -> bool:
        """Requests are there, and none decodes."""
        raise NotImplementedError

    def add_to(self, step: LockStep) -> None:
        """Add to a step of all ranks what was planned here."""
        raise NotImplementedError

    def passes_stages(self, ends_ps: tuple[int, ...], stage_ps: int) -> None:
        """Note when the step in flight, if any, leaves the stages of a pipeline, each after stage_ps."""
        raise NotImplementedError

    def last(self, end_ps: i64, wait_ps: i64) -> None:
        """Let the step in flight, if any, end then, after a wait for copies."""
        raise NotImplementedError


class LaneColumns(StepUnit):
    """The ranks of a lane; see `Lane`."""

    def __init__(self, lane: Lane, ranks: Sequence[RankUnit]) -> None:
        super().__init__(ranks[0].place)
        self._ranks, self._step, self._hold = list(ranks), lane.step, lane.hold
        self._end_ps: i64 = NEVER

    def end_ps(self) -> i64:
        """Return the end of the step in flight; without one, when a rank plans next of itself, NEVER if none does."""
        if self._end_ps < NEVER:
            return self._end_ps
        least: i64 = NEVER
        for rank in self._ranks:
            at_ps = rank.end_ps()
            if at_ps < least:
                least = at_ps
        return least

    def plan(self, now_ps: i64) -> None:
        """Plan and begin one step on all ranks; do nothing while a step is in flight. Raises EndsTooLate."""
        if self._end_ps < NEVER:
            return
        if self._hold is not None:
            self._hold_prompts()
        step = self._step
        step.clear()
        for rank in self._ranks:
            rank.plan(now_ps)
            rank.add_to(step)
        if not step.n_tokens:
            return
        ends_ps = step.begin(now_ps)
        end_ps = step.end_ps(ends_ps)
        if end_ps >= NEVER:
            raise EndsTooLate
        self._end_ps = end_ps
        for rank in self._ranks:
            rank.last(end_ps, step.wait_ps)
            if len(ends_ps) > 1:
                rank.passes_stages(ends_ps, step.stage_ps)

    @property
    def steps(self) -> bool:
        """A step is in flight."""
        return self._end_ps < NEVER

    def halt(self) -> None:
        """Neither end the step in flight nor plan of itself any more."""
        self._end_ps = NEVER
        for rank in self._ranks:
            rank.halt()

    def commit(self, now_ps: i64) -> None:
        """Record the step of all ranks, and apply it."""
        self._end_ps = NEVER
        for rank in self._ranks:
            if rank.steps:
                rank.commit(now_ps)

    def _hold_prompts(self) -> None:
        """Tell each rank whether its next step may have prompts."""
        assert self._hold is not None, "prompts are held back"
        n_only_wait, any_decodes, all_have_prompts = 0, False, True
        for rank in self._ranks:
            n_only_wait += rank.only_waits
            any_decodes = any_decodes or rank.decodes
            all_have_prompts = all_have_prompts and rank.has_prompts
        holds = self._hold.decides(n_only_wait, any_decodes=any_decodes, all_have_prompts=all_have_prompts)
        for rank in self._ranks:
            rank.holds_prompts = holds
