"""Role: what a replica does with requests before they queue and after their prompts are computed."""

from collections.abc import Sequence
from typing import Literal

from simserve.engine.hooks import Hooks
from simserve.engine.step_run import StepRun
from simserve.state.request import Request

RoleName = Literal["both", "prefill", "decode"]


class Role(Hooks):
    """One side of a hand-over; of this class, a replica serves requests from prompt to answer."""

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

    def holds(self, request: Request) -> bool:
        """Return whether a request is on its way between replicas, rather than in the batch."""
        return False

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Drop a timed-out request that it holds. Return None, or when to try again."""
        raise NotImplementedError

    # -- called by the loop ----------------------------------------------------------------------------------------

    def let_decode(self) -> None:
        """Let requests decode that have all their keys and values: the first that happens at a step boundary."""

    def passes_stages(self, step_run: StepRun, ends_ps: Sequence[int], stage_ps: int) -> None:
        """Called when a step begins that leaves the stages of a pipeline at these instants, each after stage_ps."""

    def hands_over(self, request: Request) -> bool:
        """Return whether another replica decodes a prefilled request."""
        return False

    def hand_over(self, request: Request, now_ps: int) -> None:
        """Take a prefilled request, which has left the batch and holds its blocks."""
