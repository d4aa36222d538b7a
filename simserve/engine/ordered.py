"""OrderedReplica: one whose policy lets requests pass each other, so that who comes can matter where nobody else would.

A plan that names what keeps the head of the queue out speaks of those behind that head. Who comes before it rings the
bell all the same. Pipelines and ranks that step together plan at every step anyhow, and need none of this.
"""

from typing import cast

from simserve.engine.replica import Replica
from simserve.state.queues import Ordered
from simserve.state.request import Request


class OrderedReplica(Replica):
    """A replica with a queue that its policy orders."""

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Take a request in, and ring the bell even where somebody is kept out, if it may be before that one."""
        may_lead = cast(Ordered, self.batch.waiting).may_lead(request)
        super().enqueue(request, now_ps)
        if may_lead and self.step_run is not None:
            self.ring(now_ps, self._n_ahead)

    def decide(self, now_ps: int) -> None:
        """As any replica; whom the scheduler sees a step later may be before the one who is kept out."""
        super().decide(now_ps)
        if self._coming and self.step_run is not None:
            self.step_run.cut(1)
