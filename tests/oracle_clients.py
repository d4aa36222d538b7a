"""Oracle of clients that time out and retry: lists searched at every instant."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from simserve.engine.offered import Backoff, Patience
from simserve.units import to_ps
from simserve.workload.trace import Trace
from tests.oracle_sessions import OracleSessions


@dataclass
class Attempt:
    """A request as its client sees it."""

    row: int
    original: int
    number: int
    """Attempt number: 1, 2, ..."""
    sent_ps: int
    out_ps: int
    """When it leaves the front end."""
    is_routed: bool = False
    is_over: bool = False
    """Its client has the answer, was refused or has given up."""
    gave_up_ps: int | None = None
    has_left: bool = False
    """No server holds it."""


@dataclass
class Server:
    """Operations of the cluster that clients use, by row."""

    send: Callable[[int, int, int], str | None]
    """(row, the load's row, now): "impossible", "turned away", or None."""
    token_ps: Callable[[int], list[int]]
    """Times of its tokens so far, on the client's side at the latest."""
    leave: Callable[[int, int], bool]
    """(row, now): True if it could leave at once."""


@dataclass
class OracleClients:
    """All clients of a run."""

    trace: Trace
    sessions: OracleSessions
    patience: Patience
    enter: Callable[[int, int], int]
    """(now, prompt tokens): when a request leaves the front end."""
    respond_ps: int
    server: Server
    attempts: list[Attempt] = field(default_factory=list)
    gone: list[Attempt] = field(default_factory=list)
    """Those whose client has given up, the first first; at one instant, those without a first token come first."""
    retries: list[tuple[int, int, Attempt]] = field(default_factory=list)
    """(instant, row, failed attempt): future attempts."""
    sent_ps: list[int] = field(default_factory=list)
    """Send time of each row; of an unsent one, its arrival in the load, or when the attempt before it was sent."""
    history: list[str] = field(default_factory=list)
    """`first` for each first attempt that was sent, and `retry` for each retry that was decided."""

    def __post_init__(self) -> None:
        self.sent_ps += [to_ps(float(sent_s)) for sent_s in self.trace.arrival_s]

    def instants(self) -> list[int]:
        result = self.sessions.instants() + [at_ps for at_ps, *_ in self.retries]
        for attempt in self.attempts:
            if not attempt.is_routed:
                result.append(attempt.out_ps)
            if not attempt.is_over:
                result += self.deadlines_ps(attempt)
        return result

    def deadlines_ps(self, attempt: Attempt) -> list[int]:
        limits = (self.patience.ttft_ps, self.patience.e2e_ps)
        return [attempt.sent_ps + limit for limit in limits if limit is not None]

    def act(self, now_ps: int) -> None:
        """Run all client events of this instant."""
        while True:
            self.send_all(now_ps)
            for attempt in [each for each in self.gone if each.is_routed and not each.has_left]:
                attempt.has_left = self.server.leave(attempt.row, now_ps)
            self.give_up_all(now_ps)
            if not self.due(now_ps):
                return

    def due(self, now_ps: int) -> list[int]:
        """Return the rows to send by now, first the first."""
        return sorted(self.sessions.due(now_ps) + [row for at_ps, row, _ in self.retries if at_ps <= now_ps])

    def send_all(self, now_ps: int) -> None:
        while True:
            due = self.due(now_ps)
            in_front_end = [each for each in self.attempts if not each.is_routed and each.out_ps <= now_ps]
            if due:
                self.go(due[0], now_ps)
            elif in_front_end:
                self.route(in_front_end[0], now_ps)
            else:
                return

    def go(self, row: int, now_ps: int) -> None:
        failed = next((failed for _, other, failed in self.retries if other == row), None)
        if failed is None:
            self.sessions.sent.append(row)
            self.history.append("first")
        self.retries = [retry for retry in self.retries if retry[1] != row]
        self.sent_ps[row] = now_ps
        original = row if failed is None else failed.original
        number = 1 if failed is None else failed.number + 1
        out_ps = self.enter(now_ps, int(self.trace.prompt_tokens[original]))
        self.attempts.append(Attempt(row, original, number, now_ps, out_ps))

    def route(self, attempt: Attempt, now_ps: int) -> None:
        attempt.is_routed = True
        if attempt.is_over:
            attempt.has_left = True
            return
        self.refused(attempt, self.server.send(attempt.row, attempt.original, now_ps), now_ps)

    def release(self, row: int, now_ps: int) -> None:
        """Route a request that waited for a replica, unless its client has given up."""
        attempt = self.of(row)
        if not attempt.is_over:
            self.refused(attempt, self.server.send(row, attempt.original, now_ps), now_ps)

    def of(self, row: int) -> Attempt:
        """Return the attempt of a row."""
        return next(each for each in self.attempts if each.row == row)

    def has_gone(self, row: int) -> bool:
        """Return whether the client of a row has given up."""
        return self.of(row).gave_up_ps is not None

    def lose(self, row: int, now_ps: int) -> None:
        """Let the client of a row know that it was lost."""
        attempt = self.of(row)
        attempt.is_over = attempt.has_left = True
        self.fail(attempt, now_ps)

    def refused(self, attempt: Attempt, refusal: str | None, now_ps: int) -> None:
        if refusal is not None:
            attempt.is_over = attempt.has_left = True
            if refusal == "impossible":
                self.end_session(attempt, now_ps)
            else:
                self.fail(attempt, now_ps)

    def give_up_all(self, now_ps: int) -> None:
        for limit_ps, n_needed in ((self.patience.ttft_ps, 1), (self.patience.e2e_ps, None)):
            for attempt in self.attempts:
                if limit_ps is None or attempt.is_over or attempt.sent_ps + limit_ps != now_ps:
                    continue
                if n_needed is None or self.n_tokens_at(attempt, now_ps) < n_needed:
                    attempt.is_over, attempt.gave_up_ps = True, now_ps
                    self.gone.append(attempt)
                    attempt.has_left = attempt.is_routed and self.server.leave(attempt.row, now_ps)
                    self.fail(attempt, now_ps)

    def n_tokens_at(self, attempt: Attempt, now_ps: int) -> int:
        return sum(at_ps + self.respond_ps <= now_ps for at_ps in self.server.token_ps(attempt.row))

    def fail(self, attempt: Attempt, now_ps: int) -> None:
        backoff, sessions = self.patience.backoff, self.sessions
        has_more = backoff is not None and attempt.number < backoff.max_attempts
        if backoff is not None and has_more and not sessions.has_ended(attempt.original) and self.has_token(backoff):
            self.history.append("retry")
            at_ps = now_ps + backoff.wait_ps(attempt.original, attempt.number)
            if sessions.stop_ps is None or at_ps < sessions.stop_ps:
                self.retries.append((at_ps, len(self.sent_ps), attempt))
            self.sent_ps.append(attempt.sent_ps)
        elif self.patience.goes_on:
            sessions.have(attempt.original, now_ps)
        else:
            self.end_session(attempt, now_ps)

    def has_token(self, backoff: Backoff) -> bool:
        """Return whether the retry budget has a token left, from all that was sent so far."""
        if backoff.budget_frac is None:
            return True
        tokens = Fraction(backoff.budget_burst)
        for event in self.history:
            tokens += Fraction(str(backoff.budget_frac)) if event == "first" else -1
            tokens = min(tokens, Fraction(backoff.budget_burst))
        return tokens >= 1

    def end_session(self, attempt: Attempt, now_ps: int) -> None:
        """End a session: no attempt of its requests is sent any more."""
        session = self.sessions.session[attempt.original]
        for at_ps, row, failed in list(self.retries):
            if self.sessions.session[failed.original] == session:
                self.retries.remove((at_ps, row, failed))
                self.sessions.refused.add(failed.original)
        self.sessions.refuse(attempt.original, now_ps)

    def answered(self, row: int, now_ps: int) -> None:
        """Handle a last token: in time, if no deadline comes before the client has it."""
        attempt = next(each for each in self.attempts if each.row == row)
        if attempt.is_over:
            return
        has_it_ps = now_ps + self.respond_ps
        if self.patience.e2e_ps is not None and has_it_ps > attempt.sent_ps + self.patience.e2e_ps:
            return
        first_ps = self.server.token_ps(row)[0] + self.respond_ps
        if self.patience.ttft_ps is not None and first_ps > attempt.sent_ps + self.patience.ttft_ps:
            return
        attempt.is_over = attempt.has_left = True
        self.sessions.have(attempt.original, has_it_ps)
