"""Clock and Alarm: simpy's environment in whole picoseconds, and a resettable event."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from mypy_extensions import mypyc_attr
from simpy import Environment
from simpy.core import EmptySchedule, StopSimulation

TRANSFER_PHASE = 1 << 19
"""Order of events at one instant: step ends commit first, in replica order (their priority is the replica's index,
below this), then transfers end, ..."""
READ_PHASE = (1 << 20) - 5
"""... and reads from host memory, ..."""
FLEET_PHASE = (1 << 20) - 4
"""... then replicas join, drain and fail ..."""
VIEW_PHASE = (1 << 20) - 3
"""... then routers' views of replicas are refreshed, if the views are delayed ..."""
RELEASE_PHASE = (1 << 20) - 2
"""... then requests go out that waited for a replica to be ready ..."""
SEND_PHASE = 1 << 20
"""... then requests with a computed prompt are routed, and new requests are sent and routed ..."""
PLAN_PHASE = 1 << 21
"""... then replicas plan, in replica order."""
END_PHASE = 1 << 22
"""The run may end after all other events of the instant."""


@mypyc_attr(native_class=False)  # simpy is not compiled
class Clock(Environment):
    """simpy environment that counts time as an integer number of picoseconds."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.events: list[tuple[Any, ...]] = self._queue
        """simpy's own heap of future events, (instant, ...) first.

        fast: code that sees no event before its own next one may set `_now` to that instant and continue, as simpy
        would, without pushing an entry onto the heap.
        """

    @property
    def now_ps(self) -> int:
        """The current instant."""
        return self._now  # type: ignore[return-value]  # only integers are ever scheduled

    def step(self) -> None:
        """Fire the next alarm; raises EmptySchedule when there is none.

        fast: alarms are the only events and have one action each, so the callbacks, values and failures that
        Environment.step handles are not needed.
        """
        if not self.events:
            raise EmptySchedule
        at_ps, _, _, alarm = heappop(self.events)
        self._now = at_ps
        if alarm.due_ps == at_ps:
            alarm.due_ps = None
            alarm.action(at_ps)

    def run(self, until: None = None) -> None:  # type: ignore[override]  # a run ends by itself, or by StopSimulation
        """Fire alarms until there is none, or one of them raises StopSimulation.

        fast: one loop, without a call of `step` for each alarm.
        """
        events = self.events
        try:
            while events:
                at_ps, _, _, alarm = heappop(events)
                self._now = at_ps
                if alarm.due_ps == at_ps:
                    alarm.due_ps = None
                    action = alarm.action  # fast: CPython looks for a method of this name first
                    action(at_ps)
        except StopSimulation:
            return


class Alarm:
    """Calls one action at an instant, with that instant; setting it again replaces the instant.

    fast: one object for the whole run. A replaced entry stays in simpy's heap and is skipped when its time comes, which
    costs less than an event, a process and an interrupt each time.
    """

    __slots__ = ("_eid", "_events", "_priority", "action", "due_ps")

    def __init__(self, clock: Clock, action: Callable[[int], None], phase: int) -> None:
        self.action = action
        self.due_ps: int | None = None
        self._priority = phase
        self._events, self._eid = clock.events, clock._eid

    def set(self, at_ps: int) -> None:
        """Fire at this instant instead of the one set before."""
        self.due_ps = at_ps
        heappush(self._events, (at_ps, self._priority, next(self._eid), self))  # fast: Environment.schedule, inlined
