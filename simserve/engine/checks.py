"""What the engine asks of a policy's answers, and how it says no."""

from simserve.errors import PolicyError
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.state.request import Phase, Request
from simserve.state.view import ReplicaView
from simserve.units import to_s

_BLOCKED = (None, "seats", "blocks", "budget")


def ask_for_plan(scheduler: Scheduler, view: ReplicaView) -> StepPlan:
    """The scheduler's plan for a view, held against the rules; raises PolicyError."""
    try:
        plan = scheduler.plan(view)
    except Exception as error:
        raise raised(scheduler, "plan", view.now_ps, error) from error
    check_plan(scheduler, view, plan)
    return plan


def ask_for_victim(scheduler: Scheduler, view: ReplicaView) -> Request:
    """The running request that the scheduler gives up; raises PolicyError."""
    try:
        victim = scheduler.victim(view)
    except Exception as error:
        raise raised(scheduler, "victim", view.now_ps, error) from error
    if victim not in view.running:
        raise broke(scheduler, "victim", view.now_ps, "a victim must be one of view.running", victim)
    return victim


def check_plan(scheduler: Scheduler, view: ReplicaView, plan: StepPlan) -> None:
    """Raises PolicyError when a plan breaks a rule."""
    rule, value = _broken_rule(scheduler, view, plan)
    if rule:
        raise broke(scheduler, "plan", view.now_ps, rule, value)


def _broken_rule(scheduler: Scheduler, view: ReplicaView, plan: StepPlan) -> tuple[str, object]:
    if type(plan) is not StepPlan:
        return "must return a StepPlan", plan
    if plan.blocked_by not in _BLOCKED:
        return "blocked_by must be seats, blocks, budget or None", plan.blocked_by
    if plan.valid_steps is not None and plan.valid_steps < 1:
        return "valid_steps must be at least 1 or None", plan.valid_steps
    if plan.wake_at_ps is not None and plan.wake_at_ps <= view.now_ps:
        return "wake_at_ps must be later than now", plan.wake_at_ps
    return _broken_prefill_rule(scheduler, view, plan) if plan.prefill else ("", None)


def _broken_prefill_rule(scheduler: Scheduler, view: ReplicaView, plan: StepPlan) -> tuple[str, object]:
    n_blocks = 0
    for request, n_tokens in plan.prefill:
        if type(n_tokens) is not int or n_tokens < 1:
            return "prefill tokens must be whole and at least 1", n_tokens
        if n_tokens > request.prefill_left_tokens and not scheduler.runs_to_completion:
            return f"must not prefill more than the {request.prefill_left_tokens} tokens left of {request}", n_tokens
        if request.phase is not Phase.WAITING and request.phase is not Phase.PREFILL:
            return "must prefill only requests of view.queue", request
        n_blocks += view.blocks_for_chunk(request, n_tokens)
    if len(plan.prefill) > 1 and len({id(request) for request, _ in plan.prefill}) < len(plan.prefill):
        return "must name a request once", plan.prefill
    if scheduler.reserves:
        if len(plan.reserve_tokens) != len(plan.prefill):
            return "a policy that reserves gives reserve_tokens for each request of prefill", plan.reserve_tokens
        n_blocks = sum(map(view.blocks_for, plan.reserve_tokens))
    if n_blocks > view.free_blocks:
        return f"must not take more blocks than the {view.free_blocks} free ones", n_blocks
    return "", None


def broke(policy: object, method: str, now_ps: int, rule: str, value: object) -> PolicyError:
    """A policy returned nonsense."""
    name = f"{type(policy).__module__}:{type(policy).__qualname__}.{method}"
    return PolicyError(f"{name}: {rule}, got {value!r}, at {to_s(now_ps):.6f} s of simulated time; correct the policy")


def raised(policy: object, method: str, now_ps: int, error: Exception) -> PolicyError:
    """A policy raised."""
    what = f"{type(error).__name__}: {error}"
    return broke(policy, method, now_ps, "must not raise", what)
