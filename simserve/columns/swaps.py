"""SwapLine: preempted requests in columns with their keys and values in host memory."""

from __future__ import annotations

from typing import cast

from mypy_extensions import i64

from simserve.columns.contents import BlockContents
from simserve.columns.live import DECODES, SWAPPED
from simserve.columns.prompts import PromptColumns
from simserve.engine.host_tier import HostTier
from simserve.engine.replica import Replica


class SwapLine:
    """Swapped requests of one replica, in the order in which they left.

    As in vLLM before V1: no new request starts while there are any. The request that the policy puts first returns as
    soon as a slot and the blocks for its next token are free, but never at a boundary with a preemption. Requests in
    prefill, or without room on the host, recompute. Sources: vLLM 0.6, core/scheduler.py (_schedule_default,
    _schedule_swapped) and core/block_manager.py; vLLM 0.5, which sorts by the policy.
    """

    def __init__(self, replica: Replica, tier: HostTier, prompts: PromptColumns, contents: BlockContents) -> None:
        self._tier, self._pool, self._cohort, self._recorder = tier, replica.pool, replica.cohort, replica.recorder
        self._live, self._prompts, self._running, self._contents = prompts.live, prompts, prompts.running, contents
        self.places: list[int] = []
        """The swapped requests."""

    def has_room(self, kv_tokens: i64) -> bool:
        """Return whether the host has room for the blocks of a request."""
        return self._tier.memory.has_room(self._pool.blocks_for(kv_tokens))

    def swap_out(self, place: i64, kv_tokens: i64) -> None:
        """Copy the blocks of a preempted request to the host."""
        self._tier.swap_out(self._pool.blocks_for(kv_tokens))
        self._recorder.swap(self._live.row[place])
        self._live.phase[place], self._live.prefilled_tokens[place] = SWAPPED, kv_tokens
        self.places.append(place)
        self._prompts.n_swapped += 1

    def abandon(self, place: i64) -> None:
        """Drop a swapped request: its blocks on the host are free at once, without a copy."""
        self._remove(place)
        self._tier.discard(self._pool.blocks_for(self._live.prefilled_tokens[place]))

    def _remove(self, place: int) -> None:
        self.places.remove(place)
        self._prompts.n_swapped -= 1

    def let_return(self, now_ps: i64) -> None:
        """Give requests their blocks again, in the policy's order, while there is room."""
        running, prompts = self._running, self._prompts
        while prompts.n_swapped and running.n + running.n_promised < prompts.slots:
            place = cast(int, prompts.planner.first_back(list(self.places), now_ps))
            if not self._fits(place):
                return
            self._swap_in(place, now_ps)
            running.admit(place)
            live = self._live
            running.join(place, live.output_tokens[place] - live.emitted_tokens[place])
            prompts.resumed(place)

    def _fits(self, place: i64) -> bool:
        """Return whether a request fits: it and all decoding requests can then take the next step."""
        live, cohort = self._live, self._cohort
        n_left = live.prompt_tokens[place] + live.most_tokens[place] - live.prefilled_tokens[place]
        n_next: i64 = cohort.n_slots
        if n_left < n_next:
            n_next = n_left
        n_blocks = self._pool.blocks_in_step(live.prefilled_tokens[place], n_next)
        n_blocks -= self._contents.shared_with_others(place)
        free_blocks = self._pool.free_blocks - cohort.blocks_to_grow(1)
        return free_blocks >= 0 and n_blocks <= free_blocks

    def _swap_in(self, place: i64, now_ps: i64) -> None:
        """Copy the blocks of a request back."""
        live = self._live
        self._remove(place)
        self._running.returned.append(place)
        self._recorder.resume(live.row[place], live.preempted_ps[place], now_ps, is_swapped=True)
        n_found = self._contents.take_back(place)
        self._tier.swap_in(self._pool.blocks_for(live.prefilled_tokens[place]), n_found)
        live.phase[place], live.join_step[place] = DECODES, self._cohort.step
