"""BatchState: waiting and running requests of a replica; consults the scheduler about them."""

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from typing import Final, cast

from simserve.engine.checks import broke, check_prefill, checked_first_back, checked_plan, checked_victim
from simserve.engine.memory import Memory
from simserve.engine.recorder import Recorder
from simserve.engine.swapping import SwapQueue
from simserve.schedulers.base import Scheduler
from simserve.state.cohort import Cohort
from simserve.state.queues import Ordered
from simserve.state.request import DECODE, DONE, PREFILL, WAITING, Request
from simserve.state.step_plan import StepPlan
from simserve.state.view import ReplicaView

NO_LIMIT = 1 << 62

UNTOLD: Final = Scheduler()
"""Stands for a policy without state: its notices do nothing."""


class WithoutReading:
    """Waiting requests except those with a prefix on its way."""

    def __init__(self, waiting: Collection[Request], reading: Container[Request]) -> None:
        self._waiting = waiting
        self._reading = reading

    def __iter__(self) -> Iterator[Request]:
        for request in self._waiting:
            if request not in self._reading:
                yield request

    def __contains__(self, request: object) -> bool:
        return request in self._waiting and request not in self._reading

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
        memory: Memory,
        cohort: Cohort,
        max_model_len: int,
        swap: SwapQueue | None = None,
        *,
        reads_ahead: bool = False,
    ) -> None:
        pool = memory.pool
        self.waiting = scheduler.queue()
        self.coming: list[tuple[Request, int]] = []
        """(request, steps that begin before the scheduler sees it) of arrivals while steps are planned ahead."""
        self.startable: Collection[Request] = self.waiting
        """Waiting requests that the scheduler may start."""
        self.prefilling: list[Request] = []
        self.running: dict[Request, None] = {}
        self.cohort = cohort
        self.memory = memory
        self.pool = pool
        self.swap = swap
        """Where preempted decoding requests go; None: they recompute."""
        self.swapped: Collection[Request] = () if swap is None else swap.swapped
        """Requests that wait in host memory."""
        self.reads_ahead = reads_ahead
        """Prefixes are read from host memory while steps go on."""
        self._index = index
        self._scheduler = scheduler
        self.notices = scheduler if scheduler.is_stateful else UNTOLD
        """What is told of changes: a policy that keeps state, or nothing."""
        self._reserves, self._has_ids = scheduler.reserves, memory.has_ids  # fast: attributes of classes, found once
        self._recorder = recorder
        self.view = ReplicaView(
            self.waiting, self.prefilling, self.running, pool.total_blocks, pool.block_size, max_model_len
        )
        """The scheduler's view; up to date whenever the scheduler is called."""
        self.view.decode_tokens, self.view.layers = cohort.n_tokens, pool.layers
        self.view.finder = memory if memory.caches else None
        self.release: Callable[[Request, int], int] = memory.release if cohort.n_slots == 1 else self._release_kept_too
        """Frees the blocks of a request with a number of tokens; returns how many used ones become free."""
        self.max_running = NO_LIMIT if scheduler.max_running is None else scheduler.max_running
        """Slots."""
        self.n_promised = 0
        """Slots of requests in transfer to this replica."""
        self.n_away = 0
        """Requests with blocks here that have left for another replica, or are in transfer to this one."""
        self.n_before_queue = 0
        """Requests from other replicas that had no blocks here at the last plan."""

    def plan(self, now_ps: int, just_preempted: bool) -> StepPlan:
        """Return the scheduler's plan. Raises PolicyError."""
        view = self.view
        view.now_ps = now_ps
        view.n_decoding = self.cohort.n
        view.n_running = len(self.running) + self.n_promised
        free_blocks = self.pool.free_blocks
        view.free_blocks = free_blocks if self._reserves else free_blocks - self.cohort.blocks_of_next()
        view.just_preempted = just_preempted
        if not self._has_ids:
            return checked_plan(self._scheduler, view)
        self.memory.forget_hits()
        if not self.memory.reading:
            return checked_plan(self._scheduler, view)
        shown, view.waiting = view.waiting, WithoutReading(view.waiting, self.memory.reading)
        plan = checked_plan(self._scheduler, view)
        view.waiting = shown
        return plan

    def begin_read(self, plan: StepPlan, now_ps: int) -> bool:
        """Begin to read the prefix of the first new request of a plan that needs it; return whether there is one.

        Raises PolicyError for a request with a prefix on its way.
        """
        check_prefill(self._scheduler, self.view, plan)
        for request, _ in plan.prefill:
            if request.phase is WAITING and request.finder is self.memory:
                if request in self.memory.reading:
                    raise broke(self._scheduler, "plan", now_ps, "must prefill only requests of view.queue", request)
                if request.idle_hit_blocks <= self.view.free_blocks and self.memory.reads_first(request):
                    return True
        return False

    def make_room(self, now_ps: int) -> bool:
        """Preempt until the decoding requests have blocks for their next step; return True if any was preempted."""
        just_preempted = False
        while not self._scheduler.reserves and self.cohort.blocks_to_grow(1) > self.pool.free_blocks:
            self.preempt_one(now_ps)
            just_preempted = True
        if just_preempted and self.swapped:
            self.view.waiting = ()  # but a request for which the policy itself preempts starts at once
        if just_preempted:
            self.notices.on_preempt()
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
        """Take the blocks of a running request; it waits again, in host memory or to recompute all its tokens."""
        is_decoding, kv_tokens = request.phase is DECODE, request.prefilled_tokens
        findable_tokens = kv_tokens
        if is_decoding:
            kv_tokens = self._stop_decoding(request)
            if self._scheduler.caches_answers:
                findable_tokens = kv_tokens
            self._free_proposed(request)
        else:
            self.prefilling.remove(request)
        del self.running[request]
        self.memory.preempt(request, kv_tokens, findable_tokens)
        if is_decoding and self.swap is not None and self.swap.has_room(kv_tokens):
            self.swap.swap_out(request, kv_tokens, now_ps)
        else:
            self._requeue(request, kv_tokens, now_ps)

    def _stop_decoding(self, request: Request) -> int:
        """Remove a request from the cohort before its end; return the tokens it holds."""
        if self.swap is None or not self.swap.has_returned(request):
            self._recorder.span(self._index, request, self.cohort.step)
        kv_tokens = self.cohort.drop(request)
        self.notices.on_leave(request)
        return kv_tokens

    def _requeue(self, request: Request, kv_tokens: int, now_ps: int) -> None:
        """Queue a preempted request again, which has to compute what it does not find."""
        self._recorder.preempt(request.row, kv_tokens)
        request.phase = WAITING
        request.finder = self.memory if self.memory.keeps else None
        request.prefilled_tokens = 0
        request.n_preemptions += 1
        request.preempted_at_ps = now_ps
        if self._scheduler.requeues_last:
            self.waiting.append(request)
        else:
            self.waiting.appendleft(request)

    @property
    def has_prompts(self) -> bool:
        """Prompts are in a slot, or wait for one that is free."""
        return bool(self.prefilling) or (bool(self.waiting) and len(self.running) < self.max_running)

    @property
    def only_waits(self) -> bool:
        """Requests are there, and none decodes."""
        return not self.cohort.n and bool(self.waiting or self.prefilling or self.coming)

    def show(self, n_steps: int) -> None:
        """Let n_steps begin: queue the arrivals that have waited for as many."""
        self.waiting.extend(request for request, n in self.coming if n <= n_steps)
        self.coming[:] = [(request, n - n_steps) for request, n in self.coming if n > n_steps]

    def forget_coming(self, request: Request) -> bool:
        """Drop an arrival that the scheduler has not seen; return whether it was one."""
        n_before = len(self.coming)
        self.coming[:] = [each for each in self.coming if each[0] is not request]
        return len(self.coming) < n_before

    def may_lead(self, request: Request) -> bool:
        """Return whether an arrival may go before the head of a queue that the policy orders."""
        return bool(self.memory.reading or cast(Ordered, self.waiting).may_lead(request))

    def stored_tokens(self, request: Request) -> int:
        """Return the tokens stored for a request, on the GPU or in host memory."""
        if request.phase is WAITING:
            return request.prefilled_tokens if request in self.swapped else 0
        return self.cohort.stored_tokens(request) if request.phase is DECODE else request.prefilled_tokens

    def swap_in(self, swap: SwapQueue, now_ps: int) -> Iterator[Request]:
        """Give swapped requests their blocks again, in the policy's order, while there is room; each must join before
        the next.

        The scheduler sees no new request at a boundary that begins with a swapped one.
        """
        self.view.waiting = () if swap.swapped else self.startable
        while swap.swapped and len(self.running) + self.n_promised < self.max_running:
            request = checked_first_back(self._scheduler, swap.swapped, now_ps)
            if not swap.fits(request, self.pool.free_blocks - self.cohort.blocks_to_grow(1), self.cohort.n_slots):
                return
            swap.swap_in(request, now_ps)
            yield request

    def admit(self, request: Request, reserve_tokens: int, now_ps: int) -> None:
        """Give a waiting request a slot and what its policy reserves; it is nearly always the head of the queue."""
        if self.waiting and self.waiting[0] is request:
            self.waiting.popleft()
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            raise broke(self._scheduler, "plan", now_ps, "must prefill only requests of view.queue", request)
        if self.notices is not UNTOLD:  # fast: nearly never
            self.notices.on_admit(request)
        self.running[request] = None
        self.prefilling.append(request)
        request.phase = PREFILL
        if reserve_tokens:
            request.reserved_blocks = self.pool.most_blocks(reserve_tokens)
        if request.n_preemptions:
            self._recorder.resume(request.row, request.preempted_at_ps, now_ps)
        else:
            self._recorder.scheduled_ps[request.row] = now_ps
            self._recorder.replica[request.row] = self._index
        if request.finder is not None or reserve_tokens:
            self.memory.admit(request)

    def abandon(self, request: Request) -> None:
        """Remove a timed-out request: from the queue, or from its slot and blocks."""
        if request.phase is WAITING:
            self.memory.forget(request)
            if self.swap is not None and request in self.swap.swapped:
                self.swap.abandon(request)
            else:
                self.waiting.remove(request)  # in order of arrival, timed-out requests come first
            request.phase = DONE
            return
        if request.phase is DECODE:
            kv_tokens = self._stop_decoding(request)
        else:
            self.prefilling.remove(request)
            kv_tokens = request.prefilled_tokens
            self.notices.on_abandon(request)
        self.leave(request, kv_tokens)

    def withdraw(self, request: Request) -> None:
        """Take the slot of a request in prefill; it keeps its blocks."""
        self.prefilling.remove(request)
        del self.running[request]
        request.phase = DONE
        self.notices.on_abandon(request)

    def leave(self, request: Request, kv_tokens: int) -> None:
        """Free the slot and blocks of a request."""
        del self.running[request]
        request.phase = DONE
        release = self.release
        release(request, kv_tokens)

    def _release_kept_too(self, request: Request, kv_tokens: int) -> int:
        """Free the blocks of a request, those for proposed tokens too; return how many used ones become free."""
        n_kept = self._free_proposed(request)
        return self.memory.release(request, kv_tokens) + n_kept

    def _free_proposed(self, request: Request) -> int:
        """Free the blocks of a request for proposed tokens; return their number."""
        n_kept = self.cohort.pop_kept_blocks(request)
        if n_kept:
            self.pool.drop(n_kept, to_reserved=request.reserved_blocks > 0)
        return n_kept
