"""A policy that raises or returns an invalid answer is named, with the simulated time and the broken rule."""

import re
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from simserve.cost.memory import HostTierSpec
from simserve.errors import PolicyError
from simserve.routers.base import Router
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.schedulers.chunked import Chunked
from simserve.state.request import Request
from simserve.state.view import LoadView, ReplicaView
from tests.doubles import replica_setup, serve, trace

LOAD = trace([0.0, 0.5, 0.5], [20, 20, 20], [5, 5, 5])


class Broken(Scheduler):
    """Returns a given plan from 0.4 s on, and Chunked's before."""

    def __init__(self, plan: Callable[[ReplicaView], Any]) -> None:
        self._plan = plan

    def plan(self, view: ReplicaView) -> StepPlan:
        return self._plan(view) if view.now_ps > 4 * 10**11 else Chunked().plan(view)


def head(view: ReplicaView) -> Request:
    return next(iter(view.queue))


StepPlanOf: Any = StepPlan
"""Untyped, like a policy from outside the tree."""

NONSENSE: dict[str, tuple[Callable[[ReplicaView], Any], str]] = {
    "raises": (lambda view: 1 / 0, "must not raise, got 'ZeroDivisionError: division by zero'"),
    "no plan": (lambda view: None, "must return a StepPlan, got None"),
    "negative tokens": (lambda view: StepPlanOf([(head(view), -1)]), "at least 1, got -1"),
    "fractions": (lambda view: StepPlanOf([(head(view), 1.5)]), "must be whole and at least 1, got 1.5"),
    "too many tokens": (lambda view: StepPlanOf([(head(view), 21)]), "more than the 20 tokens left"),
    "no pairs": (lambda view: StepPlanOf([7]), "prefill must hold pairs (request, tokens), got 7"),
    "no request": (lambda view: StepPlanOf([(None, 1)]), "prefill must hold pairs"),
    "twice": (lambda view: StepPlanOf([(head(view), 1), (head(view), 1)]), "must name a request once"),
    "stranger": (lambda view: StepPlanOf([(Request(0, 0, 20, 5), 20)]), "must prefill only requests of view.queue"),
    "odd reason": (lambda view: StepPlanOf(blocked_by="mood"), "blocked_by must be"),
    "no steps": (lambda view: StepPlanOf(valid_steps=0), "valid_steps must be at least 1"),
    "wakes in the past": (lambda view: StepPlanOf(decode=False, wake_at_ps=view.now_ps), "later than now"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_scheduler_that_returns_nonsense_is_named(name: str) -> None:
    plan, rule = NONSENSE[name]
    with pytest.raises(PolicyError) as error:
        serve(replica_setup(Broken(plan)), LOAD)
    assert rule in str(error.value)
    assert "Broken.plan" in str(error.value)
    assert "at 0.500000 s of simulated time" in str(error.value)


def test_a_scheduler_that_takes_more_blocks_than_are_free_is_named() -> None:
    class Greedy(Scheduler):
        def plan(self, view: ReplicaView) -> StepPlan:
            return StepPlan([(request, request.prefill_left_tokens) for request in view.queue])

    setup = replica_setup(Greedy(), n_blocks=3, block_size=16)
    with pytest.raises(PolicyError, match="more blocks than the 3 free ones, got 4"):
        serve(setup, trace([0.0, 0.0], [20, 20], [1, 1]))


def test_a_scheduler_that_gives_up_a_stranger_is_named() -> None:
    class Careless(Chunked):
        def victim(self, view: ReplicaView) -> Request:
            return Request(9, 0, 1, 1)

    setup = replica_setup(Careless(), n_blocks=4, block_size=2, max_model_len=8)
    with pytest.raises(PolicyError, match=r"Careless\.victim: a victim must be one of view.running"):
        serve(setup, trace([0.0, 0.0], [3, 3], [4, 3]))


def test_a_scheduler_that_brings_back_a_stranger_is_named() -> None:
    class Careless(Chunked):
        def first_back(self, swapped: Collection[Request]) -> Request:
            return Request(9, 0, 1, 1)

    tier = HostTierSpec(10, 1e-3, swaps=True)
    setup = replace(replica_setup(Careless(), n_blocks=4, block_size=2, max_model_len=8), host_tier=tier)
    with pytest.raises(PolicyError, match=r"Careless\.first_back: must return one of the requests in host memory"):
        serve(setup, trace([0.0, 0.0], [3, 3], [4, 3]))


class Lost(Router):
    """Returns what a function makes of the views."""

    def __init__(self, answer: Callable[[Sequence[LoadView]], Any]) -> None:
        self._answer = answer

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        return self._answer(views)  # type: ignore[no-any-return]


NO_VIEW: dict[str, tuple[Callable[[Sequence[LoadView]], Any], str]] = {
    "a place": (lambda views: 1, "pick returns a view since 0.2: return views[i], got 1,"),
    "a negative one": (lambda views: -1, "pick returns a view since 0.2: return views[i], got -1,"),
    "a truth": (lambda views: True, "pick returns a view since 0.2: return views[i], got True,"),
    "a fraction": (
        lambda views: 0.0,
        "must return one of the views it was given; a router may not keep",
    ),
    "nothing": (lambda views: None, "a router may not keep views, got None,"),
    "all views": (lambda views: list(views), "a router may not keep views, got [<"),
    "a copy": (lambda views: copy(views[1]), "a router may not keep views, got 'a view of replica 1',"),
}


@pytest.mark.parametrize("name", NO_VIEW)
def test_a_router_that_picks_no_view_is_named(name: str) -> None:
    answer, rule = NO_VIEW[name]
    with pytest.raises(PolicyError) as error:
        serve([replica_setup()] * 2, LOAD, Lost(answer))
    assert re.search(r"test_broken_policies:Lost\.pick: ", str(error.value))
    assert rule in str(error.value)
    assert "at 0.000000 s of simulated time" in str(error.value)


def test_a_router_that_raises_is_named() -> None:
    class Angry(Router):
        def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
            raise KeyError("nope")

    with pytest.raises(PolicyError, match=r"Angry\.pick: must not raise"):
        serve([replica_setup()] * 2, LOAD, Angry())


def test_a_deadlock_is_found_and_explained() -> None:
    class Lazy(Scheduler):
        def plan(self, view: ReplicaView) -> StepPlan:
            return StepPlan(blocked_by="seats")

    cluster = serve(replica_setup(Lazy()), LOAD)
    columns = cluster.recorder.columns
    assert columns["status"].tolist() == [0, 0, 0]
    reason = cluster.recorder.reasons[columns["status_reason"][0]]
    assert "deadlock: replica 0 is idle with 0 requests admitted and 3 waiting, kept out by seats" in reason


def test_a_policy_cannot_see_how_long_an_answer_will_be() -> None:
    class Cheat(Scheduler):
        def plan(self, view: ReplicaView) -> StepPlan:
            return StepPlan([(head(view), head(view).output_tokens)])  # type: ignore[attr-defined]

    with pytest.raises(PolicyError, match="AttributeError"):
        serve(replica_setup(Cheat()), LOAD)
