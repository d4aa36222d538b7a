"""Virtual token counters of the oracle, changed at every admission and by every token."""

from collections.abc import Callable, Sequence
from typing import Any

from simserve.schedulers.chunked import FairShares
from simserve.state.request import Request


def came(request: Request) -> tuple[int, int]:
    return request.arrival_ps, request.row


class OracleCounters:
    """VTC as in the paper: one counter per tenant, changed at every admission and by every token."""

    def __init__(self, scheduler: Any) -> None:
        self.shares: FairShares = scheduler.vtc or FairShares()
        self.counters: dict[str, float] = {}
        self.known: list[Request] = []
        """Requests that waited when the last step was planned, and arrivals behind one of their tenant."""
        self.last_left: str | None = None

    def add(self, request: Request, tokens_worth: float) -> None:
        weight = self.shares.tenant_weights.get(request.tenant, 1.0)
        self.counters[request.tenant] = self.counters.get(request.tenant, 0.0) + tokens_worth / weight

    def arrive(self, request: Request) -> None:
        if any(other.tenant == request.tenant for other in self.known):
            self.known.append(request)

    def take_in(self, waiting: Sequence[Request]) -> None:
        for request in sorted(waiting, key=came):
            if request in self.known:
                continue
            tenants = {other.tenant for other in self.known}
            if request.tenant not in tenants:
                others = list(tenants) or ([self.last_left] if self.last_left is not None else [])
                least = min((self.counters.get(tenant, 0.0) for tenant in others), default=0.0)
                self.counters[request.tenant] = max(self.counters.get(request.tenant, 0.0), least)
            self.known.append(request)

    def admit(self, request: Request, is_first: bool) -> None:
        self.forget(request)
        if is_first:
            self.add(request, self.shares.input_weight * request.prompt_tokens)

    def forget(self, request: Request) -> None:
        """Remove a waiting request; it counts for nothing if no step was planned meanwhile."""
        if request in self.known:
            self.known.remove(request)
            if all(other.tenant != request.tenant for other in self.known):
                self.last_left = request.tenant

    def in_order(self, is_first: Callable[[Request], bool]) -> list[Request]:
        result: list[Request] = []
        left, before = sorted(self.known, key=came), dict(self.counters)
        while left:
            heads = [next(r for r in left if r.tenant == tenant) for tenant in {r.tenant for r in left}]
            head = min(heads, key=lambda r: (self.counters.get(r.tenant, 0.0), came(r)))
            left.remove(head)
            result.append(head)
            if is_first(head):
                self.add(head, self.shares.input_weight * head.prompt_tokens)
        self.counters = before
        return result
