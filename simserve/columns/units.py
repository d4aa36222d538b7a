"""Unit: what plans and steps at once: a replica on its own, or the ranks of a lane, which step together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mypy_extensions import i64

from simserve.engine.stepping import Lane
from simserve.integers import NEVER
from simserve.units import EndsTooLate

if TYPE_CHECKING:
    from simserve.columns.batch import ReplicaColumns


class Unit:
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


class LaneColumns(Unit):
    """The ranks of a lane; see `Lane`."""

    def __init__(self, lane: Lane, batches: Sequence[ReplicaColumns]) -> None:
        super().__init__(lane.ranks[0].id)
        self._ranks, self._step, self._hold = [batches[rank.id] for rank in lane.ranks], lane.step, lane.hold
        self._end_ps: i64 = NEVER

    def end_ps(self) -> i64:
        """Return the end of the step in flight; NEVER without one."""
        return self._end_ps

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
        end_ps = step.end_ps(step.begin(now_ps))
        if end_ps >= NEVER:
            raise EndsTooLate
        self._end_ps = end_ps
        for rank in self._ranks:
            rank.last(end_ps)

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
