"""Tiered: a replica with host memory, to which requests are swapped or prefixes offloaded."""

from typing import Any

from simserve.engine.offloading import OffloadingBatchState
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.engine.swapping import SwappingBatchState
from simserve.state.request import Request


class Tiered(Replica):
    """A replica with steps that wait for the copies from and to host memory that they need.

    Copies of a boundary precede its step, as in vLLM before V1 (worker/worker.py, execute_worker).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        batch = self.batch
        assert isinstance(batch, SwappingBatchState | OffloadingBatchState), "the batch state uses the tier"
        self.tier = batch.tier
        self._swapping = batch if isinstance(batch, SwappingBatchState) else None
        self._offloading = batch if isinstance(batch, OffloadingBatchState) else None

    @property
    def in_transit(self) -> list[Request]:
        """Requests swapped out."""
        return [] if self._swapping is None else list(self._swapping.swapped)

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Commit as any replica, and copy computed prefixes to the host."""
        if self._swapping is not None and self._swapping.returned and step_run.n_decoding:
            self._swapping.give_tokens(now_ps)
        super().commit(step_run, now_ps)
        self.tier.copy(now_ps)

    def decide(self, now_ps: int) -> None:
        """Swap requests in, then plan as any replica; the step begins when its copies have arrived."""
        swapping = self._swapping
        if swapping is not None:
            self._swap_in(swapping, now_ps)
        super().decide(now_ps)
        if self._offloading is not None:
            self._offloading.fetch()
        wait_ps = self.tier.copy(now_ps)
        step_run = self.step_run
        if step_run is None:
            return
        if wait_ps:
            step_run.last(step_run.first_ps + wait_ps)
            self._recorder.wait_for_copies(self.index, wait_ps)
        if swapping is not None:
            self._include_swapped(swapping, step_run)

    def _swap_in(self, swapping: SwappingBatchState, now_ps: int) -> None:
        """Swap requests in, in order, while there is room."""
        swapping.view.waiting = () if swapping.swapped else swapping.waiting
        while (request := swapping.next_to_swap_in()) is not None:
            swapping.swap_in(request, now_ps)
            self.cohort.join(request, self._rows.output_tokens[request.row] - request.emitted_tokens)
            if self._is_stateful:
                self._scheduler.on_join(request)

    def _include_swapped(self, swapping: SwappingBatchState, step_run: StepRun) -> None:
        """Count swapped requests as waiting. A request behind them may start one step after the last swap-in, and the
        spans of swapped-in requests go on with the token of that step."""
        if swapping.returned and step_run.n_steps > 1:
            step_run.cut(1)
        step_run.queue_len = len(swapping.waiting) + len(swapping.swapped)
        if swapping.swapped and self._blocked_by is None:
            is_full = len(swapping.running) >= self._scheduler.max_running
            self._blocked_code = BLOCKED_BY["seats" if is_full else "blocks"]

    def _still_decoding(self) -> list[Request]:
        """Return the requests with an open span; one swapped in without a new token has none."""
        returned = [] if self._swapping is None else self._swapping.returned
        return [request for request in super()._still_decoding() if request not in returned]
