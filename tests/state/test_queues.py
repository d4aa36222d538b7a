"""Queues of requests that may pass each other, compared with a list that is sorted every time."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from simserve.schedulers.chunked import Chunked
from simserve.state.fair_share import ByService, TokenCounters
from simserve.state.queues import ByPriority, came_at
from simserve.state.request import TRANSFER, Request


def request(row: int, *, priority: int = 0, tenant: str = "", prompt_tokens: int = 10) -> Request:
    made = Request(row, row * 5, prompt_tokens, 10)
    made.priority, made.tenant = priority, tenant
    return made


@pytest.mark.parametrize("seed", range(20))
def test_by_priority_is_what_sorting_gives_whoever_comes_goes_or_comes_back(seed: int) -> None:
    rng = Random(seed)
    queue, naive, gone = ByPriority(), list[Request](), list[Request]()
    for row in rng.sample(range(300), 200):  # some were handed over late
        what, new = rng.random(), request(row, priority=rng.randrange(-2, 3))
        assert queue.may_lead(new) == (sorted([*naive, new], key=by_priority)[0] is new)
        if what < 0.5 or not naive:
            naive.append(new)
            queue.append(new)
        elif what < 0.75:
            gone.append(queue.popleft())
            assert gone[-1] is naive.pop(0)
        elif what < 0.9 and gone:
            naive.append(gone.pop(rng.randrange(len(gone))))
            queue.appendleft(naive[-1])
        else:
            queue.remove(naive.pop(rng.randrange(len(naive))))
        naive.sort(key=by_priority)
        assert list(queue) == naive
        assert len(queue) == len(naive)
        assert all(each in queue for each in naive)
        assert not any(each in queue for each in gone)
        assert "no request" not in queue


def by_priority(request: Request) -> tuple[int, tuple[int, int]]:
    return request.priority, came_at(request)


WEIGHTS = {"a": 2.0, "b": 0.5}
"""Those of tenants; sums of shares are exact."""


@dataclass
class Shares:
    """Tenants' service token by token, and their waiting requests in a list."""

    served: dict[str, float] = field(default_factory=lambda: dict.fromkeys("abcd", 0.0))
    decoding: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    new: list[Request] = field(default_factory=list)
    """Arrivals that are not queued yet."""
    last: str | None = None
    """Tenant of the last request that left the queue."""

    def serve(self, tenant: str, tokens: float) -> None:
        self.served[tenant] += tokens / WEIGHTS.get(tenant, 1.0)

    def step(self, most_tokens: int = 1, fast: str = "") -> None:
        """Give each decoding request a token, or those of one tenant the most."""
        for each in self.decoding:
            self.serve(each.tenant, 2.0 * (most_tokens if each.tenant == fast else 1))

    def arrive(self, request: Request) -> None:
        (self.waiting if self.has(request.tenant) else self.new).append(request)

    def has(self, tenant: str) -> bool:
        """Return whether a request of a tenant waits."""
        return any(each.tenant == tenant for each in self.waiting)

    def settle(self) -> None:
        """Queue the arrivals; a tenant that had none waiting has no credit."""
        for each in sorted(self.new, key=came_at):
            least = [self.served[other.tenant] for other in self.waiting]
            if not least and self.last is not None:
                least = [self.served[self.last]]
            if least and not self.has(each.tenant):
                self.served[each.tenant] = max(self.served[each.tenant], min(least))
            self.waiting.append(each)
        self.new = []

    def leave(self, request: Request) -> None:
        if request in self.new:
            self.new.remove(request)
        else:
            self.waiting.remove(request)
            self.last = request.tenant

    def order(self) -> list[Request]:
        """Return the waiting requests, each charged before the next is chosen, and arrivals behind them."""
        served, rest, result = {**self.served}, sorted(self.waiting, key=came_at), list[Request]()
        while rest:
            tenant = min(rest, key=lambda each: (served[each.tenant], came_at(each))).tenant
            result.append(next(each for each in rest if each.tenant == tenant))
            rest.remove(result[-1])
            charged = 0 if result[-1].n_preemptions else result[-1].prompt_tokens
            served[tenant] += charged / WEIGHTS.get(tenant, 1.0)
        return result + self.new

    def changes_in(self, most_tokens: int, horizon: int) -> int | None:
        """Return the first step after which another tenant has the head, if that one gets the most tokens a step."""
        ahead = replace(self, served={**self.served})
        head = self.order()[0]
        for n in range(1, horizon):
            ahead.step(most_tokens, head.tenant)
            if ahead.order()[0] is not head:
                return n
        return None


@pytest.mark.parametrize("seed", range(30))
def test_by_service_is_what_a_list_gives(seed: int) -> None:
    rng, shares = Random(seed), Shares()
    counters = TokenCounters(1.0, 2.0, WEIGHTS)
    queue, gone, n_steps = ByService(counters), list[Request](), 0
    for row in rng.sample(range(200), 100):
        what = rng.choice(["arrive"] * 4 + ["admit", "admit", "give up", "preempt", "advance", "settle"])
        new = request(row, tenant=rng.choice("abcd"), prompt_tokens=rng.choice([2, 40]))
        own = [each for each in shares.waiting if each.tenant == new.tenant]
        assert queue.may_lead(new) == all(came_at(new) < came_at(each) for each in own)
        if what == "arrive":
            queue.append(new)
            shares.arrive(new)
        elif what == "admit" and len(queue):
            shares.settle()
            admitted = queue.popleft()
            assert admitted is shares.order()[0]
            shares.leave(admitted)
            shares.serve(admitted.tenant, 2.0 + (0 if admitted.n_preemptions else admitted.prompt_tokens))
            counters.admit(admitted)
            if rng.random() < 0.3:
                counters.leave(admitted)  # its first token is its last
            else:
                counters.join(admitted)
                shares.decoding.append(admitted)
        elif what == "give up" and len(queue):
            gone.append(rng.choice(shares.order()))
            queue.remove(gone[-1])
            shares.leave(gone[-1])
        elif what == "preempt" and shares.decoding:
            preempted = shares.decoding.pop(rng.randrange(len(shares.decoding)))
            counters.leave(preempted)
            preempted.n_preemptions += 1
            queue.appendleft(preempted)
            shares.waiting.append(preempted)
        elif what == "advance":
            n = rng.randint(1, 5)
            n_steps += n
            counters.advance(n)
            for _ in range(n):
                shares.step()
        elif what == "settle":
            queue.settle()
            shares.settle()
        assert (list(queue), len(queue)) == (shares.order(), len(shares.order()))
        assert all(each in queue for each in shares.order())
        assert not any(each in queue for each in [*gone, *shares.decoding])
        assert "no request" not in queue
        assert {tenant: counters[tenant] for tenant in "abcd"} == shares.served
        assert counters.step == n_steps
        if shares.waiting:
            steps_keep_the_head(queue, shares, rng.choice([1, 1, 3]))


