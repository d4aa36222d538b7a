"""IdDrops: the steps in which windows leave blocks of decoding requests that have an id."""

from collections.abc import Callable
from heapq import heappop, heappush

from simserve.state.cohort import NO_FINISH, Cohort
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import Request

NIds = Callable[[Request], int]
"""Returns how many blocks of a request, from its first on, have an id or get one."""


class IdDrops:
    """Members of a cohort in the order in which windows next leave a block of each that has an id.

    The prefix cache needs their order, so a run ends with such a step. Blocks without an id are only counted.
    """

    __slots__ = ("_ahead", "_cohort", "_joined", "_layers", "_n_ids", "_n_joins", "due", "next_step")

    def __init__(self, cohort: Cohort, layers: LayerBlocks, n_ids: NIds) -> None:
        self._cohort = cohort
        self._layers = layers
        self._n_ids = n_ids
        self._ahead: list[tuple[int, int, Request]] = []
        """Heap of (step, number of the join, member), with some members that have left."""
        self._joined: dict[Request, int] = {}
        self._n_joins = 0
        self.due: list[tuple[Request, int]] = []
        """Members of which blocks with an id left windows in the last step, in the order of joining, and the tokens
        that they had stored before it."""
        self.next_step = NO_FINISH
        """Value of `step` after the next such step."""

    def join(self, request: Request) -> None:
        """Add a member of the cohort."""
        if not self._n_ids(request):
            return
        self._n_joins += 1
        self._joined[request] = self._n_joins
        self._add(request, self._n_joins)
        self._find_next()

    def leave(self, request: Request) -> None:
        """Remove a member."""
        if self._joined.pop(request, None) is not None:
            self._find_next()

    def advance(self) -> int:
        """Note the members that are due after a run of steps; return their blocks that left windows in its last step,
        with or without an id."""
        self.due = []
        n_dropped = 0
        while self.next_step <= self._cohort.step:
            _, number, request = heappop(self._ahead)
            n_before, n_tokens = self._cohort.stored_before(request), self._cohort.stored_tokens(request)
            self.due.append((request, n_before))
            n_dropped += self._layers.dropped(n_tokens) - self._layers.dropped(n_before)
            self._add(request, number)
            self._find_next()
        return n_dropped

    def _add(self, request: Request, number: int) -> None:
        n_tokens = self._cohort.stored_tokens(request)
        target = self._layers.next_drop(n_tokens, self._n_ids(request))
        if target is not None:
            heappush(self._ahead, (self._cohort.step_with(request, target), number, request))

    def _find_next(self) -> None:
        ahead, joined = self._ahead, self._joined
        while ahead and joined.get(ahead[0][2]) != ahead[0][1]:
            heappop(ahead)
        self.next_step = ahead[0][0] if ahead else NO_FINISH
