"""Clock and Alarm: simpy's environment in whole picoseconds, and an event that can be set again and again."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simpy import Environment
from simpy.core import EmptySchedule

TRANSFER_PHASE = 1 << 19
"""At one instant step ends commit first, in replica order (their priority is the replica's index, below this), then
transfers end ..."""
VIEW_PHASE = (1 << 20) - 2
"""... then routers have news of their replicas, unless they see what is true at every instant ..."""
SEND_PHASE = 1 << 20
"""... then those are routed whose prompt is computed, and requests are sent and routed ..."""
PLAN_PHASE = 1 << 21
"""... then replicas plan, in their order too."""
END_PHASE = 1 << 22
"""After all that the run may end."""


class Clock(Environment):
    """simpy's environment whose time is an integer number of picoseconds."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.events: list[tuple[Any, ...]] = self._queue
        """simpy's own heap of what is to come, (instant, ...) first.

        fast: whoever sees that nothing comes before its own next event may set `_now` to that event's instant and go
        on, which is what simpy would do, without putting it in the heap first.
        """

    @property
    def now_ps(self) -> int:
        """The current instant."""
        return self._now  # type: ignore[return-value]  # only integers are ever scheduled

    def step(self) -> None:
        """Fire the next alarm; raises EmptySchedule when there is none.

        fast: alarms are all there is to come, and have one action each, so Environment.step's way with the callbacks,
        values and failures of an event is not needed.
        """
        if not self.events:
            raise EmptySchedule
        at_ps, _, _, alarm = heappop(self.events)
        self._now = at_ps
        if alarm.due_ps == at_ps:
            alarm.due_ps = None
            alarm.action(at_ps)


class Alarm:
    """Calls one action, with the instant, at an instant; setting it again replaces the instant.

    fast: one object for the whole run. An entry that was replaced stays in simpy's heap and is passed over when its
    time comes, which costs less than an event, a process and an interrupt each time.
    """

    __slots__ = ("_eid", "_events", "_priority", "action", "due_ps")

    def __init__(self, clock: Clock, action: Callable[[int], None], phase: int) -> None:
        self.action = action
        self.due_ps: int | None = None
        self._priority = phase
        self._events, self._eid = clock.events, clock._eid

    def set(self, at_ps: int) -> None:
        """Fire at that instant, and not at the one set before."""
        self.due_ps = at_ps
        heappush(self._events, (at_ps, self._priority, next(self._eid), self))  # fast: Environment.schedule, inlined
