"""Lockstep: data-parallel ranks that share experts, so that all step together, as slowly as the slowest."""

from collections.abc import Sequence

from simserve.cost.model import CostModel
from simserve.engine.alarm import PLAN_PHASE, Alarm, Clock
from simserve.engine.replica import Replica


class Rank(Replica):
    """One data-parallel rank of a replica: it has its own scheduler and KV blocks, but steps together with the others.
    Without requests it runs a dummy batch (as in vLLM), which takes no time."""

    group: "Lockstep"

    def _plan(self, now_ps: int) -> None:
        """Plan with all ranks; arrivals during a step wait for its end."""
        self.group.plan(now_ps)


class Lockstep:
    """The ranks of a replica that step together.

    A step lasts as long as that of the busiest rank, plus the time of the experts for the tokens of all ranks.
    """

    def __init__(self, ranks: Sequence[Rank], cost: CostModel, clock: Clock) -> None:
        self._ranks = ranks
        self.cost = cost
        """Cost model of each rank."""
        self._is_stepping = False
        self._step_end = Alarm(clock, self._on_step_end, phase=ranks[0].index)
        self._plan_time = Alarm(clock, self.plan, phase=PLAN_PHASE + ranks[0].index)

    @classmethod
    def join(cls, ranks: Sequence[Rank], cost: CostModel, clock: Clock) -> None:
        """Create the group of these ranks."""
        group = cls(ranks, cost, clock)
        for rank in ranks:
            rank.group = group

    def plan(self, now_ps: int) -> None:
        """Plan and begin one step on all ranks; do nothing while a step is in flight."""
        if self._is_stepping:
            return
        slowest_ps = n_tokens = 0
        for rank in self._ranks:
            rank.decide(now_ps)
            if rank.step_run is not None:
                slowest_ps = max(slowest_ps, rank.step_run.first_ps)
                n_tokens += rank.step_run.n_prefill_tokens + rank.step_run.n_decoding
        if not n_tokens:
            return
        step_ps = slowest_ps + self.cost.group_ps(n_tokens)
        for rank in self._ranks:
            if rank.step_run is not None:
                rank.step_run.last(step_ps)
        self._is_stepping = True
        self._step_end.set(now_ps + step_ps)

    def _on_step_end(self, now_ps: int) -> None:
        self._is_stepping = False
        for rank in self._ranks:
            if rank.step_run is not None:
                rank.commit(rank.step_run, now_ps)
        self._plan_time.set(now_ps)
