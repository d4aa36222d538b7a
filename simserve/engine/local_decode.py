"""Local decode: prefill replicas that decode some requests themselves, as the splitter decides."""

from simserve.engine.handoff import Sending
from simserve.engine.lockstep import Rank
from simserve.engine.pipeline import Lane
from simserve.engine.replica import Replica
from simserve.state.request import Request


class LocalDecode(Replica):
    """A prefill replica; requests marked for local decode are batched with other requests' prefills."""

    def __init__(self, index: int, *args: object) -> None:
        super().__init__(index, *args)  # type: ignore[arg-type]  # passed through
        self._kept: set[Request] = set()

    def keep(self, request: Request, now_ps: int) -> None:
        """Accept a request that is decoded here."""
        self._kept.add(request)
        self.enqueue(request, now_ps)

    def give_back(self, request: Request, now_ps: int) -> None:
        """Free the blocks as any replica; a run of decode steps is cut, as a waiting request may need the blocks."""
        super().give_back(request, now_ps)
        if self.step_run is not None:
            self.wake(now_ps)

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Abandon a request, local or not."""
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
    """A local-decode replica that steps on its own."""


class LocalDecodeLane(LocalDecode, Lane):
    """A local-decode replica that is a pipeline lane."""


class LocalDecodeRank(LocalDecode, Rank):
    """A local-decode replica that steps in lockstep."""


class LocalDecodeIntake:
    """Entry for requests that a prefill replica decodes itself."""

    def __init__(self, replica: LocalDecode) -> None:
        self.id = replica.id
        self.enqueue = replica.keep
