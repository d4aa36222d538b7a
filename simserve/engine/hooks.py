"""Hooks: what a mechanism does at fixed points of the loop of a replica; and what the loop asks of its stepping."""

from typing import Protocol

from simserve.cost.model import CostModel
from simserve.engine.step_run import StepRun
from simserve.state.request import Request
from simserve.state.step_plan import Blocked


class Hooks:
    """Called by the loop; a mechanism has those that it needs, and those of this class do nothing."""

    def before_plan(self, now_ps: int) -> None:
        """Change what is there before the scheduler plans."""

    def after_plan(self, step_run: StepRun | None, now_ps: int) -> Blocked | None:
        """Cut or lengthen the step run that begins, if any; return what keeps out requests outside the queue."""
        return None

    def before_commit(self, step_run: StepRun, now_ps: int) -> None:
        """Use steps that are over and not committed yet."""

    def after_commit(self, now_ps: int) -> None:
        """Follow a commit."""

    def ended(self, request: Request, now_ps: int) -> None:
        """Forget a request that has its last token here, or with a client that has given up."""

    def fail(self) -> None:
        """Lose what is under way, as the replica fails."""


class Group(Protocol):
    """Ranks that step together."""

    cost: CostModel
    """Cost model of each rank."""


class Stepping(Protocol):
    """When the next step may start and when it ends."""

    n_stages: int
    """Pipeline stages that a step passes through."""
    group: Group | None
    """Ranks that step together."""
    first_lane: int
    """Id of the replica that is the first lane on the same GPUs."""

    def plan_at(self, at_ps: int) -> None:
        """Plan at an instant, as the last event."""

    def wake(self, now_ps: int, n_ahead: int = 0) -> None:
        """Plan when the step in flight and n_ahead more are over, or now when idle."""

    def commit_now(self, now_ps: int) -> None:
        """Commit a step that ends at this very instant, before its alarm goes off."""

    def halt(self) -> None:
        """Neither end the step in flight nor plan any more."""
