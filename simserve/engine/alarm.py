"""Clock and Alarm: simpy's environment in whole picoseconds, and a resettable event, for what controls a fleet."""

from collections.abc import Callable
from typing import Any

from simpy import Environment, Event

from simserve.integers import NEVER

FLEET_PHASE = 0
"""Order at one instant of alarms at which replicas join, drain and fail; lower ones fire first."""


class Clock(Environment):
    """simpy environment that counts time as an integer number of picoseconds."""

    def __init__(self, on_alarm: Callable[[int], None] | None = None) -> None:
        """on_alarm: called with the instant of each alarm that is set."""
        super().__init__(initial_time=0)
        self.on_alarm = on_alarm

    @property
    def now_ps(self) -> int:
        """The current instant."""
        return self._now  # type: ignore[return-value]  # only integers are ever scheduled

    @property
    def next_ps(self) -> int:
        """The next instant with an alarm; NEVER when there is none."""
        return int(self._queue[0][0]) if self._queue else NEVER


class Alarm:
    """Calls one action at an instant, with that instant; setting it again replaces the instant.

    An action may return the next instant of its alarm, which then is set.
    """

    def __init__(self, clock: Clock, action: Callable[[int], int | None], phase: int) -> None:
        self.action = action
        self.due_ps: int | None = None
        self.phase = phase
        """Order of alarms at one instant; then they fire in the order of setting."""
        self._clock = clock

    def set(self, at_ps: int) -> None:
        """Fire at this instant instead of the one set before."""
        self.due_ps = at_ps
        event = Event(self._clock)
        event._ok, event._value = True, None
        event.callbacks = [self._fire]
        priority: Any = self.phase
        self._clock.schedule(event, priority, at_ps - self._clock.now_ps)
        if self._clock.on_alarm is not None:
            self._clock.on_alarm(at_ps)

    def _fire(self, _: Event) -> None:
        now_ps = self._clock.now_ps
        if self.due_ps == now_ps:  # otherwise it was set again since
            self.due_ps = None
            next_ps = self.action(now_ps)
            if next_ps is not None:
                self.set(next_ps)
