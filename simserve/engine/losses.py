"""Losses: requests that lost their replica, and what becomes of each."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simserve.engine.alarm import Clock
from simserve.engine.deadlines import Deadlines
from simserve.engine.recorder import NEVER as NO_REPLICA
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.integers import NEVER
from simserve.tables.why import Reason


@dataclass(frozen=True)
class Rescue:
    """What is saved of a replica that is lost."""

    resends: bool = False
    """The gateway sends once more the requests of which no token was sent, and ..."""
    moves: bool = False
    """... goes on elsewhere with the others: tokens sent are a part of the new prompt."""
    most_sends: int = NEVER
    """How often it sends a request, at most."""
    keeps_host: bool = False
    """Host memory outlives a process that restarts."""
    with_kv: bool = False
    """What goes on elsewhere takes its keys and values along, as the replica is not dead."""

    @property
    def dead(self) -> "Rescue":
        """What is saved of a replica that is dead."""
        return replace(self, with_kv=False)


ALL_LOST: Final = Rescue()
"""Nothing is saved."""


@dataclass
class LostLife:
    """A request that was lost with its replica."""

    row: int
    life: Hashable
    """What it was until now: a step may still compute it."""
    n_emitted: int
    """Tokens that it has produced in this life."""
    n_stored: int
    """Tokens stored for it."""
    left_ps: int
    """When it lost its blocks."""


@dataclass(frozen=True)
class Carried:
    """What a request brings that goes on elsewhere."""

    n_tokens: int
    """Tokens that its client had when it lost its replica."""
    left_ps: int


class Losses:
    """Decides about requests that lost their replica."""

    def __init__(
        self,
        clock: Clock,
        recorder: Recorder,
        replicas: Sequence[Replica],
        deadlines: Deadlines | None,
        send_again: Callable[[int], None],
        on_failure: Callable[[int, int], None] | None,
    ) -> None:
        self._clock, self._recorder, self._replicas, self._deadlines = clock, recorder, replicas, deadlines
        self._send_again, self._on_failure = send_again, on_failure
        self.failed_ps: dict[int, int] = {}
        """When each row failed that did."""
        self.carried: dict[int, Carried] = {}
        """What goes on elsewhere, by row."""
        self._n_sends: dict[int, int] = {}
        self._departed: dict[int, tuple[Reason, Rescue]] = {}
        """Why rows left a replica that have their keys and values there, and what is saved of it."""

    def departs(self, row: int, why: Reason, rescue: Rescue) -> bool:
        """Return whether a request that decodes may go on elsewhere with its keys and values."""
        self._departed[row] = why, rescue
        has_gone = self._deadlines is not None and self._deadlines.has_gone(row)
        return rescue.moves and self._n_sends.get(row, 1) < rescue.most_sends and not has_gone

    def go_on(self, row: int, life: Hashable) -> None:
        """Let a request go on elsewhere with its keys and values."""
        self._n_sends[row] = self._n_sends.get(row, 1) + 1
        self._recorder.move(row, life, 0)

    def leave_behind(self, lost: LostLife) -> None:
        """Lose the keys and values of a request that departs, as no replica can use them."""
        self.take(lost, *self._departed[lost.row])

    def n_carried(self, row: int) -> int:
        """Return the tokens that a client had when its request last lost a replica and went on."""
        return self.carried[row].n_tokens if row in self.carried else 0

    def take(self, lost: LostLife, why: Reason, rescue: Rescue) -> None:
        """Send a request again, let it go on elsewhere, or let it fail."""
        deadlines, recorder = self._deadlines, self._recorder
        row, n_sends = lost.row, self._n_sends.get(lost.row, 1)
        if deadlines is not None and deadlines.has_gone(row):
            deadlines.left(row, lost.n_stored)
            return
        n_tokens = self.n_carried(row) + lost.n_emitted
        if n_sends >= rescue.most_sends or not (rescue.moves and self._streams(row) if n_tokens else rescue.resends):
            recorder.n_failures[row] += 1
            self.fail(row, lost.n_stored, f"its replica was lost: {why.words}")
            return
        self._n_sends[row] = n_sends + 1
        if n_tokens:
            self.carried[row] = Carried(n_tokens, lost.left_ps)
            recorder.move(row, lost.life, lost.n_stored)
        else:
            recorder.restart(row, lost.life, lost.n_stored, self._clock.now_ps)
        if deadlines is not None:
            deadlines.back_at_gateway(row)
        self._send_again(row)

    def _streams(self, row: int) -> bool:
        """Return whether a client has each token as it is computed."""
        place = self._recorder.replica[row]
        return place == NO_REPLICA or self._replicas[place].streams

    def fail(self, row: int, n_stored: int, why: str) -> None:
        """Let a request fail that lost its replica."""
        now_ps = self._clock.now_ps
        self._recorder.fail(row, n_stored, why, has_first=self._streams(row))
        self.failed_ps[row] = now_ps
        if self._deadlines is not None:
            self._deadlines.placed(row, None)
        if self._on_failure is not None:
            self._on_failure(row, now_ps)
