"""Sessions of the oracle: every row is checked again and again until it may be sent."""

from dataclasses import dataclass, field

from simserve.units import to_ps
from simserve.workload.trace import Dependencies, Trace


@dataclass
class OracleSessions:
    """Lists of dependencies, and when each client had its answer."""

    trace: Trace
    n_users: int | None
    """None: sessions begin at their arrivals."""
    respond_ps: int
    stop_ps: int | None
    n_timed: int = 0
    """Rows at the end that have their own times beside those of users."""
    sent: list[int] = field(default_factory=list)
    has_ps: dict[int, int] = field(default_factory=dict)
    """When the client of each answered row had its answer, or went on without."""
    refused: set[int] = field(default_factory=set)
    begin_ps: dict[int, int] = field(default_factory=dict)
    """Start of the sessions that users have chosen, by their first rows."""
    over: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        result = self.trace.dependencies or Dependencies.none(len(self.trace))
        starts = result.starts.tolist()
        self.parents = [result.parents[starts[i] : starts[i + 1]].tolist() for i in range(len(result))]
        self.think_ps = [to_ps(think_s) for think_s in result.think_s.tolist()]
        self.session: list[int] = []
        """The row that began the session of each row."""
        for row, parents in enumerate(self.parents):
            self.session.append(self.session[parents[0]] if parents else row)
        for _ in range(self.n_users or 0):
            self.begin_next(0)

    @property
    def first_timed(self) -> int:
        return len(self.parents) - self.n_timed

    def rows(self, session: int) -> list[int]:
        return [row for row in range(len(self.parents)) if self.session[row] == session]

    def has_ended(self, row: int) -> bool:
        """Return whether a request of its session was refused for good."""
        return any(self.session[other] == self.session[row] for other in self.refused)

    def begin_next(self, at_ps: int, *, after_thinking: bool = False) -> None:
        """Begin the first session that has no user yet."""
        rest = [row for row in range(self.first_timed) if not self.parents[row] and row not in self.begin_ps]
        if rest:
            self.begin_ps[rest[0]] = at_ps + (self.think_ps[rest[0]] if after_thinking else 0)

    def due_ps(self, row: int) -> int | None:
        """Return when a row is sent, if known and still to come; else None."""
        if row in self.sent or self.has_ended(row):
            return None
        if self.parents[row]:
            if any(parent not in self.has_ps for parent in self.parents[row]):
                return None
            at_ps = max(self.has_ps[parent] for parent in self.parents[row]) + self.think_ps[row]
        elif self.n_users is None or row >= self.first_timed:
            at_ps = to_ps(float(self.trace.arrival_s[row]))
        elif row in self.begin_ps:
            at_ps = self.begin_ps[row]
        else:
            return None
        return None if self.stop_ps is not None and at_ps >= self.stop_ps else at_ps

    def instants(self) -> list[int]:
        return [at_ps for row in range(len(self.parents)) if (at_ps := self.due_ps(row)) is not None]

    def due(self, now_ps: int) -> list[int]:
        """Return the unsent rows of this instant, in their order."""
        return [row for row in range(len(self.parents)) if self.due_ps(row) == now_ps]

    def send(self, now_ps: int) -> list[int]:
        """Send the rows of this instant."""
        due = self.due(now_ps)
        self.sent += due
        return due

    def answer(self, row: int, now_ps: int) -> None:
        self.have(row, now_ps + self.respond_ps)

    def have(self, row: int, at_ps: int) -> None:
        """Handle an answer that its client has at an instant, or no longer waits for."""
        self.has_ps[row] = at_ps
        self.end(row, at_ps)

    def refuse(self, row: int, now_ps: int) -> None:
        self.refused.add(row)
        self.end(row, now_ps)

    def end(self, row: int, at_ps: int) -> None:
        """End a session; when its last sent request has ended and none is left, its user is free."""
        session = self.session[row]
        rows = self.rows(session)
        waits = [other for other in rows if other in self.sent and other not in {*self.has_ps, *self.refused}]
        more = [other for other in rows if other not in self.sent] if not self.has_ended(row) else []
        if not waits and not more and session not in self.over:
            self.over.add(session)
            if self.n_users is not None and session < self.first_timed:
                self.begin_next(at_ps, after_thinking=True)
