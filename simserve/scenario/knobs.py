"""Resolve a pool's scheduler: explicit arguments, then the engine's defaults, then the class's."""

from collections.abc import Mapping
from typing import Any

from simserve import plugins
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.plugins.find import find
from simserve.plugins.validation import Path, ValueProblem
from simserve.scenario.draft import Draft
from simserve.scenario.servers import Pool
from simserve.schedulers.base import Scheduler


def resolve_scheduler(
    draft: Draft, pool: Pool, at: Path, engine_and_gpu: tuple[EngineSpec, GpuSpec | None]
) -> tuple[Scheduler | None, dict[str, Any] | None]:
    """Return the policy and its arguments: explicit ones, then the engine's for its own policy, then the class's."""
    engine, gpu = engine_and_gpu
    own = engine_arguments(engine, gpu)
    written = dict(pool.scheduler or {})
    kind = written.pop("kind", None) or own["kind"]
    defaults = {key: value for key, value in own.items() if key != "kind"} if kind == own["kind"] else {}
    of_role = _role_arguments(kind, pool)
    defaults |= of_role
    scheduler, problems = plugins.check("schedulers", {"kind": kind, **defaults, **written})
    if problems:
        draft.problems.extend((_about_default(problem, engine, pool) for problem in problems), (*at, "scheduler"))
        policy = find("schedulers", kind) if isinstance(kind, str) else None
        if isinstance(policy, type):
            _cap_slots(draft, (*at, "scheduler"), policy, {**defaults, **written}, written)
        return None, pool.scheduler
    assert isinstance(scheduler, Scheduler), "no problems"
    arguments = plugins.spelled_out(scheduler)
    origins = dict.fromkeys(defaults.keys() - written.keys(), f"engine {engine.name}")
    origins |= dict.fromkeys(of_role.keys() - written.keys(), f"role {pool.role}, which has no prompt with its answer")
    if pool.scheduler is None or "kind" not in pool.scheduler:
        origins["kind"] = f"engine {engine.name}"
    capped = _cap_slots(draft, (*at, "scheduler"), type(scheduler), arguments, written)
    if capped:
        tokens, slots = capped
        origins[slots] = f"no more than {tokens}"
        scheduler = plugins.build("schedulers", {"kind": kind, **arguments})
    draft.origins |= {(*at, "scheduler", key): origin for key, origin in origins.items()}
    return scheduler, {"kind": kind, **arguments}


def engine_arguments(engine: EngineSpec, gpu: GpuSpec | None) -> dict[str, Any]:
    """Return the engine's default policy with its arguments for this GPU; large GPUs have their own."""
    own = dict(engine.scheduler)
    for rule in engine.scheduler_by_gpu_bytes:
        if gpu is not None and gpu.hbm_bytes >= rule["at_least_bytes"] and gpu.name not in rule.get("except", ()):
            own |= rule["arguments"]
    return own


def _role_arguments(kind: object, pool: Pool) -> dict[str, Any]:
    """Return the policy's own defaults for pools with a role; empty for pools that serve all."""
    policy = find("schedulers", kind) if isinstance(kind, str) and pool.role != "both" else None
    return dict(policy.role_arguments) if isinstance(policy, type) and issubclass(policy, Scheduler) else {}


def _about_default(problem: ValueProblem, engine: EngineSpec, pool: Pool) -> ValueProblem:
    """Attribute a problem of the engine's default policy to the engine, not to the user."""
    if pool.scheduler is not None and (problem.path != ("kind",) or "kind" in pool.scheduler):
        return problem
    return ValueProblem(
        (), f"left out, it is that of the engine {engine.name}: {problem.rule}", problem.value, problem.remedy
    )


def _cap_slots(
    draft: Draft, at: Path, policy: type[Scheduler], arguments: dict[str, Any], written: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Keep slots from outnumbering a step's tokens: lower a default (as vLLM does), report an explicit value.

    Returns the names of the two arguments if the default was changed.
    """
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
    draft.problem((*at, key), rule, arguments[key], "a step decodes one token of each running request")
    return None
