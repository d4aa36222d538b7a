"""UnitTurns: when the step of each unit ends, and which units plan at an instant, in the order of replicas."""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import i64

from simserve.columns.units import StepUnit
from simserve.integers import NEVER, NONE, Tournament, filled, vec, widened


class HungUnit(StepUnit):
    """A unit that ends the step in flight, and begins no other."""

    def __init__(self, unit: StepUnit) -> None:
        super().__init__(unit.place)
        self._unit = unit

    def end_ps(self) -> i64:
        """Return the end of the step run in flight; NEVER without one."""
        return self._unit.end_ps()

    def plan(self, now_ps: i64) -> None:
        """Begin nothing."""
        if not self._unit.steps:
            self._unit.halt()

    @property
    def steps(self) -> bool:
        """A step is in flight."""
        return self._unit.steps

    def commit(self, now_ps: i64) -> None:
        """Record what is over, and apply it."""
        self._unit.commit(now_ps)

    def halt(self) -> None:
        """Neither end the step in flight nor plan of itself any more."""
        self._unit.halt()


class InTurn:
    """Places in order, each once."""

    def __init__(self, most: i64) -> None:
        self.places: vec[i64] = filled(most, NONE)
        self.n: i64 = 0

    def add(self, place: i64) -> None:
        """Add a place, unless it is there."""
        places, at = self.places, self.n
        for i in range(at):
            if places[i] == place:
                return
        while at and places[at - 1] > place:
            places[at] = places[at - 1]
            at -= 1
        places[at] = place
        self.n += 1

    def remove(self, place: i64) -> None:
        """Remove a place, if it is there."""
        n: i64 = 0
        for i in range(self.n):
            if self.places[i] != place:
                self.places[n] = self.places[i]
                n += 1
        self.n = n

    def widen(self, most: i64) -> None:
        """Make room for so many places."""
        if most > len(self.places):
            self.places = widened(self.places, most)


class UnitTurns:
    """When the step of each unit ends, and which units plan at this instant."""

    def __init__(self) -> None:
        self._units: list[StepUnit] = []
        """What each replica steps with."""
        self.ends = Tournament(1)
        """End of each unit's step run, at the place of its first replica."""
        self._planning = InTurn(1)

    def add(self, units: Sequence[StepUnit]) -> None:
        """Add what the next replicas step with."""
        self._units.extend(units)
        self.ends.widen(len(self._units))
        self._planning.widen(len(self._units))

    @property
    def are_left(self) -> bool:
        """Units plan at this instant."""
        return self._planning.n > 0

    def follow(self, place: i64, is_idle: bool) -> None:
        """Let a replica plan in its turn if it is idle; otherwise its step run may have been cut."""
        unit = self._units[place]
        if is_idle:
            self._planning.add(unit.place)
        else:
            self.ends.set(unit.place, unit.end_ps())

    def commit(self, place: i64, now_ps: i64) -> None:
        """Commit a step run that ends at this very instant; the replica plans."""
        self._units[place].commit(now_ps)
        self.ends.set(place, NEVER)
        self._planning.add(place)

    def plan(self, now_ps: i64) -> None:
        """Let the units plan that have no step in flight and something to do."""
        planning = self._planning
        for i in range(planning.n):
            unit = self._units[planning.places[i]]
            unit.plan(now_ps)
            self.ends.set(unit.place, unit.end_ps())
        planning.n = 0

    def hang(self, place: i64) -> None:
        """Let the unit of a replica begin no step any more."""
        unit = self._units[self._units[place].place]
        self._units[unit.place] = HungUnit(unit)

    def halt(self, place: i64) -> None:
        """Let the step in flight of a replica neither end nor another one begin."""
        unit = self._units[place]
        unit.halt()
        self.ends.set(unit.place, NEVER)
        self._planning.remove(unit.place)
