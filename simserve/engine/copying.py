"""Copying: the hooks of a replica with host memory: swapped requests return, and steps wait for copies."""

from simserve.engine.alarm import READ_PHASE, Alarm, Clock
from simserve.engine.hooks import Hooks
from simserve.engine.host_tier import HostStore, HostTier, Sharer
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.state.step_plan import Blocked


class Copying(Hooks):
    """Copies between the GPUs of a replica and its tiers.

    Copies of a boundary precede its step, as in vLLM before V1 (worker/worker.py, execute_worker).
    """

    def __init__(self, replica: Replica, tier: HostTier, clock: Clock, store: HostStore | None) -> None:
        self._replica, self._tier = replica, tier
        self._batch, self._cohort, self._in_flight = replica.batch, replica.cohort, replica.in_flight
        self._reads_end = Alarm(clock, self._on_read, READ_PHASE)
        if store is not None:
            store.sharers.append(Sharer(replica.id, tier, self._on_store_change))

    def before_plan(self, now_ps: int) -> None:
        """Let requests decode that have their keys and values again, before others get slots and blocks."""
        self._tier.is_planning = True
        self._replica.role.let_decode()
        if self._batch.swap is not None:
            for request in self._batch.swap_in(self._batch.swap, now_ps):
                self._replica.join(request)

    def after_plan(self, step_run: StepRun | None, now_ps: int) -> Blocked | None:
        """Lengthen a step by the copies it waits for; return what keeps out swapped requests."""
        batch, cohort, tier = self._batch, self._cohort, self._tier
        batch.memory.fetch()
        tier.is_planning = False
        wait_ps = tier.copy(now_ps)
        self._await_reads()
        if step_run is None:
            return None
        due_ps = self._reads_end.due_ps
        if due_ps is not None and step_run.n_steps > 1 and due_ps < step_run.end_ps:
            step_run.cut(max(1, step_run.steps_done(due_ps)))  # their blocks come before those of the read, in turn
        if wait_ps:
            step_run.wait_ps = wait_ps
            step_run.last(step_run.first_ps + wait_ps)
        if cohort.drops is not None and step_run.n_decoding:
            # what leaves a window gets its ids then, and is copied from the end of that step on
            step_run.cut(min(step_run.n_steps, cohort.drops.next_step - cohort.step))
        swap = batch.swap
        if swap is None:
            return None
        if swap.returned and step_run.n_steps > 1:
            step_run.cut(1)  # their spans go on with its token; a request behind them may start after it
        if len(swap.swapped) > 1 and self._replica.scheduler.orders and self._replica.scheduler.is_stateful:
            step_run.cut(1)  # another may be first to return after each token, and may fit
        step_run.queue_len += len(swap.swapped)
        if not swap.swapped:
            return None
        return "seats" if len(batch.running) >= batch.max_running else "blocks"

    def before_commit(self, step_run: StepRun, now_ps: int) -> None:
        """Record the wait of a step, and give returned requests their token."""
        if step_run.wait_ps:
            self._replica.recorder.wait_for_copies(self._replica.id, step_run.wait_ps)
        if self._batch.swap is not None and step_run.n_decoding:
            self._batch.swap.give_tokens(self._cohort, now_ps)

    def after_commit(self, now_ps: int) -> None:
        """Copy to host memory."""
        self._tier.copy(now_ps)

    def fail(self) -> None:
        """Lose the copies in flight."""
        self._batch.memory.reading.clear()
        self._reads_end.due_ps = None
        self._tier.fail()

    def _await_reads(self) -> None:
        """Wake when the first of the reads in flight ends."""
        end_ps = min((read.end_ps for read in self._batch.memory.reading.values()), default=None)
        if end_ps is not None and end_ps != self._reads_end.due_ps:
            self._reads_end.set(end_ps)

    def _on_read(self, now_ps: int) -> None:
        """Let requests find what has been read; they may start at the next step boundary."""
        self._in_flight.see(now_ps)
        self._in_flight.free(self._batch.memory.end_reads(now_ps))
        self._await_reads()
        self._replica.stepping.wake(now_ps)

    def _on_store_change(self, now_ps: int) -> None:
        """Plan again at the next step boundary if the head of the queue waits for blocks: its hit may change."""
        if self._replica.blocked_by == "blocks" and self._in_flight.step_run is not None:
            self._replica.stepping.wake(now_ps)
