"""Swapping: batch state that moves preempted decoding requests to host memory."""

from collections import deque

from simserve.engine.batch_state import BatchState
from simserve.engine.host_tier import HostTier
from simserve.engine.prefixes import CachingBatchState
from simserve.schedulers.base import StepPlan
from simserve.state.request import WAITING, Request


class SwappingBatchState(BatchState):
    """Batch state with host memory for preempted decoding requests.

    As in vLLM before V1: swapped requests wait in a queue of their own, and no new request starts while that queue is
    not empty. They return in order as soon as a slot and the blocks for their next token are free, but never at a
    boundary with a preemption. Requests in prefill, or without room on the host, recompute. Source: vLLM 0.6,
    core/scheduler.py (_schedule_default, _schedule_swapped) and core/block_manager.py.
    """

    tier: HostTier
    swapped: deque[Request]
    returned: list[Request]
    """Requests swapped in that have had no token since."""

    def begin(self, tier: HostTier) -> None:
        """Start with no swapped request."""
        self.tier = tier
        self.swapped = deque()
        self.returned = []

    def plan(self, now_ps: int, just_preempted: bool) -> StepPlan:
        """Return the scheduler's plan; it sees no new request while any is swapped out."""
        if self.swapped:
            self.view.waiting = ()
        return super().plan(now_ps, just_preempted)

    def preempt_decoding(self, request: Request, now_ps: int) -> None:
        """Swap a request out if the host has room for it; otherwise it recomputes."""
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

    def next_to_swap_in(self) -> Request | None:
        """Return the first swapped request if it fits: it and all decoding requests can then take the next step."""
        free_blocks = self.pool.free_blocks - self.cohort.blocks_to_grow(1)
        if not self.swapped or free_blocks < 0 or len(self.running) >= self._scheduler.max_running:
            return None
        request = self.swapped[0]
        n_blocks = self.view.blocks_for(request.prefilled_tokens + 1) - self.blocks_shared(request)
        return request if n_blocks <= free_blocks else None

    def blocks_shared(self, request: Request) -> int:
        """Return the number of its blocks that other requests hold on the GPU."""
        return 0

    def swap_in(self, request: Request, now_ps: int) -> None:
        """Give the first swapped request a slot and its blocks again."""
        self.swapped.popleft()
        self.returned.append(request)
        self.running[request] = None
        self._recorder.resume(request.row, request.preempted_at_ps, now_ps, is_swapped=True)
        self.tier.swap_in(self.view.blocks_for(request.prefilled_tokens), self.reacquire(request))

    def give_tokens(self, now_ps: int) -> None:
        """Give swapped-in requests a token at the end of a decode step, before its commit."""
        for request in self.returned:
            request.joined_ps, request.join_step = now_ps, self.cohort.step + 1
            request.emitted_tokens += 1
        self.returned.clear()

    def reacquire(self, request: Request) -> int:
        """Take the blocks of a request; return how many of them were still on the GPU."""
        self.pool.take(self.view.blocks_for(request.prefilled_tokens), from_reserved=False)
        return 0


class SwappingCachingBatchState(SwappingBatchState, CachingBatchState):
    """Batch state with swapping and a prefix cache, which may still hold blocks of a swapped request."""

    def blocks_shared(self, request: Request) -> int:
        """Return the number of its blocks that other requests hold on the GPU."""
        n_ids = self._n_here(request)
        n_idle = self._cache.idle_blocks_among(request.chain, n_ids)
        return n_ids * self._cache.blocks_per_id - n_idle

    def reacquire(self, request: Request) -> int:
        """Hold the blocks still in the cache, and take blocks for the rest, which can be found again."""
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
