"""ViewPlanner: a policy that looks at requests as objects, such as one of a plug-in, plans for requests in columns."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterator
from typing import Final, cast

from mypy_extensions import i64

from simserve.columns.lines import Line
from simserve.columns.live import MIGRATES, MOVES, Live
from simserve.columns.prompts import PromptColumns
from simserve.engine.checks import broke, check_prefill, checked_first_back, checked_plan, checked_victim
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.integers import NEVER
from simserve.schedulers.base import Scheduler
from simserve.state.planner import WORDS, Planner
from simserve.state.queues import Ordered, Waiting
from simserve.state.request import DECODE, DONE, PREFILL, TRANSFER, WAITING, Request
from simserve.state.walk import Walk

UNTOLD: Final = Scheduler()
"""Stands for a policy without state: its notices do nothing."""


class WithoutReading(Collection[Request]):
    """Waiting requests except those with a prefix on its way."""

    def __init__(self, waiting: Collection[Request], reading: Container[Request]) -> None:
        self._waiting, self._reading = waiting, reading

    def __iter__(self) -> Iterator[Request]:
        return filter(lambda request: request not in self._reading, self._waiting)

    def __contains__(self, request: object) -> bool:
        return request in self._waiting and request not in self._reading

    def __len__(self) -> int:
        return sum(1 for _ in self)


class PolicyQueue(Line):
    """Waiting requests in the queue of a policy; its head may change between two steps."""

    def __init__(self, live: Live, queue: Waiting) -> None:
        super().__init__(live)
        self.queue = queue

    def places(self) -> list[int]:
        """Return the places in order."""
        return [self._live.place_of(request) for request in self.queue]

    def first(self) -> i64:
        """Return the place of the head. Needs one."""
        return self._live.place_of(self.queue[0])

    def may_lead(self, place: i64) -> bool:
        """Return whether an arrival may go before the head, although that is blocked."""
        return cast(Ordered, self.queue).may_lead(self._live.requests[place])

    def clear(self) -> None:
        """Remove all requests."""
        for request in list(self.queue):
            self.queue.remove(request)
        self.n = 0

    def append(self, place: i64) -> None:
        """Add an arrival."""
        self.queue.append(self._live.requests[place])
        self.n += 1

    def append_left(self, place: i64) -> None:
        """Add a preempted request."""
        self.queue.appendleft(self._live.requests[place])
        self.n += 1

    def pop_left(self) -> i64:
        """Remove and return the head. Needs one."""
        place = self._live.place_of(self.queue.popleft())
        self.n -= 1
        return place

    def drop(self, place: i64) -> None:
        """Remove a request."""
        self.queue.remove(self._live.requests[place])
        self.n -= 1


class ViewPlanner(Planner):
    """Asks a policy with a view of the replica, and keeps the requests of that view as they are in columns."""

    def __init__(self, replica: Replica, live: Live) -> None:
        super().__init__()
        self.follows, self.looks = True, True
        self.reserves = replica.scheduler.reserves
        self._live, self._scheduler, self._batch, self._view = live, replica.scheduler, replica.batch, replica.view
        self._memory, self._notices = replica.memory, replica.scheduler if replica.scheduler.is_stateful else UNTOLD
        self._victims: list[Request] = []

    def queue(self) -> PolicyQueue:
        """Return the queue of the policy as a line of places."""
        return PolicyQueue(self._live, self._batch.waiting)

    def _now(self, member: Hashable) -> Request:
        """Return a request as it is now."""
        place = cast(int, member)
        return self._live.updated(self._live.requests[place], place)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def plan(self, walk: Walk) -> None:
        """Plan the next step. Raises PolicyError."""
        prompts, view, scheduler = cast(PromptColumns, walk), self._view, self._scheduler
        view.now_ps, view.n_decoding, view.n_running = prompts.now_ps, walk.n_decoding, walk.n_running
        view.free_blocks, view.just_preempted = walk.free_blocks, walk.just_preempted
        shown, reading = () if prompts.hides else self._batch.startable, self._memory.reading
        view.waiting = WithoutReading(shown, reading) if reading else shown
        plan = checked_plan(scheduler, view)
        self.blocked, self.decodes = BLOCKED_BY.get(plan.blocked_by, 0), plan.decode
        self.valid_steps, self.wake_ps = plan.valid_steps or 0, NEVER if plan.wake_at_ps is None else plan.wake_at_ps
        self._victims, self.preempts = list(plan.preempt), len(plan.preempt) > 0
        if self.preempts:
            return
        check_prefill(scheduler, view, plan)
        reserve_tokens = plan.reserve_tokens if self.reserves else [0] * len(plan.prefill)
        for (request, n_tokens), n_reserved in zip(plan.prefill, reserve_tokens, strict=True):
            if request.phase is WAITING and request not in self._batch.waiting:
                raise broke(scheduler, "plan", view.now_ps, "must prefill only requests of view.queue", request)
            prompts.go_to(self._live.place_of(request))
            prompts.take(n_tokens, n_reserved)

    def check_blocks(self, n_blocks: int) -> None:
        """Raise PolicyError if a step takes more blocks than were free."""
        if n_blocks > self._view.free_blocks:
            rule = f"must not take more blocks than the {self._view.free_blocks} free ones"
            raise broke(self._scheduler, "plan", self._view.now_ps, rule, n_blocks)

    def victims(self) -> list[int]:
        """Return the running requests that the plan preempts. Raises PolicyError."""
        for request in self._victims:
            if request not in self._batch.running:
                rule = "must preempt only requests of view.running"
                raise broke(self._scheduler, "plan", self._view.now_ps, rule, request)
        return [self._live.place_of(request) for request in self._victims]

    def victim(self) -> Hashable | None:
        """Return the request to preempt as blocks run out. Raises PolicyError."""
        return self._live.place_of(checked_victim(self._scheduler, self._view))

    def first_back(self, members: list[int], now_ps: int) -> Hashable:
        """Return the request to bring back next from host memory. Raises PolicyError."""
        swapped = [self._live.requests[place] for place in members]
        return self._live.place_of(checked_first_back(self._scheduler, swapped, now_ps))

    def steps_in_order(self, most_tokens: int) -> int | None:
        """Return decode steps for which the head of the queue surely stays the head; None: until others come or go."""
        return self._scheduler.steps_in_order(most_tokens)

    # -- requests come and go ------------------------------------------------------------------------------------------

    def committed(self, n_steps: i64, has_prefill: bool, blocked: i64) -> None:
        """Note that steps of a plan are over."""
        self._notices.on_commit(n_steps, has_prefill, WORDS[blocked])

    def admitted(self, member: Hashable) -> None:
        """Note that a request is about to get a slot."""
        request, batch = self._now(member), self._batch
        self._notices.on_admit(request)
        batch.running[request] = None
        batch.prefilling.append(request)
        request.phase = PREFILL

    def granted(self, member: Hashable) -> None:
        """Note that a request with a prompt of another replica is about to get a slot and blocks."""
        request = self._now(member)
        if self._live.phase[cast(int, member)] in (MOVES, MIGRATES):  # without views its own phase stays as is
            request.phase = TRANSFER
        self._notices.on_admit(request)

    def computed(self, member: Hashable) -> None:
        """Note that a part of a prompt is computed."""
        place = cast(int, member)
        request = self._now(member)
        request.padding_tokens = self._live.padding_tokens[place]
        if not self._live.left_tokens(place):
            self._batch.prefilling.remove(request)

    def joined(self, member: Hashable, prompt_tokens: int, most_tokens: int, emitted_tokens: int) -> None:
        """Note that a request decodes from the next step on."""
        request = self._now(member)
        request.phase = DECODE
        self._notices.on_join(request)

    def resumed(self, member: Hashable, prompt_tokens: int, most_tokens: int, emitted_tokens: int) -> None:
        """Note that a request decodes from the next step on with keys and values from elsewhere."""
        request = self._now(member)
        self._batch.running[request] = None
        request.phase = DECODE
        self._notices.on_resume(request)

    def accepted(self, member: Hashable, n_tokens: int) -> None:
        """Note that a request has produced n_tokens more than one a step."""
        self._notices.on_accept(self._live.requests[cast(int, member)], n_tokens)

    def left(self, member: Hashable) -> None:
        """Note that a decoding request has left, or that a first token was the last."""
        self._notices.on_leave(self._now(member))

    def requeued(self, member: Hashable, now_ps: int) -> None:
        """Note that a request has lost its slot, and waits again."""
        request, batch = self._now(member), self._batch
        if request.phase is PREFILL:
            batch.prefilling.remove(request)
        del batch.running[request]
        request.phase, request.preempted_at_ps = WAITING, now_ps

    def gone(self, member: Hashable, *, is_ended: bool) -> None:
        """Note that a request has no slot any more: it has ended, or another replica decodes it."""
        request = self._live.requests[cast(int, member)]
        if request.phase is PREFILL and request in self._batch.prefilling:
            self._batch.prefilling.remove(request)
        self._batch.running.pop(request, None)
        request.phase = DONE if is_ended else TRANSFER

    def abandoned_by(self, member: Hashable) -> None:
        """Note that the client of a request in prefill has given up."""
        self._notices.on_abandon(self._live.requests[cast(int, member)])

    def preempted(self) -> None:
        """Note that the next decode step has room again."""
        self._notices.on_preempt()

    def idle(self) -> None:
        """Note that no request runs or waits."""
        self._notices.on_idle()
