"""Role: what a replica does with requests before they queue and after their prompts are computed."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from simserve.engine.step_run import StepRun
from simserve.schedulers.base import Blocked
from simserve.state.request import Request

RoleName = Literal["both", "prefill", "decode"]


class Role:
    """One side of a hand-over. A replica without a role serves requests from prompt to answer.

    The methods are called by the replica at fixed points of its loop; each does nothing unless a kind needs it.
    """

    plans: ClassVar[bool] = False
    """let_decode, before_plan and after_plan do something."""
    precedes_commits: ClassVar[bool] = False
    """before_commit does something."""
    follows_commits: ClassVar[bool] = False
    """after_commit does something."""

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request from the router."""
        raise NotImplementedError

    def keep(self, request: Request, now_ps: int) -> None:
        """Accept a request from the router that is prefilled and decoded here."""
        raise NotImplementedError

    @property
    def in_transit(self) -> Sequence[Request]:
        """Requests on their way between replicas that do not run here yet."""
        return ()

    @property
    def n_coming(self) -> int:
        """Requests from other replicas without blocks here yet."""
        return 0

    def holds(self, request: Request) -> bool:
        """Return whether a request is on its way between replicas, rather than in the batch."""
        return False

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Drop a timed-out request that it holds. Return None, or when to try again."""
        raise NotImplementedError

    # -- called by the loop ----------------------------------------------------------------------------------------

    def let_decode(self) -> None:
        """Let requests decode that have all their keys and values: the first that happens at a step boundary."""

    def before_plan(self, now_ps: int) -> None:
        """Called before the replica plans, after swapped requests have returned; lets requests decode unless it was
        done."""

    def after_plan(self, step_run: StepRun | None) -> Blocked | None:
        """Cut the step run that begins, if any, where it must; return what keeps out requests of other replicas."""
        return None

    def passes_stages(self, step_run: StepRun, ends_ps: Sequence[int], stage_ps: int) -> None:
        """Called when a step begins that leaves the stages of a pipeline at these instants, each after stage_ps."""

    def before_commit(self, step_run: StepRun, now_ps: int) -> None:
        """Called when steps are over and not committed yet."""

    def after_commit(self, now_ps: int) -> None:
        """Called after a commit."""

    def hands_over(self, request: Request) -> bool:
        """Return whether another replica decodes a prefilled request."""
        return False

    def hand_over(self, request: Request, now_ps: int) -> None:
        """Take a prefilled request, which has left the batch and holds its blocks."""

    def ended(self, request: Request, now_ps: int) -> None:
        """Called when a request has its last token here, or its client has given up."""
