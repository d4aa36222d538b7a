"""SwapQueue: preempted decoding requests with their KV blocks in host memory."""

from collections import deque

from simserve.engine.host_tier import HostTier
from simserve.engine.memory import Memory
from simserve.engine.recorder import Recorder
from simserve.state.cohort import Cohort
from simserve.state.request import WAITING, Request


class SwapQueue:
    """Swapped requests of one replica, in the order in which they left.

    As in vLLM before V1: no new request starts while the queue is not empty. The request that the policy puts first
    returns as soon as a slot and the blocks for its next token are free, but never at a boundary with a preemption.
    Requests in prefill, or without room on the host, recompute. Sources: vLLM 0.6, core/scheduler.py
    (_schedule_default, _schedule_swapped) and core/block_manager.py; vLLM 0.5, which sorts by the policy.
    """

    def __init__(self, memory: Memory, tier: HostTier, recorder: Recorder) -> None:
        self._memory = memory
        self._blocks_for = memory.pool.blocks_for
        self._tier = tier
        self._recorder = recorder
        self.swapped: deque[Request] = deque()
        self.returned: list[Request] = []
        """Requests swapped in that have had no token since; their spans are recorded."""

    def has_returned(self, request: Request) -> bool:
        """Return whether a request was swapped in and has had no token since; it stops counting as such."""
        if request not in self.returned:
            return False
        self.returned.remove(request)
        return True

    def has_room(self, kv_tokens: int) -> bool:
        """Return whether the host has room for the blocks of a request."""
        return self._tier.memory.has_room(self._blocks_for(kv_tokens))

    def swap_out(self, request: Request, kv_tokens: int, now_ps: int) -> None:
        """Copy the blocks of a preempted request to the host."""
        self._tier.swap_out(self._blocks_for(kv_tokens))
        self._recorder.swap(request.row)
        request.phase = WAITING
        request.prefilled_tokens = kv_tokens
        request.n_preemptions += 1
        request.preempted_at_ps = now_ps
        self.swapped.append(request)

    def fits(self, request: Request, free_blocks: int, n_slots: int) -> bool:
        """Return whether a request fits: it and all decoding requests can then take the next step.

        free_blocks: those left when the decoding requests have taken theirs for the next step. n_slots: tokens beyond
        those stored that it needs blocks for in that step.
        """
        n_next = min(n_slots, request.prompt_tokens + request.max_tokens - request.prefilled_tokens)
        n_blocks = self._memory.pool.blocks_in_step(request.prefilled_tokens, n_next)
        n_blocks -= self._memory.shared_blocks(request, request.prefilled_tokens, request.prefilled_tokens)
        return free_blocks >= 0 and n_blocks <= free_blocks

    def abandon(self, request: Request) -> None:
        """Drop a swapped request: its blocks on the host are free at once, without a copy."""
        self.swapped.remove(request)
        self._tier.discard(self._blocks_for(request.prefilled_tokens))

    def swap_in(self, request: Request, now_ps: int) -> None:
        """Copy the blocks of a request back."""
        self.swapped.remove(request)
        self.returned.append(request)
        self._recorder.resume(request.row, request.preempted_at_ps, now_ps, is_swapped=True)
        n_found = self._memory.take_back(request)
        self._tier.swap_in(self._blocks_for(request.prefilled_tokens), n_found)

    def give_tokens(self, cohort: Cohort, now_ps: int) -> None:
        """Give returned requests their tokens at the end of a decode step, before its commit."""
        for request in self.returned:
            request.joined_ps = now_ps
            cohort.count_first(request)
        self.returned.clear()
