"""Swapping: seats whose decoding requests, when preempted, go to host memory and come back as they were."""

from collections import deque

from simserve.engine.batch_state import BatchState
from simserve.engine.host_tier import HostTier
from simserve.engine.prefixes import CachingBatchState
from simserve.schedulers.base import StepPlan
from simserve.state.request import WAITING, Request


class SwappingBatchState(BatchState):
    """Seats with host memory for those who must give up their blocks while they decode.

    As vLLM had it before V1: they wait in a queue of their own, nobody new starts at a boundary at which that queue is
    not empty, and they come back in order as soon as a seat and the blocks for their next token too are free, but never
    at a boundary at which somebody has to go. Whose prompt is half done, and who finds no room on the host, computes
    again. Source: vLLM 0.6, core/scheduler.py (_schedule_default, _schedule_swapped) and core/block_manager.py.
    """

    tier: HostTier
    swapped: deque[Request]
    returned: list[Request]
    """Who has come back and had no token since."""

    def begin(self, tier: HostTier) -> None:
        """With nobody swapped out."""
        self.tier = tier
        self.swapped = deque()
        self.returned = []

    def ask(self, now_ps: int, just_preempted: bool) -> StepPlan:
        """The scheduler's plan; it sees nobody new as long as anybody is swapped out."""
        if self.swapped:
            self.view.waiting = ()
        return super().ask(now_ps, just_preempted)

    def put_aside(self, request: Request, now_ps: int) -> None:
        """Swap a request out, if the host has room for it."""
        if request in self.returned:
            self.returned.remove(request)
        else:
            self._recorder.span(self._index, request, self.cohort.step)
        kv_tokens = self.stop_decoding(request)
        n_blocks = self.view.blocks_for(kv_tokens)
        if not self.tier.memory.has_room(n_blocks):
            self.requeue(request, kv_tokens, now_ps)
            return
        self.leave(request, kv_tokens)
        self.tier.swap_out(n_blocks)
        self._recorder.swap(request.row)
        request.phase = WAITING
        request.prefilled_tokens = kv_tokens
        request.n_preemptions += 1
        request.preempted_at_ps = now_ps
        self.swapped.append(request)

    def next_back(self) -> Request | None:
        """The first of those swapped out, if it has room: it and all who decode can then take the next step."""
        free_blocks = self.pool.free_blocks - self.cohort.blocks_to_grow(1)
        if not self.swapped or free_blocks < 0 or len(self.running) >= self._scheduler.max_running:
            return None
        request = self.swapped[0]
        n_blocks = self.view.blocks_for(request.prefilled_tokens + 1) - self.blocks_shared(request)
        return request if n_blocks <= free_blocks else None

    def blocks_shared(self, request: Request) -> int:
        """Its blocks that others hold on the GPU."""
        return 0

    def bring_back(self, request: Request, now_ps: int) -> None:
        """The first of those swapped out has a seat and its blocks again."""
        self.swapped.popleft()
        self.returned.append(request)
        self.running[request] = None
        self._recorder.resume(request.row, request.preempted_at_ps, now_ps, is_swapped=True)
        self.tier.swap_in(self.view.blocks_for(request.prefilled_tokens), self.take_back(request))

    def give_tokens(self, now_ps: int) -> None:
        """A step that decoded is over, and about to be committed: those who have come back go on with a token."""
        for request in self.returned:
            request.joined_ps, request.join_step = now_ps, self.cohort.step + 1
            request.emitted_tokens += 1
        self.returned.clear()

    def take_back(self, request: Request) -> int:
        """Take its blocks; returns how many of them were still on the GPU."""
        self.pool.take(self.view.blocks_for(request.prefilled_tokens), from_reserved=False)
        return 0


class SwappingCachingBatchState(SwappingBatchState, CachingBatchState):
    """Those whose blocks can be found by others too, and by themselves when they come back."""

    def blocks_shared(self, request: Request) -> int:
        """Its blocks that others hold on the GPU."""
        n_ids = self._n_here(request)
        n_idle = self._cache.idle_blocks_among(request.chain, n_ids)
        return n_ids * self._cache.blocks_per_id - n_idle

    def take_back(self, request: Request) -> int:
        """Hold what is still here, and take blocks for the rest, which can be found again."""
        n_here, n_ids = self._n_here(request), self._n_ids(request)
        n_found = n_here * self._cache.blocks_per_id
        self.pool.take(self._cache.pin(request.chain, n_here), from_reserved=False)
        self.pool.take(self.view.blocks_for(request.prefilled_tokens) - n_found, from_reserved=False)
        self._cache.insert(request.chain, n_here, n_ids, request.copies)
        request.n_held_ids = n_ids
        return n_found

    def _n_ids(self, request: Request) -> int:
        return min(request.prefilled_tokens // self._block_tokens, len(request.chain))

    def _n_here(self, request: Request) -> int:
        return self._cache.match(request.chain, self._n_ids(request))
