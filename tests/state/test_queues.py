"""Queues of requests that may pass each other, compared with a list that is sorted every time."""

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
    for row in range(300):
        what = rng.random()
        if what < 0.5 or not naive:
            naive.append(request(row, priority=rng.randrange(-2, 3)))
            queue.append(naive[-1])
        elif what < 0.75:
            gone.append(queue.popleft())
            naive.remove(gone[-1])
        elif what < 0.9 and gone:
            naive.append(gone.pop(rng.randrange(len(gone))))
            queue.appendleft(naive[-1])
        else:
            queue.remove(naive.pop(rng.randrange(len(naive))))
        naive.sort(key=lambda each: (each.priority, came_at(each)))
        assert list(queue) == naive
        assert len(queue) == len(naive)
        assert all(each in queue for each in naive)
        assert not any(each in queue for each in gone)
        better = request(10**6, priority=naive[0].priority - 1 if naive else 0)
        assert queue.may_lead(better)
        assert not naive or not queue.may_lead(request(10**6, priority=naive[0].priority))
        assert not naive or queue.may_lead(request(-1, priority=naive[0].priority))  # handed over late


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
