"""Fair shares: what each tenant has been served, and the queue in which who was served least is first (VTC)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import SupportsIndex

from simserve.state.queues import Lines, came_at
from simserve.state.request import Request


@dataclass(slots=True)
class _Account:
    """What a tenant has been served since its counter was last lifted.

    Tokens out at a step are out_tokens + n_decoding * step: who begins to decode takes the step off, who ends puts it
    on again, so that no step has to be booked.
    """

    weight: float
    lifted: float = 0.0
    """What the counter was lifted to."""
    input_tokens: int = 0
    out_tokens: int = 0
    n_decoding: int = 0


class TokenCounters:
    """The virtual token counters of VTC ("Fairness in Serving Large Language Models", OSDI '24, algorithm 2).

    Input tokens count when a request is admitted for the first time, output tokens as they come. All is whole numbers
    until a counter is read, so that k steps at once leave what they leave one by one.

    Invariant: the n_decoding of all tenants = the requests that decode.
    """

    def __init__(self, input_weight: float, output_weight: float, tenant_weights: Mapping[str, float]) -> None:
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._weights = tenant_weights
        self._accounts: dict[str, _Account] = {}
        self._decoding: set[Request] = set()
        self.step = 0
        """Decode steps done."""

    def __getitem__(self, tenant: str) -> float:
        """What a tenant's counter shows."""
        account = self._account(tenant)
        out_tokens = account.out_tokens + account.n_decoding * self.step
        served = self._input_weight * account.input_tokens + self._output_weight * out_tokens
        return account.lifted + served / account.weight

    def cost(self, request: Request) -> float:
        """What admitting a request adds to its tenant's counter: nothing if it was admitted before."""
        if request.n_preemptions:
            return 0.0
        return self._input_weight * request.prompt_tokens / self._account(request.tenant).weight

    def per_step(self, tenant: str) -> float:
        """What each decode step adds to a tenant's counter."""
        account = self._account(tenant)
        return self._output_weight * account.n_decoding / account.weight

    def lift(self, tenant: str, least: float) -> None:
        """Who comes back has saved up nothing: its counter is at least that."""
        if self[tenant] < least:
            account = self._account(tenant)
            account.lifted, account.input_tokens = least, 0
            account.out_tokens = -account.n_decoding * self.step

    def admit(self, request: Request) -> None:
        """A request is admitted; one that was preempted has been charged already."""
        if not request.n_preemptions:
            self._account(request.tenant).input_tokens += request.prompt_tokens

    def advance(self, n_steps: int) -> None:
        """Each decoding request has had so many tokens more."""
        self.step += n_steps

    def join(self, request: Request) -> None:
        """It has had a token at the end of its prefill, and decodes."""
        account = self._account(request.tenant)
        account.out_tokens += 1 - self.step
        account.n_decoding += 1
        self._decoding.add(request)

    def leave(self, request: Request) -> None:
        """It decodes no more; or its first token, which it has just had, was its last here."""
        account = self._account(request.tenant)
        if request not in self._decoding:
            account.out_tokens += 1
            return
        account.out_tokens += self.step
        account.n_decoding -= 1
        self._decoding.remove(request)

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(self._weights.get(tenant, 1.0))
        return account


class ByService(Lines[str]):
    """A line a tenant; next is the first of the one whose counter is lowest, of equal ones the one who came first.

    Counters are as of a step boundary, so who comes between two is taken in (`settle`) when the next is planned.
    """

    def __init__(self, counters: TokenCounters) -> None:
        super().__init__()
        self._counters = counters
        self._newcomers: list[Request] = []
        self._left_last: str | None = None
        """The tenant of whom the last one who waited went."""

    def append(self, request: Request) -> None:
        """Somebody came."""
        self._newcomers.append(request)

    def settle(self) -> None:
        """Take in who came. A tenant of whom nobody waited is lifted to the lowest counter of those who wait, or to
        that of the tenant who was the last to wait."""
        if not self._newcomers:
            return
        newcomers, self._newcomers = self._newcomers, []
        for request in sorted(newcomers, key=came_at):
            if request.tenant not in self._lines:
                self._lift(request.tenant)
            super().append(request)

    def may_lead(self, request: Request) -> bool:
        """Nobody of its tenant waits: it is lifted, and may be the next."""
        return request.tenant not in self._lines

    def steps_in_order(self) -> int | None:
        """Decode steps for which the head surely remains the head, at least 1; None: it does until somebody comes, is
        admitted, or ends. Too few do no harm."""
        if len(self._lines) < 2:
            return None
        counters, head = self._counters, self._first()
        at, pace = counters[head], counters.per_step(head)
        paces = [(counters[tenant], counters.per_step(tenant)) for tenant in self._lines]
        caught_up = [(other - at) / (pace - slower) for other, slower in paces if slower < pace]
        return max(int(min(caught_up)) - 1, 1) if caught_up else None

    def remove(self, request: Request) -> None:
        """Take out anybody; who leaves before being taken in has lifted nobody."""
        if request in self._newcomers:
            self._newcomers.remove(request)
        else:
            super().remove(request)

    def _lift(self, tenant: str) -> None:
        if self._lines:
            self._counters.lift(tenant, min(self._counters[other] for other in self._lines))
        elif self._left_last is not None:
            self._counters.lift(tenant, self._counters[self._left_last])

    def _line_of(self, request: Request) -> str:
        return request.tenant

    def _first(self) -> str:
        return min(self._lines, key=lambda tenant: (self._counters[tenant], came_at(self._lines[tenant][0])))

    def _closed(self, key: str) -> None:
        self._left_last = key

    def __contains__(self, request: object) -> bool:
        return request in self._newcomers or super().__contains__(request)

    def __len__(self) -> int:
        return self._n + len(self._newcomers)

    def __getitem__(self, place: SupportsIndex) -> Request:
        self.settle()
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Request]:
        """As they would be admitted one after the other: each is charged before the next is chosen. Who is not taken in
        comes last, for whoever only looks, between two steps, must lift nobody."""
        counters = self._counters
        heap = []
        for tenant, line in self._lines.items():
            rest = iter(line)
            first = next(rest)
            heap.append((counters[tenant], came_at(first), first, rest))
        heapify(heap)
        while heap:
            counter, _, request, rest = heap[0]
            yield request
            following = next(rest, None)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (counter + counters.cost(request), came_at(following), following, rest))
        yield from self._newcomers
