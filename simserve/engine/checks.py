"""What the engine asks of a policy's answers, and how it says no."""

from simserve.errors import PolicyError
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.state.request import PREFILL, WAITING, Request
from simserve.state.view import ReplicaView
from simserve.units import to_s

_BLOCKED = (None, "seats", "blocks", "budget")


def ask_for_plan(scheduler: Scheduler, view: ReplicaView) -> StepPlan:
    """The scheduler's plan for a view, held against the rules; raises PolicyError."""
    try:
        plan = scheduler.plan(view)
    except Exception as error:
        raise raised(scheduler, "plan", view.now_ps, error) from error
    if type(plan) is not StepPlan:
        raise broke(scheduler, "plan", view.now_ps, "must return a StepPlan", plan)
    broken = _broken_prefill_rule(scheduler, view, plan) if plan.prefill else _broken_rule(plan, view.now_ps)
    if broken:
        raise broke(scheduler, "plan", view.now_ps, *broken)
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


def _broken_rule(plan: StepPlan, now_ps: int) -> tuple[str, object] | None:
    """The rule that a plan without prefill breaks, and the value that breaks it."""
    if plan.blocked_by not in _BLOCKED:
        return "blocked_by must be seats, blocks, budget or None", plan.blocked_by
    if plan.valid_steps is not None and plan.valid_steps < 1:
        return "valid_steps must be at least 1 or None", plan.valid_steps
    if plan.wake_at_ps is not None and plan.wake_at_ps <= now_ps:
        return "wake_at_ps must be later than now", plan.wake_at_ps
    return None


def _broken_prefill_rule(scheduler: Scheduler, view: ReplicaView, plan: StepPlan) -> tuple[str, object] | None:
    """The rule that a plan with prefill breaks, and the value that breaks it."""
    n_blocks, block_size, pads = 0, view.block_size, scheduler.runs_to_completion
    for request, n_tokens in plan.prefill:
        if type(n_tokens) is not int or n_tokens < 1:
            return "prefill tokens must be whole and at least 1", n_tokens
        if request.phase is not WAITING and (request.phase is not PREFILL or request not in view.running):
            return "must prefill only requests of view.queue", request
        done_tokens = request.prefilled_tokens
        if done_tokens + n_tokens > request.prompt_tokens + request.emitted_tokens and not pads:
            return f"must not prefill more than the {request.prefill_left_tokens} tokens left of {request}", n_tokens
        n_blocks += -(-(done_tokens + n_tokens) // block_size) - -(-done_tokens // block_size)
    if len(plan.prefill) > 1 and len({id(request) for request, _ in plan.prefill}) < len(plan.prefill):
        return "must name a request once", plan.prefill
    if scheduler.reserves:
        if len(plan.reserve_tokens) != len(plan.prefill):
            return "a policy that reserves gives reserve_tokens for each request of prefill", plan.reserve_tokens
        n_blocks = sum(map(view.blocks_for, plan.reserve_tokens))
    if n_blocks > view.free_blocks:
        return f"must not take more blocks than the {view.free_blocks} free ones", n_blocks
    return _broken_rule(plan, view.now_ps)


def broke(policy: object, method: str, now_ps: int, rule: str, value: object) -> PolicyError:
    """A policy returned nonsense."""
    name = f"{type(policy).__module__}:{type(policy).__qualname__}.{method}"
    return PolicyError(f"{name}: {rule}, got {value!r}, at {to_s(now_ps):.6f} s of simulated time; correct the policy")


def raised(policy: object, method: str, now_ps: int, error: Exception) -> PolicyError:
    """A policy raised."""
    what = f"{type(error).__name__}: {error}"
    return broke(policy, method, now_ps, "must not raise", what)
