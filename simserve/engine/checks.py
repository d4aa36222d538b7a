"""Checks of what policies return, and the errors they raise."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from simserve.engine.recorder import BLOCKED_BY
from simserve.errors import PolicyError, blame
from simserve.schedulers.base import Scheduler
from simserve.state.pool_view import PoolView
from simserve.state.request import WAITING, Request
from simserve.state.step_plan import StepPlan
from simserve.state.view import ReplicaView
from simserve.units import to_s

# A policy is taken as Any: compiled code would refuse an answer of another type before these checks name its rule.


def checked_plan(scheduler: Any, view: ReplicaView) -> StepPlan:
    """Return the scheduler's plan for a view; raises PolicyError. Its chunks are checked later, as they begin."""
    try:
        plan: Any = scheduler.plan(view)
    except Exception as error:
        raise raised(scheduler, "plan", view.now_ps, error) from error
    if type(plan) is not StepPlan:
        raise broke(scheduler, "plan", view.now_ps, "must return a StepPlan", plan)
    if plan.blocked_by is not None and plan.blocked_by not in BLOCKED_BY:
        raise broke(scheduler, "plan", view.now_ps, "blocked_by must be seats, blocks, budget or None", plan.blocked_by)
    if plan.valid_steps is not None and plan.valid_steps < 1:
        raise broke(scheduler, "plan", view.now_ps, "valid_steps must be at least 1 or None", plan.valid_steps)
    if plan.wake_at_ps is not None and plan.wake_at_ps <= view.now_ps:
        raise broke(scheduler, "plan", view.now_ps, "wake_at_ps must be later than now", plan.wake_at_ps)
    return plan


def checked_victim(scheduler: Any, view: ReplicaView) -> Request:
    """Return the running request that the scheduler preempts; raises PolicyError."""
    try:
        victim: Any = scheduler.victim(view)
    except Exception as error:
        raise raised(scheduler, "victim", view.now_ps, error) from error
    if victim not in view.running:
        raise broke(scheduler, "victim", view.now_ps, "a victim must be one of view.running", victim)
    return cast(Request, victim)


def checked_first_back(scheduler: Any, swapped: Collection[Request], now_ps: int) -> Request:
    """Return the swapped request that the scheduler brings back next; raises PolicyError."""
    try:
        request: Any = scheduler.first_back(swapped)
    except Exception as error:
        raise raised(scheduler, "first_back", now_ps, error) from error
    if request not in swapped:
        raise broke(scheduler, "first_back", now_ps, "must return one of the requests in host memory", request)
    return cast(Request, request)


def checked_replicas(autoscaler: Any, pools: Sequence[PoolView], now_ps: int) -> list[int]:
    """Return how many replicas each pool shall have; raises PolicyError."""
    try:
        wanted = [n for n, _ in zip(autoscaler.desired_of_pools(pools), pools, strict=True)]
    except Exception as error:
        raise raised(autoscaler, "desired_replicas", now_ps, error) from error
    for n in wanted:
        if type(n) is not int or n < 0:
            raise broke(autoscaler, "desired_replicas", now_ps, "must return a whole number, 0 or more", n)
    return wanted


def check_prefill(scheduler: Scheduler, view: ReplicaView, plan: StepPlan) -> None:
    """Raise PolicyError unless the plan's chunks are parts of the prefills of different queued requests."""
    pads = scheduler.runs_to_completion
    chunks: Iterable[object] = plan.prefill
    for chunk in chunks:
        if type(chunk) is not tuple or len(chunk) != 2 or type(chunk[0]) is not Request:
            raise broke(scheduler, "plan", view.now_ps, "prefill must hold pairs (request, tokens)", chunk)
        request, n_tokens = chunk
        if request.phase is not WAITING and request not in view.prefilling:
            raise broke(scheduler, "plan", view.now_ps, "must prefill only requests of view.queue", request)
        if type(n_tokens) is not int or n_tokens < 1:
            raise broke(scheduler, "plan", view.now_ps, "prefill tokens must be whole and at least 1", n_tokens)
        if n_tokens > request.prefill_left_tokens and not pads:
            rule = f"must not prefill more than the {request.prefill_left_tokens} tokens left of {request}"
            raise broke(scheduler, "plan", view.now_ps, rule, n_tokens)
    if len(plan.prefill) > 1 and len(dict(plan.prefill)) < len(plan.prefill):
        raise broke(scheduler, "plan", view.now_ps, "must name a request once", plan.prefill)
    if scheduler.reserves and len(plan.reserve_tokens) != len(plan.prefill):
        rule = "reserve_tokens must have an entry for each request of prefill"
        raise broke(scheduler, "plan", view.now_ps, rule, plan.reserve_tokens)


def broke(policy: object, method: str, now_ps: int, rule: str, value: object) -> PolicyError:
    """Return the error for a policy that returned an invalid answer."""
    name = f"{type(policy).__module__}:{type(policy).__qualname__}.{method}"
    return PolicyError(f"{name}: {rule}, got {value!r}, at {to_s(now_ps):.6f} s of simulated time; {blame(policy)}")


def raised(policy: object, method: str, now_ps: int, error: Exception) -> PolicyError:
    """Return the error for a policy that raised."""
    what = f"{type(error).__name__}: {error}"
    return broke(policy, method, now_ps, "must not raise", what)
