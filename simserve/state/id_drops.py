"""IdDrops: the steps in which windows leave blocks of decoding requests that have an id."""

from collections.abc import Callable
from heapq import heappop, heappush

from simserve.state.block_runs import NEVER, block_groups
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import Request

NIds = Callable[[Request], int]
"""Returns how many blocks of a request, from its first on, have an id or get one."""
Convert = Callable[[Request, int], int]
"""Converts a step of a member to its stored tokens, or back."""


class IdDrops:
    """Members of a cohort in the order in which windows next leave a block of each that has an id. The prefix cache
    needs their order. Blocks without an id are only counted."""

    __slots__ = ("_ahead", "_joined", "_n_ids", "_n_joins", "_step_with", "_stored_at", "_windows", "due", "next_step")

    def __init__(self, layers: LayerBlocks, n_ids: NIds, stored_at: Convert, step_with: Convert) -> None:
        self._stored_at, self._step_with = stored_at, step_with
        self._windows = [group for group in block_groups(layers) if group.window]
        self._n_ids = n_ids
        self._ahead: list[tuple[int, int, Request]] = []
        """Heap of (step, number of the join, member), with some members that have left."""
        self._joined: dict[Request, int] = {}
        self._n_joins = 0
        self.due: list[tuple[Request, int, int]] = []
        """Members of which blocks with an id left windows in the last such step, in the order of joining, and the
        tokens that they had stored before and after it."""
        self.next_step = NEVER
        """Value of `step` after the next such step."""

    def join(self, request: Request, n_tokens: int) -> None:
        """Add a member of the cohort, with n_tokens stored."""
        if not self._n_ids(request):
            return
        self._n_joins += 1
        self._joined[request] = self._n_joins
        self._add(request, self._n_joins, n_tokens)
        self._find_next()

    def leave(self, request: Request) -> None:
        """Remove a member."""
        if self._joined.pop(request, None) is not None:
            self._find_next()

    def advance(self, step: int) -> int:
        """Note the members that are due in the last step, up to `step`; return what `pop` does."""
        self.due = []
        return self.pop() if self.next_step <= step else 0

    def pop(self) -> int:
        """Note the members that are due next; return their blocks that leave windows then, with or without an id."""
        step, n_dropped = self.next_step, 0
        self.due = []
        while self.next_step == step:
            _, number, request = heappop(self._ahead)
            n_before, n_tokens = self._stored_at(request, step - 1), self._stored_at(request, step)
            self.due.append((request, n_before, n_tokens))
            for window in self._windows:
                n_dropped += (window.first_kept(n_tokens) - window.first_kept(n_before)) * window.n_parts
            self._add(request, number, n_tokens)
            self._find_next()
        return n_dropped

    def _add(self, request: Request, number: int, n_tokens: int) -> None:
        n_ids, target = self._n_ids(request), NEVER
        for window in self._windows:
            target = min(target, window.next_drop(n_tokens, n_ids))
        if target < NEVER:
            heappush(self._ahead, (self._step_with(request, target), number, request))

    def _find_next(self) -> None:
        ahead, joined = self._ahead, self._joined
        while ahead and joined.get(ahead[0][2]) != ahead[0][1]:
            heappop(ahead)
        self.next_step = ahead[0][0] if ahead else NEVER
