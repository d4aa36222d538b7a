"""Static batching, as in FasterTransformer: waiting requests start together, padded, and all wait for the longest."""

from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, PaddedBatches, StepPlan
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class Static(PaddedBatches):
    """Start the waiting requests when idle, up to batch_size; none joins until the whole batch is done."""

    def plan(self, view: ReplicaView) -> StepPlan:
        """Return the next batch when the last one is done."""
        return StepPlan(blocked_by="seats") if view.n_running else self.padded_batch(view)
