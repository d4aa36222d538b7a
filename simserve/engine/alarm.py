"""Clock and Alarm: simpy's environment in whole picoseconds, and a resettable event."""

from collections.abc import Callable
from heapq import heappop, heappush, heappushpop

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
    """simpy environment that counts time as an integer number of picoseconds.

    Invariant: each instant of the heap is there once, and has an alarm.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.instants: list[int] = []
        """Heap of the future instants at which alarms were set.

        fast: code that sees no event before its own next one may set `_now` to that instant and continue, as simpy
        would, without pushing it onto the heap. Integers are compared in a third of the time of simpy's entries.
        """
        self.alarms: dict[int, Alarm] = {}
        """An alarm set for each of these instants: nearly always the only one."""
        self.shared: dict[int, list[tuple[int, int, Alarm]]] = {}
        """Heaps of (phase, number of the setting, alarm), for instants with several."""

    @property
    def now_ps(self) -> int:
        """The current instant."""
        return self._now  # type: ignore[return-value]  # only integers are ever scheduled

    def peek(self) -> float:
        """Return the next instant, infinity when there is none."""
        return self.instants[0] if self.instants else float("inf")

    def share(self, at_ps: int, alarm: "Alarm") -> None:
        """Add an alarm to those of an instant: they fire by phase, then in the order of setting."""
        entries = self.shared.get(at_ps)
        if entries is None:
            first = self.alarms[at_ps]
            entries = self.shared[at_ps] = [(first.phase, -1, first)]
        heappush(entries, (alarm.phase, next(self._eid), alarm))

    def _first_of(self, at_ps: int) -> "Alarm":
        """Return the first of several alarms of an instant, which leaves the heap; the others stay."""
        entries = self.shared[at_ps]
        alarm = heappop(entries)[2]
        if not entries:
            del self.shared[at_ps]
        else:
            self.alarms[at_ps] = alarm
            heappush(self.instants, at_ps)
        return alarm

    def step(self) -> None:
        """Fire the next alarm; raises EmptySchedule when there is none.

        fast: alarms are the only events and have one action each, so the callbacks, values and failures that
        Environment.step handles are not needed.
        """
        if not self.instants:
            raise EmptySchedule
        at_ps = heappop(self.instants)
        self._now = at_ps
        alarm = self.alarms.pop(at_ps)
        if at_ps in self.shared:
            alarm = self._first_of(at_ps)
        if alarm.due_ps == at_ps:
            alarm.due_ps = None
            next_ps = alarm.action(at_ps)
            if next_ps is not None:
                alarm.set(next_ps)

    def run(self, until: None = None) -> None:  # type: ignore[override]  # a run ends by itself, or by StopSimulation
        """Fire alarms until there is none, or one of them raises StopSimulation.

        fast: one loop, without a call of `step` for each alarm or of `set` for those that fire again.
        """
        instants, alarms, shared = self.instants, self.alarms, self.shared
        pop = alarms.pop
        if not instants:
            return
        at_ps = heappop(instants)
        try:
            while True:
                self._now = at_ps
                alarm = pop(at_ps)
                if shared and at_ps in shared:
                    alarm = self._first_of(at_ps)
                if alarm.due_ps == at_ps:
                    alarm.due_ps = None
                    action = alarm.action  # fast: CPython looks for a method of this name first
                    next_ps = action(at_ps)
                    if next_ps is not None:
                        alarm.due_ps = next_ps
                        if next_ps in alarms:
                            self.share(next_ps, alarm)
                        else:
                            alarms[next_ps] = alarm
                            at_ps = heappushpop(instants, next_ps)
                            continue
                if not instants:
                    return
                at_ps = heappop(instants)
        except StopSimulation:
            return


class Alarm:
    """Calls one action at an instant, with that instant; setting it again replaces the instant.

    An action may return the next instant of its alarm, which then is set.

    fast: one object for the whole run. A replaced instant stays in the heap and is skipped when its time comes, which
    costs less than an event, a process and an interrupt each time.
    """

    __slots__ = ("_alarms", "_clock", "_instants", "action", "due_ps", "phase")

    def __init__(self, clock: Clock, action: Callable[[int], int | None], phase: int) -> None:
        self.action = action
        self.due_ps: int | None = None
        self.phase = phase
        """Order of events at one instant."""
        self._clock, self._instants, self._alarms = clock, clock.instants, clock.alarms

    def set(self, at_ps: int) -> None:
        """Fire at this instant instead of the one set before."""
        self.due_ps = at_ps
        alarms = self._alarms
        if at_ps in alarms:
            self._clock.share(at_ps, self)
        else:
            alarms[at_ps] = self
            heappush(self._instants, at_ps)
