"""OrderedReplica: its policy reorders the queue, so an arrival can matter even when the head is blocked.

A plan's `blocked_by` holds for requests behind the head. An arrival that may go before the head triggers a plan all the
same. Pipelines and ranks in lockstep plan at every step anyway and do not need this.
"""

from typing import cast

from simserve.engine.replica import Replica
from simserve.state.queues import Ordered
from simserve.state.request import Request


class OrderedReplica(Replica):
    """A replica with a queue that its policy orders."""

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request; plan again, even with the head blocked, if it may go before the head."""
        may_lead = cast(Ordered, self.batch.waiting).may_lead(request)
        super().enqueue(request, now_ps)
        if may_lead and self.step_run is not None:
            self.wake(now_ps, self._n_ahead)

    def decide(self, now_ps: int) -> None:
        """Plan as any replica; an arrival shown to the scheduler a step later may go before the blocked head."""
        super().decide(now_ps)
        if self._coming and self.step_run is not None:
            self.step_run.cut(1)
