"""Dynamic batching, as in Triton: a static batch that also waits for more requests."""

from itertools import islice
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, PaddedBatches, StepPlan
from simserve.state.view import ReplicaView
from simserve.units import to_ps


@dataclass(config=STRICT)
class Dynamic(PaddedBatches):
    """Start a padded batch when batch_size requests wait, or window_s after the oldest of them arrived."""

    window_s: Annotated[float, Field(ge=0, le=3600)] = 0.1
    """[s] Maximum time that the oldest waiting request waits for a full batch."""

    def plan(self, view: ReplicaView) -> StepPlan:
        """Return the next batch when the last one is done, and the window is over or the batch full."""
        if view.n_running:
            return StepPlan(blocked_by="seats")
        waiting = list(islice(view.waiting, self.batch_size))
        start_at_ps = waiting[0].arrival_ps + to_ps(self.window_s)
        if len(waiting) < self.batch_size and view.now_ps < start_at_ps:
            return StepPlan(wake_at_ps=start_at_ps)
        return self.padded_batch(view)
