"""Tiered: a replica with host memory beside its GPUs, to which requests are swapped or prefixes offloaded."""

from typing import Any

from simserve.engine.offloading import OffloadingBatchState
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.engine.swapping import SwappingBatchState
from simserve.state.request import Request


class Tiered(Replica):
    """A replica whose steps wait for the copies from and to host memory that they need.

    Copies of a boundary go before its step, as vLLM did it before V1 (worker/worker.py, execute_worker).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        batch = self.batch
        assert isinstance(batch, SwappingBatchState | OffloadingBatchState), "a tier is for seats that use it"
        self.tier = batch.tier
        self._swapping = batch if isinstance(batch, SwappingBatchState) else None
        self._offloading = batch if isinstance(batch, OffloadingBatchState) else None

    @property
    def on_their_way(self) -> list[Request]:
        """Those swapped out."""
        return [] if self._swapping is None else list(self._swapping.swapped)

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """As any replica; copies of the prefixes that it has computed go to the host."""
        if self._swapping is not None and self._swapping.returned and step_run.n_decoding:
            self._swapping.give_tokens(now_ps)
        super().commit(step_run, now_ps)
        self.tier.copy(now_ps)

    def decide(self, now_ps: int) -> None:
        """Bring back who was swapped out, then as any replica; the step begins when its copies are there."""
        swapping = self._swapping
        if swapping is not None:
            self._bring_back(swapping, now_ps)
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
            self._go_on(swapping, step_run)

    def _bring_back(self, swapping: SwappingBatchState, now_ps: int) -> None:
        """In order, as long as there is room."""
        swapping.view.waiting = () if swapping.swapped else swapping.waiting
        while (request := swapping.next_back()) is not None:
            swapping.bring_back(request, now_ps)
            self.cohort.join(request, self._rows.output_tokens[request.row] - request.emitted_tokens)
            if self._is_stateful:
                self._scheduler.on_join(request)

    def _go_on(self, swapping: SwappingBatchState, step_run: StepRun) -> None:
        """Those swapped out count as waiting. Who waits behind them may start a step after the last came back, and the
        spans of those who have go on with the token of that step."""
        if swapping.returned and step_run.n_steps > 1:
            step_run.cut(1)
        step_run.queue_len = len(swapping.waiting) + len(swapping.swapped)
        if swapping.swapped and self._blocked_by is None:
            is_full = len(swapping.running) >= self._scheduler.max_running
            self._blocked_code = BLOCKED_BY["seats" if is_full else "blocks"]

    def _still_decoding(self) -> list[Request]:
        """Who has come back and had no token since has told all that it has to tell."""
        returned = [] if self._swapping is None else self._swapping.returned
        return [request for request in super()._still_decoding() if request not in returned]
