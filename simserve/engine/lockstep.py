"""Lockstep: data-parallel ranks that share experts, so that all of them step together, as fast as the slowest."""

from collections.abc import Sequence

from simserve.cost.model import CostModel
from simserve.engine.alarm import PLAN_PHASE, Alarm, Clock
from simserve.engine.replica import Replica


class Rank(Replica):
    """One data-parallel rank of a replica: it has a scheduler and KV blocks of its own, but begins and ends its steps
    with the others. Without requests it only keeps them company (vLLM: a dummy batch), which is free."""

    group: "Lockstep"

    def _plan(self, now_ps: int) -> None:
        """Who arrives while the others step waits for the end of that step."""
        self.group.plan(now_ps)


class Lockstep:
    """The ranks of a replica that step together.

    A step lasts as long as that of the rank with the most to do, and then as long as the experts need for the tokens
    of all of them.
    """

    def __init__(self, ranks: Sequence[Rank], cost: CostModel, clock: Clock) -> None:
        self._ranks = ranks
        self.cost = cost
        """What the steps of each of them cost."""
        self._is_stepping = False
        self._step_end = Alarm(clock, self._on_step_end, phase=ranks[0].index)
        self._plan_time = Alarm(clock, self.plan, phase=PLAN_PHASE + ranks[0].index)

    @classmethod
    def join(cls, ranks: Sequence[Rank], cost: CostModel, clock: Clock) -> None:
        """Make them step together from now on."""
        group = cls(ranks, cost, clock)
        for rank in ranks:
            rank.group = group

    def plan(self, now_ps: int) -> None:
        """All ranks decide on one step, and begin it together; nothing if they are at it already."""
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
