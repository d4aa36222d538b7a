"""Alarms fire by instant, then by phase, then in the order of setting; only the last setting of each counts."""

from collections.abc import Callable
from random import Random

import pytest

from simserve.engine.alarm import Alarm, Clock
from simserve.integers import NEVER


class Played:
    """Alarms on a clock whose actions set alarms at random, few instants ahead so that many share one."""

    def __init__(self, seed: int, n_sets: int) -> None:
        self.clock = Clock()
        self.fired: list[tuple[int, int]] = []
        """(instant, alarm) of each action."""
        self.expected: list[tuple[int, int]] = []
        self._random = Random(seed)
        self._left = n_sets
        self._entries: list[tuple[int, int, int, int]] = []
        """(instant, phase, number of the setting, alarm), as simpy would order them."""
        self._due: dict[int, int] = {}
        phases = [self._random.randrange(3) for _ in range(6)]
        self._alarms = [(Alarm(self.clock, self._action(place), phase), phase) for place, phase in enumerate(phases)]

    def set_some(self, now_ps: int) -> None:
        """Set one to three alarms, at this instant or later."""
        for _ in range(min(self._left, self._random.randrange(1, 4))):
            self._left -= 1
            place, at_ps = self._random.randrange(len(self._alarms)), now_ps + self._random.randrange(4)
            self._note(place, at_ps)
            self._alarms[place][0].set(at_ps)

    def _note(self, place: int, at_ps: int) -> None:
        self._entries.append((at_ps, self._alarms[place][1], -self._left, place))
        self._due[place] = at_ps

    def _again(self, place: int, now_ps: int) -> int | None:
        """Return a next instant of this alarm, or none."""
        if not self._left or self._random.randrange(2):
            return None
        self._left -= 1
        self._note(place, now_ps + self._random.randrange(4))
        return self._due[place]

    def _action(self, place: int) -> Callable[[int], int | None]:
        def act(now_ps: int) -> int | None:
            self.fired.append((now_ps, place))
            self.expected.append(self._next())
            self.set_some(now_ps)
            return self._again(place, now_ps)

        return act

    def _next(self) -> tuple[int, int]:
        """Return the first entry that counts, and drop it."""
        while True:
            at_ps, _, _, place = entry = min(self._entries)
            self._entries.remove(entry)
            if self._due.get(place) == at_ps:
                del self._due[place]
                return at_ps, place


@pytest.mark.parametrize("seed", range(30))
def test_alarms_fire_in_order(seed: int) -> None:
    played = Played(seed, 200)
    played.set_some(0)
    while played.clock.next_ps < NEVER:
        played.clock.step()
    assert played.fired == played.expected
    assert len({at_ps for at_ps, _ in played.fired}) < len(played.fired)