def steps_keep_the_head(queue: ByService, shares: Shares, most_tokens: int) -> None:
    """Hold that another tenant comes first after the steps of the queue, and not much later."""
    n, horizon = queue.steps_in_order(*[most_tokens][: most_tokens - 1]), 60
    change = shares.changes_in(most_tokens, horizon)
    if n is None:
        assert change is None
    else:
        assert n >= 1
        assert n >= (change or horizon) - 2
        assert n == 1 or change is None or n < change


def test_an_empty_queue_has_no_head() -> None:
    with pytest.raises(IndexError, match="only the head"):
        ByPriority()[0]


def test_so_many_steps_at_once_leave_the_counters_that_one_by_one_leave() -> None:
    at_once, singly = (TokenCounters(1.0, 2.0, {"a": 3.0}) for _ in range(2))
    first, second = request(0, tenant="a"), request(1, tenant="b", prompt_tokens=7)
    for counters in (at_once, singly):
        counters.admit(first)
        counters.join(first)
    at_once.advance(5)
    for _ in range(5):
        singly.advance(1)
    for counters in (at_once, singly):
        counters.admit(second)
        counters.leave(second)  # a single token
        counters.leave(first)
        assert counters["a"] == pytest.approx((10 + 2 * 6) / 3)
        assert counters["b"] == 7 + 2
        assert counters["nobody"] == 0
    assert at_once["a"] == singly["a"]


def test_a_prompt_is_charged_once_on_each_replica_that_gives_it_room() -> None:
    counters, again, handed_over = TokenCounters(1.0, 2.0, {}), request(0, tenant="a"), request(1, tenant="b")
    again.n_preemptions = handed_over.n_preemptions = 1
    handed_over.phase = TRANSFER  # preempted where its prompt was computed
    for each in (again, handed_over):
        counters.admit(each)
    assert (counters["a"], counters["b"]) == (0, 10)


def test_a_counter_is_lifted_and_never_lowered() -> None:
    counters = TokenCounters(1.0, 2.0, {})
    decoding = request(0, tenant="a")
    counters.admit(decoding)
    counters.join(decoding)
    counters.advance(4)
    assert counters["a"] == 10 + 2 * 5
    counters.lift("a", 15)
    assert counters["a"] == 20
    counters.lift("a", 30)
    counters.advance(3)
    assert counters["a"] == 30 + 2 * 3


def test_a_tenant_is_not_lifted_by_a_request_that_came_while_another_of_it_waited() -> None:
    counters = TokenCounters(1.0, 2.0, {})
    queue, a, b = ByService(counters), request(0, tenant="a"), request(1, tenant="b")
    queue.extend([a, b])
    queue.settle()
    counters.admit(request(2, tenant="b", prompt_tokens=50))
    queue.append(request(3, tenant="a"))
    queue.remove(a)  # its client gives up before the next plan
    queue.settle()
    assert counters["a"] == 0
    queue.remove(queue[0])
    queue.append(request(4, tenant="a"))
    queue.settle()
    assert counters["a"] == 50


def test_a_request_may_lead_that_came_before_all_of_its_tenant() -> None:
    queue = ByService(TokenCounters(1.0, 2.0, {}))
    assert queue.may_lead(request(3, tenant="a"))
    queue.append(request(3, tenant="a"))
    queue.settle()
    assert queue.may_lead(request(2, tenant="a"))  # handed over late
    assert not queue.may_lead(request(4, tenant="a"))


def test_who_would_be_next_is_charged_before_the_one_after_it_is_chosen() -> None:
    queue = ByService(TokenCounters(1.0, 2.0, {}))
    queue.extend(request(row, tenant=tenant) for row, tenant in enumerate("aaab"))
    assert [each.row for each in queue] == [0, 1, 2, 3]  # no arrival is settled before a step is planned
    queue.settle()
    assert [each.row for each in queue] == [0, 3, 1, 2]
    assert queue[0].row == 0
    assert len(queue) == 4


def test_requests_in_host_memory_return_in_the_order_of_the_policy() -> None:
    swapped = [
        request(2, priority=1, tenant="a"),
        request(0, priority=2, tenant="a"),
        request(1, priority=1, tenant="b"),
    ]
    assert Chunked().first_back(swapped).row == 2  # it left first
    assert Chunked(policy="priority").first_back(swapped).row == 1  # it came first of those with the better priority
    by_service = Chunked(policy="vtc")
    assert by_service.first_back(swapped).row == 0  # it came first
    by_service.on_admit(request(3, tenant="a"))
    assert by_service.first_back(swapped).row == 1  # its tenant has been served less
