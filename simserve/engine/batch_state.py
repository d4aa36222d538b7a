"""BatchState: waiting and running requests and their KV blocks; consults the scheduler about them."""

from collections.abc import Sequence

from simserve.engine.checks import broke, checked_plan, checked_victim
from simserve.engine.recorder import Recorder
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.state.cohort import Cohort
from simserve.state.kv_pool import KvPool
from simserve.state.queues import Waiting
from simserve.state.request import DECODE, DONE, PREFILL, WAITING, Request
from simserve.state.view import ReplicaView


class BatchState:
    """The requests of one replica.

    Invariant: running = prefilling + members of the cohort; a request is waiting or running, never both; the pool's
    used blocks are those that the running requests fill.
    """

    def __init__(
        self,
        index: int,
        scheduler: Scheduler,
        recorder: Recorder,
        pool: KvPool,
        max_model_len: int,
        waiting: Waiting | None = None,
    ) -> None:
        self.waiting: Waiting = scheduler.queue() if waiting is None else waiting
        self.prefilling: list[Request] = []
        self.running: dict[Request, None] = {}
        self.cohort = Cohort(pool.block_size)
        self.pool = pool
        self._index = index
        self._scheduler = scheduler
        self._recorder = recorder
        self.view = ReplicaView(
            self.waiting, self.prefilling, self.running, pool.total_blocks, pool.block_size, max_model_len
        )
        """The scheduler's view; up to date whenever the scheduler is called."""
        self.n_promised = 0
        """Slots of requests in transfer to this replica."""

    def plan(self, now_ps: int, just_preempted: bool) -> StepPlan:
        """Return the scheduler's plan. Raises PolicyError."""
        view, cohort = self.view, self.cohort
        view.now_ps = now_ps
        view.n_decoding = cohort.n
        view.n_running = len(self.running) + self.n_promised
        view.free_blocks = self.pool.free_blocks
        if not self._scheduler.reserves:
            view.free_blocks -= cohort.crossings[cohort.step % cohort.block_size]  # what blocks_to_grow(1) is
        view.just_preempted = just_preempted
        return checked_plan(self._scheduler, view)

    def make_room(self, now_ps: int) -> bool:
        """Preempt until the decoding requests have blocks for their next step; return True if any was preempted."""
        just_preempted = False
        while not self._scheduler.reserves and self.cohort.blocks_to_grow(1) > self.pool.free_blocks:
            self.preempt_one(now_ps)
            just_preempted = True
        if just_preempted and self._scheduler.is_stateful:
            self._scheduler.on_preempt()
        return just_preempted

    def preempt_one(self, now_ps: int) -> None:
        """Preempt the scheduler's victim."""
        self.view.now_ps = now_ps
        self.preempt(checked_victim(self._scheduler, self.view), now_ps)

    def preempt_all(self, requests: Sequence[Request], now_ps: int) -> None:
        """Preempt requests in favor of a waiting one. Raises PolicyError unless they run."""
        for request in requests:
            if request not in self.running:
                raise broke(self._scheduler, "plan", now_ps, "must preempt only requests of view.running", request)
            self.preempt(request, now_ps)

    def preempt(self, request: Request, now_ps: int) -> None:
        """Take the blocks of a running request; it waits again and recomputes all its tokens."""
        if request.phase is DECODE:
            self.preempt_decoding(request, now_ps)
            return
        self.prefilling.remove(request)
        self.requeue(request, request.prefilled_tokens, now_ps)

    def preempt_decoding(self, request: Request, now_ps: int) -> None:
        """Preempt a decoding request."""
        self._recorder.span(self._index, request, self.cohort.step)
        self.requeue(request, self.stop_decoding(request), now_ps)

    def stop_decoding(self, request: Request) -> int:
        """Remove a request from the cohort before its end; return the tokens it holds."""
        kv_tokens = self.cohort.drop(request)
        if self._scheduler.is_stateful:
            self._scheduler.on_leave(request)
        return kv_tokens

    def requeue(self, request: Request, kv_tokens: int, now_ps: int) -> None:
        """Drop what a request has computed and queue it again."""
        self.leave(request, kv_tokens)
        self._recorder.preempt(request.row, kv_tokens)
        request.phase = WAITING
        request.prefilled_tokens = 0
        request.n_preemptions += 1
        request.preempted_at_ps = now_ps
        if self._scheduler.requeues_last:
            self.waiting.append(request)
        else:
            self.waiting.appendleft(request)

    def admit(self, request: Request, reserve_tokens: int, now_ps: int) -> None:
        """Give a waiting request a slot and what its policy reserves; it is nearly always the head of the queue."""
        if self.waiting and self.waiting[0] is request:
            self.waiting.popleft()
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            raise broke(self._scheduler, "plan", now_ps, "must prefill only requests of view.queue", request)
        if self._scheduler.is_stateful:
            self._scheduler.on_admit(request)
        self.running[request] = None
        self.prefilling.append(request)
        request.phase = PREFILL
        if reserve_tokens:
            request.reserved_blocks = -(-reserve_tokens // self.pool.block_size)
            self.pool.reserve(request.reserved_blocks)
        if request.n_preemptions:
            self._recorder.resume(request.row, request.preempted_at_ps, now_ps)
        else:
            self._recorder.scheduled_ps[request.row] = now_ps
            self._recorder.replica[request.row] = self._index

    def abandon(self, request: Request) -> None:
        """Remove a timed-out request: from the queue, or from its slot and blocks."""
        if request.phase is WAITING:
            self.waiting.remove(request)  # in order of arrival, timed-out requests come first
            request.phase = DONE
            return
        if request.phase is DECODE:
            self._recorder.span(self._index, request, self.cohort.step)
            kv_tokens = self.stop_decoding(request)
        else:
            self.prefilling.remove(request)
            kv_tokens = request.prefilled_tokens
            if self._scheduler.is_stateful:
                self._scheduler.on_abandon(request)
        self.leave(request, kv_tokens)

    def leave(self, request: Request, kv_tokens: int) -> None:
        """Free the slot and blocks of a request."""
        del self.running[request]
        request.phase = DONE
        self.give_back(request, kv_tokens)

    def give_back(self, request: Request, kv_tokens: int) -> int:
        """Free the blocks of a request, used and reserved; return how many used ones become free."""
        n_used = -(-kv_tokens // self.pool.block_size)
        n_reserved = request.reserved_blocks
        self.pool.release(n_used, n_reserved - n_used if n_reserved else 0)
        request.reserved_blocks = 0
        return n_used
