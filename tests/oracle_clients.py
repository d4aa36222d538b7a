"""Oracle of clients that time out and retry: lists searched at every instant."""

from collections.abc import Callable
from dataclasses import dataclass, field

from simserve.engine.offered import Patience
from simserve.workload.trace import Trace


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
    concurrency: int | None
    patience: Patience
    enter: Callable[[int, int], int]
    """(now, prompt tokens): when a request leaves the front end."""
    respond_ps: int
    server: Server
    attempts: list[Attempt] = field(default_factory=list)
    plans: list[tuple[int, int, int | None, Attempt | None]] = field(default_factory=list)
    """(instant, number, row of the load, failed attempt): future sends; without both, the next row."""
    n_plans: int = 0
    n_fresh: int = 0

    def start(self, arrivals_ps: list[int]) -> None:
        for row, at_ps in enumerate(arrivals_ps if self.concurrency is None else []):
            self.plan(at_ps, row=row)
        for _ in range(self.concurrency or 0):
            self.plan(0)

    def plan(self, at_ps: int, row: int | None = None, failed: Attempt | None = None) -> None:
        self.plans.append((at_ps, self.n_plans, row, failed))
        self.n_plans += 1

    def instants(self) -> list[int]:
        result = [at_ps for at_ps, *_ in self.plans]
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
            for attempt in sorted(self.gone(), key=lambda each: (each.gave_up_ps, self.order_of_giving_up(each))):
                attempt.has_left = self.server.leave(attempt.row, now_ps)
            self.give_up_all(now_ps)
            if not any(at_ps <= now_ps for at_ps, *_ in self.plans):
                return

    def gone(self) -> list[Attempt]:
        return [each for each in self.attempts if each.gave_up_ps is not None and each.is_routed and not each.has_left]

    def order_of_giving_up(self, attempt: Attempt) -> tuple[bool, int]:
        """Order of time-outs at one instant: first those without a first token, then in the order of sending."""
        assert attempt.gave_up_ps is not None
        waited_ps = attempt.gave_up_ps - attempt.sent_ps
        return waited_ps != self.patience.ttft_ps, self.attempts.index(attempt)

    def send_all(self, now_ps: int) -> None:
        while True:
            due = sorted(plan[:2] for plan in self.plans if plan[0] <= now_ps)
            in_front_end = [each for each in self.attempts if not each.is_routed and each.out_ps <= now_ps]
            if due:
                plan = next(plan for plan in self.plans if plan[:2] == due[0])
                self.plans.remove(plan)
                self.go(plan[2], plan[3], now_ps)
            elif in_front_end:
                self.route(in_front_end[0], now_ps)
            else:
                return

    def go(self, row: int | None, failed: Attempt | None, now_ps: int) -> None:
        n_load = len(self.trace)
        if failed is not None:
            row = n_load + sum(each.number > 1 for each in self.attempts)
        elif row is None:
            if self.n_fresh == n_load:
                return
            row, self.n_fresh = self.n_fresh, self.n_fresh + 1
        original = row if failed is None else failed.original
        number = 1 if failed is None else failed.number + 1
        out_ps = self.enter(now_ps, int(self.trace.prompt_tokens[original]))
        self.attempts.append(Attempt(row, original, number, now_ps, out_ps))

    def route(self, attempt: Attempt, now_ps: int) -> None:
        attempt.is_routed = True
        if attempt.is_over:
            attempt.has_left = True
            return
        refusal = self.server.send(attempt.row, attempt.original, now_ps)
        if refusal is not None:
            attempt.is_over = attempt.has_left = True
            if refusal == "impossible":
                self.next_request(now_ps)
            else:
                self.fail(attempt, now_ps)

    def give_up_all(self, now_ps: int) -> None:
        for limit_ps, n_needed in ((self.patience.ttft_ps, 1), (self.patience.e2e_ps, None)):
            for attempt in self.attempts:
                if limit_ps is None or attempt.is_over or attempt.sent_ps + limit_ps != now_ps:
                    continue
                if n_needed is None or self.n_tokens_at(attempt, now_ps) < n_needed:
                    attempt.is_over, attempt.gave_up_ps = True, now_ps
                    attempt.has_left = attempt.is_routed and self.server.leave(attempt.row, now_ps)
                    self.fail(attempt, now_ps)

    def n_tokens_at(self, attempt: Attempt, now_ps: int) -> int:
        return sum(at_ps + self.respond_ps <= now_ps for at_ps in self.server.token_ps(attempt.row))

    def fail(self, attempt: Attempt, now_ps: int) -> None:
        backoff = self.patience.backoff
        if backoff is not None and attempt.number < backoff.max_attempts:
            self.plan(now_ps + backoff.wait_ps(attempt.original, attempt.number), failed=attempt)
        else:
            self.next_request(now_ps)

    def next_request(self, at_ps: int) -> None:
        if self.concurrency is not None:
            self.plan(at_ps)

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
        self.next_request(has_it_ps)
