"""Keeping: prefill replicas that answer some requests themselves, where the splitter says so."""

from simserve.engine.handoff import Sending
from simserve.engine.lockstep import Rank
from simserve.engine.pipeline import Lane
from simserve.engine.replica import Replica
from simserve.state.request import Request


class LocalDecode(Replica):
    """A prefill replica: whom it is to keep decodes here, in the steps that compute the prompts of others."""

    def __init__(self, index: int, *args: object) -> None:
        super().__init__(index, *args)  # type: ignore[arg-type]  # whatever a replica is made of
        self._kept: set[Request] = set()

    def keep(self, request: Request, now_ps: int) -> None:
        """Take in a request that is answered here."""
        self._kept.add(request)
        self.enqueue(request, now_ps)

    def give_back(self, request: Request, now_ps: int) -> None:
        """As usual; answers may be in the midst of many steps, and who waits for blocks waits for none of these."""
        super().give_back(request, now_ps)
        if self.step_run is not None:
            self.ring(now_ps)

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """As usual."""
        self._kept.discard(request)
        return super().abandon(request, now_ps)

    def _end_prefill(self, request: Request, now_ps: int) -> None:
        if request not in self._kept:
            super()._end_prefill(request, now_ps)
            return
        hand_over, self.hand_over = self.hand_over, None
        super()._end_prefill(request, now_ps)
        self.hand_over = hand_over

    def _last_token(self, request: Request, now_ps: int) -> None:
        self._kept.discard(request)
        super()._last_token(request, now_ps)


class LocalDecodeSending(LocalDecode, Sending):
    """One that steps on its own."""


class LocalDecodeLane(LocalDecode, Lane):
    """One that is a lane of a pipeline."""


class LocalDecodeRank(LocalDecode, Rank):
    """One that steps together with others."""


class LocallyDecodes:
    """Where requests come in that a prefill replica is to keep."""

    def __init__(self, replica: LocalDecode) -> None:
        self.enqueue = replica.keep
