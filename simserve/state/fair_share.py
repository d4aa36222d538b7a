"""Fair shares (VTC): the service of each tenant, and a queue that puts the least-served tenant first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import SupportsIndex

from simserve.state.queues import Lines, came_at
from simserve.state.request import TRANSFER, Request


@dataclass(slots=True)
class _Account:
    """Service of a tenant since its counter was last lifted. Output tokens at a step are out_tokens + n_decoding *
    step: a request subtracts the step when it joins and adds it when it leaves, so single steps need no bookkeeping."""

    weight: float
    lifted: float = 0.0
    """Value to which the counter was lifted."""
    input_tokens: int = 0
    out_tokens: int = 0
    n_decoding: int = 0


class TokenCounters:
    """The virtual token counters of VTC ("Fairness in Serving Large Language Models", OSDI '24, algorithm 2).

    Input tokens count at the first admission of a request, output tokens as they are produced. All is integer until a
    counter is read, so k steps at once have the effect of k single ones.

    Invariant: the sum of n_decoding over tenants = the decoding requests.
    """

    def __init__(self, input_weight: float, output_weight: float, tenant_weights: Mapping[str, float]) -> None:
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._weights = tenant_weights
        self._accounts: dict[str, _Account] = {}
        self._decoding: set[Request] = set()
        self.step = 0
        """Number of decode steps so far."""

    def __getitem__(self, tenant: str) -> float:
        """Return the counter of a tenant."""
        account = self._account(tenant)
        out_tokens = account.out_tokens + account.n_decoding * self.step
        served = self._input_weight * account.input_tokens + self._output_weight * out_tokens
        return account.lifted + served / account.weight

    def cost(self, request: Request) -> float:
        """Return what admitting a request adds to its tenant's counter; a preempted one adds nothing."""
        if request.n_preemptions:
            return 0.0
        return self._input_weight * request.prompt_tokens / self._account(request.tenant).weight

    def per_step(self, tenant: str) -> float:
        """Return what each decode step adds to a tenant's counter."""
        account = self._account(tenant)
        return self._output_weight * account.n_decoding / account.weight

    def lift(self, tenant: str, least: float) -> None:
        """Raise the counter of a returning tenant to at least this: idle time earns no credit."""
        if self[tenant] < least:
            account = self._account(tenant)
            account.lifted, account.input_tokens = least, 0
            account.out_tokens = -account.n_decoding * self.step

    def admit(self, request: Request) -> None:
        """Charge an admitted request, unless it was preempted here and has been charged before."""
        if not request.n_preemptions or request.phase is TRANSFER:
            self._account(request.tenant).input_tokens += request.prompt_tokens

    def advance(self, n_steps: int) -> None:
        """Add n_steps tokens to each decoding request."""
        self.step += n_steps

    def accept(self, request: Request, n_tokens: int) -> None:
        """Add n_tokens to a decoding request, besides those of `advance`."""
        self._account(request.tenant).out_tokens += n_tokens

    def join(self, request: Request, n_tokens: int = 1) -> None:
        """Charge the token of a prefill, if there is one, and start decoding."""
        account = self._account(request.tenant)
        account.out_tokens += n_tokens - self.step
        account.n_decoding += 1
        self._decoding.add(request)

    def leave(self, request: Request) -> None:
        """Stop decoding; a first token that was also the last is charged."""
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
    """One line per tenant; the lowest counter goes first, and on a tie the earliest arrival. Counters are those of a
    step boundary, so an arrival that may lift its tenant is queued (`settle`) at the next plan."""

    def __init__(self, counters: TokenCounters) -> None:
        super().__init__()
        self._counters = counters
        self._newcomers: list[Request] = []
        self._last_waiting: str | None = None
        """Tenant of the last request to leave when the queue became empty."""

    def append(self, request: Request) -> None:
        """Queue an arrival, at the next plan if its tenant has no waiting request."""
        if request.tenant in self._lines:
            super().append(request)
        else:
            self._newcomers.append(request)

    def settle(self) -> None:
        """Queue the newcomers. A tenant without waiting requests is lifted to the lowest counter of those with some, or
        to that of the last tenant that had one."""
        if not self._newcomers:
            return
        newcomers, self._newcomers = self._newcomers, []
        for request in sorted(newcomers, key=came_at):
            if request.tenant not in self._lines:
                self._lift(request.tenant)
            super().append(request)

    def may_lead(self, request: Request) -> bool:
        """Return whether its tenant has no waiting request, so that it is lifted and may be next, or only ones that
        came later."""
        line = self._lines.get(request.tenant)
        return line is None or came_at(request) < came_at(line[0])

    def steps_in_order(self, most_tokens: int = 1) -> int | None:
        """Return decode steps, at least 1, for which the head surely stays the head; None: until an arrival, admission
        or finish. A smaller number is also correct.

        most_tokens: tokens that a request may get in a step; it gets at least one.
        """
        if len(self._lines) < 2:
            return None
        counters, head = self._counters, self._first()
        at, pace = counters[head], counters.per_step(head) * most_tokens
        paces = [(counters[tenant], counters.per_step(tenant)) for tenant in self._lines if tenant != head]
        caught_up = [(other - at) / (pace - slower) for other, slower in paces if slower < pace]
        return max(int(min(caught_up)) - 1, 1) if caught_up else None

    def remove(self, request: Request) -> None:
        """Remove a request; one that is not settled yet has lifted no tenant."""
        if request in self._newcomers:
            self._newcomers.remove(request)
        else:
            super().remove(request)

    def _lift(self, tenant: str) -> None:
        if self._lines:
            self._counters.lift(tenant, min(self._counters[other] for other in self._lines))
        elif self._last_waiting is not None:
            self._counters.lift(tenant, self._counters[self._last_waiting])

    def _line_of(self, request: Request) -> str:
        return request.tenant

    def _first(self) -> str:
        return min(self._lines, key=lambda tenant: (self._counters[tenant], came_at(self._lines[tenant][0])))

    def _drop_line(self, key: str) -> None:
        self._last_waiting = key

    def __contains__(self, request: object) -> bool:
        return request in self._newcomers or super().__contains__(request)

    def __len__(self) -> int:
        return self._n + len(self._newcomers)

    def __getitem__(self, place: SupportsIndex) -> Request:
        self.settle()
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Request]:
        """Iterate in the order of admission: each request is charged before the next is chosen. Unsettled arrivals come
        last, as iterating between two steps must not lift a tenant."""
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
