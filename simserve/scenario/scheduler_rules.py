"""The scheduler of a pool: its arguments, from the user, the engine and the class, and its rules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simserve import plugins
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.catalog.types import PluginSpec
from simserve.plugins.find import find
from simserve.plugins.validation import ValueProblem
from simserve.scenario.draft import Draft
from simserve.scenario.pool import PoolDraft
from simserve.schedulers.base import Scheduler


def resolve_scheduler(
    draft: Draft, given: PluginSpec | None, role: str, runs: tuple[EngineSpec, GpuSpec | None]
) -> tuple[Scheduler | None, PluginSpec | None]:
    """Return the policy and its arguments: explicit ones, then the engine's for its own policy, then the class's."""
    engine, gpu = runs
    own = engine_arguments(engine, gpu)
    written = dict(given or {})
    kind = written.pop("kind", None) or own["kind"]
    defaults = {key: value for key, value in own.items() if key != "kind"} if kind == own["kind"] else {}
    of_role = _role_arguments(kind, role)
    defaults |= of_role
    scheduler, problems = plugins.check("schedulers", {"kind": kind, **defaults, **written})
    if problems:
        draft.problems.extend((_about_default(problem, engine, given) for problem in problems), draft.at)
        policy = find("schedulers", kind) if isinstance(kind, str) else None
        if isinstance(policy, type):
            _cap_slots(draft, policy, {**defaults, **written}, written)
        return None, given
    assert isinstance(scheduler, Scheduler), "no problems"
    arguments = plugins.spelled_out(scheduler)
    origins = dict.fromkeys(defaults.keys() - written.keys(), f"engine {engine.name}")
    origins |= dict.fromkeys(of_role.keys() - written.keys(), f"role {role}, which has no prompt with its answer")
    if given is None or "kind" not in given:
        origins["kind"] = f"engine {engine.name}"
    capped = _cap_slots(draft, type(scheduler), arguments, written)
    if capped:
        tokens, slots = capped
        origins[slots] = f"no more than {tokens}"
        scheduler = plugins.build("schedulers", {"kind": kind, **arguments})
    for key, origin in origins.items():
        draft.set_origin((key,), origin)
    return scheduler, {"kind": kind, **arguments}


def engine_arguments(engine: EngineSpec, gpu: GpuSpec | None) -> PluginSpec:
    """Return the engine's default policy with its arguments for this GPU; large GPUs have their own."""
    own = dict(engine.scheduler)
    for rule in engine.scheduler_by_gpu_bytes:
        if gpu is not None and gpu.hbm_bytes >= rule["at_least_bytes"] and gpu.name not in rule.get("except", ()):
            own |= rule["arguments"]
    return own


def _role_arguments(kind: object, role: str) -> PluginSpec:
    """Return the policy's own defaults for pools with a role; empty for pools that serve all."""
    policy = find("schedulers", kind) if isinstance(kind, str) and role != "both" else None
    return dict(policy.role_arguments) if isinstance(policy, type) and issubclass(policy, Scheduler) else {}


def _about_default(problem: ValueProblem, engine: EngineSpec, given: PluginSpec | None) -> ValueProblem:
    """Attribute a problem of the engine's default policy to the engine, not to the user."""
    if given is not None and (problem.path != ("kind",) or "kind" in given):
        return problem
    rule = f"left out, it is that of the engine {engine.name}: {problem.rule}"
    return ValueProblem((), rule, problem.value, problem.remedy)


def _cap_slots(
    draft: Draft, policy: type[Scheduler], arguments: PluginSpec, written: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Keep slots from outnumbering a step's tokens: lower a default (as vLLM does), report an explicit value. Returns
    the names of the two arguments if the default was changed."""
    for_tokens, for_slots = policy.budget_argument, policy.slots_argument
    if for_tokens is None or for_slots is None or not policy.budgets_decode:
        return None
    tokens, slots = arguments.get(for_tokens), arguments.get(for_slots)
    if not (isinstance(tokens, int) and isinstance(slots, int)) or slots <= tokens:
        return None
    if for_slots not in written:
        arguments[for_slots] = tokens
        return for_tokens, for_slots
    if for_tokens in written:
        key, rule = for_tokens, f"must be at least {for_slots}, {slots}"
    else:
        key, rule = for_slots, f"must be at most {for_tokens}, {tokens}"
    draft.problem((key,), rule, arguments[key], "a step decodes one token of each running request")
    return None


def with_slots_to_verify(draft: PoolDraft, written: Mapping[str, Any], n_each: int) -> PoolDraft:
    """Return the pool with slots that a step can verify n tokens of: lower a default, report an explicit value."""
    scheduler, spec, here = draft.scheduler, draft.pool.scheduler, draft.below("scheduler")
    if scheduler is None or spec is None:
        return draft
    if scheduler.runs_to_completion:
        rule = f"{spec.get('kind')} pads whole batches, so its requests cannot get several tokens per step"
        here.problem(("kind",), rule, None, "use chunked, prefill_first, continuous, sglang or trtllm")
        return draft
    for_budget, for_slots = scheduler.budget_argument, scheduler.slots_argument
    budget, slots = scheduler.budget_tokens, scheduler.max_running
    if for_budget is None or for_slots is None or not scheduler.budgets_decode or here.touched():
        return draft
    if budget is None or slots is None or slots * n_each <= budget:
        return draft
    if for_slots in written or budget < n_each:
        key = for_slots if for_budget not in written else for_budget
        rule = f"a step verifies {n_each} tokens of each of {for_slots}, {slots}, and {for_budget} is {budget}"
        remedy = f"use {for_slots}: {budget // n_each}" if budget >= n_each else f"use {for_budget}: {slots * n_each}"
        here.problem((key,), rule, None, remedy)
        return draft
    here.set_origin((for_slots,), f"no more than {for_budget} by {n_each}")
    fewer = {"kind": spec["kind"], **plugins.spelled_out(scheduler), for_slots: budget // n_each}
    capped: Scheduler = plugins.build("schedulers", fewer)
    return replace(draft.but(scheduler={"kind": spec["kind"], **plugins.spelled_out(capped)}), scheduler=capped)


def check_role(draft: Draft, given: PluginSpec | None, role: str) -> None:
    """Check a policy against a role: a request's prompt and answer live on different replicas."""
    if given is None or draft.touched():
        return
    policy, problems = plugins.check("schedulers", given)
    if problems or not isinstance(policy, Scheduler):
        return
    kind = given["kind"]
    if policy.runs_to_completion:
        rule = f"a {role} pool exchanges requests one at a time, and {kind} runs whole batches"
        draft.problem(("kind",), rule, kind, "use chunked, prefill_first or sglang")
    elif policy.reserves:
        rule = f"a {role} pool holds a prompt or an answer, and this policy reserves blocks for both"
        trtllm = "use scheduler: {kind: trtllm, capacity_scheduler_policy: max_utilization}"
        draft.problem(("kind",), rule, kind, trtllm if kind == "trtllm" else "use chunked or sglang")
