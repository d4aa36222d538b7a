"""Line: requests in a row, each linked to the one behind it; Coming: those that the scheduler sees some steps later."""

from __future__ import annotations

from mypy_extensions import i64

from simserve.columns.live import Live
from simserve.integers import NONE


class Line:
    """Places in a row, each linked to the one behind it."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.n: i64 = 0
        self.head: i64 = NONE
        self.tail: i64 = NONE

    def __len__(self) -> int:
        return self.n

    def places(self) -> list[int]:
        """Return the places in order."""
        place, places = self.head, []
        for _ in range(self.n):
            places.append(int(place))
            place = self._live.after[place]
        return places

    def first(self) -> i64:
        """Return the head. Needs one."""
        return self.head

    def may_lead(self, place: i64) -> bool:
        """Return whether an arrival may go before the head, although that is blocked."""
        return False

    def drop(self, place: i64) -> None:
        """Remove a place; O(n)."""
        at, n = self.head, self.n
        self.n = 0
        for _ in range(n):
            after = self._live.after[at]
            if at != place:
                self.append(at)
            at = after

    def clear(self) -> None:
        """Remove all places."""
        self.n = 0

    def append(self, place: i64) -> None:
        """Add a place at the end."""
        after = self._live.after
        after[place] = NONE
        if self.n:
            after[self.tail] = place
        else:
            self.head = place
        self.tail = place
        self.n += 1

    def append_left(self, place: i64) -> None:
        """Add a place before all others."""
        self._live.after[place] = self.head if self.n else NONE
        if not self.n:
            self.tail = place
        self.head = place
        self.n += 1

    def pop_left(self) -> i64:
        """Remove and return the head. Needs one."""
        place = self.head
        self.head = self._live.after[place]
        self.n -= 1
        return place

    def keep(self, phase: i64) -> None:
        """Keep those in a phase, in order."""
        live, place, n = self._live, self.head, self.n
        self.n = 0
        for _ in range(n):
            after = live.after[place]
            if live.phase[place] == phase:
                self.append(place)
            place = after


class Coming(Line):
    """Arrivals that the scheduler sees some steps later, as steps are planned ahead or it looks for them only after
    every few decode steps. It also looks after a step with prompts."""

    def __init__(self, live: Live, interval: i64) -> None:
        super().__init__(live)
        self._interval = interval
        """Decode steps after which it looks."""
        self.skips = interval > 1
        """It does not look after every step."""
        self._n_begun: i64 = 0
        self._n_looked: i64 = 0
        """Steps that had begun when it last looked."""

    @property
    def looks(self) -> bool:
        """It looks as the last step ends."""
        return self._n_looked == self._n_begun

    def come(self, place: i64, n_steps: i64) -> None:
        """Keep an arrival until it looks, when n_steps more have begun or later."""
        self._live.due_step[place] = self._n_begun + n_steps
        self.append(place)

    def seen_after(self, n_steps: i64) -> i64:
        """Return the decode steps until it sees what can be seen n_steps from now."""
        late = (self._n_begun + n_steps - self._n_looked) % self._interval
        return n_steps + self._interval - late if late else n_steps

    def left(self, place: i64) -> i64:
        """Return the decode steps that an arrival still waits for."""
        return self.seen_after(self._live.due_step[place] - self._n_begun)

    def left_steps(self) -> list[int]:
        """Return the decode steps that each arrival still waits for."""
        return [int(self.left(place)) for place in self.places()]

    def show(self, n_steps: i64, has_prefill: bool, waiting: Line) -> None:
        """Let n_steps begin: queue the arrivals that can be seen when it looks."""
        self._n_begun += n_steps
        since = self._n_begun - self._n_looked
        self._n_looked += since if has_prefill else since - since % self._interval
        due_step = self._live.due_step
        while self.n and due_step[self.head] <= self._n_looked:
            waiting.append(self.pop_left())

    def show_all(self, waiting: Line) -> None:
        """Queue all arrivals, as no step runs that they could miss."""
        self._n_looked = self._n_begun
        while self.n:
            waiting.append(self.pop_left())
