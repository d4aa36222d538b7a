"""Clock and Alarm: simpy's environment in whole picoseconds, and an event that can be set again and again."""

from collections.abc import Callable
from heapq import heappush
from typing import Any

from simpy import Environment, Event
from simpy.events import EventPriority

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


class Alarm(Event):
    """Calls one action, with the instant, at an instant; setting it again replaces the instant.

    fast: one object for the whole run. An entry that was replaced stays in simpy's heap and is passed over when its
    time comes, which costs less than an event, a process and an interrupt each time.
    """

    def __init__(self, clock: Clock, action: Callable[[int], None], phase: int) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        self._clock = clock
        self._action = action
        self._priority = EventPriority(phase)
        self._fires: list[Callable[[Any], None]] = [self._fire]
        self.callbacks = self._fires
        self._events, self._eid = clock.events, clock._eid
        self.due_ps: int | None = None

    def set(self, at_ps: int) -> None:
        """Fire at that instant, and not at the one set before."""
        self.due_ps = at_ps
        heappush(self._events, (at_ps, self._priority, next(self._eid), self))  # fast: Environment.schedule, inlined

    def _fire(self, _: Event) -> None:
        self.callbacks = self._fires  # simpy took it; a replaced entry may still come
        now_ps = self._clock._now
        if now_ps == self.due_ps:
            self.due_ps = None
            self._action(now_ps)  # type: ignore[arg-type]  # only integers are ever scheduled
