"""Resolve speculation: compatible settings, a draft that suits its target, and slots for all proposed tokens."""

from dataclasses import replace

from simserve import catalog, plugins
from simserve.catalog.specs import ModelSpec
from simserve.cost.shard import Shard
from simserve.cost.weights import weights_bytes
from simserve.errors import CalibrationError
from simserve.scenario.draft import PoolDraft
from simserve.scenario.machine import speculation_of, step_cost_of
from simserve.scenario.servers import SpeculationSection
from simserve.scenario.speculation_setup import MODELS
from simserve.scenario.weights import check_rate
from simserve.schedulers.base import Scheduler

GB = 1e9

PADDED_TOKENS = 128
"""Tokens by which vocabularies of a family differ through padding (llama.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE)."""


def resolve_speculation(draft: PoolDraft) -> PoolDraft:
    """Return the pool with its draft filled in, and with its scheduler, perhaps with fewer slots."""
    given = draft.pool.speculation
    if given is None or draft.touched("speculation"):
        return draft
    _check_keys(draft, given)
    _check_context(draft, given)
    if not given.tokens:
        return draft
    resolved = draft if draft.scheduler is None else _with_slots(draft, given, draft.scheduler)
    resolved = resolved.but(speculation=_with_model(draft, given))
    _check_timed(resolved)
    return resolved


def check_draft_length(draft: PoolDraft) -> None:
    """Check that requests are no longer than the draft model's context."""
    speculation, given = draft.pool.speculation, draft.pool.max_model_len
    if speculation is None or speculation.model is None or draft.touched("speculation", "max_model_len"):
        return
    most = catalog.load_model(speculation.model).max_position_embeddings
    if given is not None and given > most:
        rule = f"must be at most the {most} tokens of the draft model {speculation.model}"
        draft.problem(("max_model_len",), rule, given, f"set max_model_len: {most}")


def _check_keys(draft: PoolDraft, given: SpeculationSection) -> None:
    target = draft.machine.model
    if given.tokens and isinstance(given.acceptance, tuple) and len(given.acceptance) != given.tokens:
        rule = f"must be one rate, or one for each of the {given.tokens} tokens"
        draft.problem(("speculation", "acceptance"), rule, list(given.acceptance))
    if given.kind == "draft_model" and given.model is None:
        remedy = "name a small one of the target's family"
        draft.problem(("speculation", "model"), "is required for draft_model", None, remedy)
    if given.kind == "mtp" and given.tokens and not target.n_mtp_layers:
        rule = f"mtp needs a layer that predicts further tokens, and {target.name} has none"
        remedy = "use eagle, draft_model or ngram, or a config.json that counts it in num_nextn_predict_layers"
        draft.problem(("speculation", "kind"), rule, given.kind, remedy)
    if given.kind == "draft_model":
        return
    for key, value in (("model", given.model), ("weight_dtype", given.weight_dtype)):
        if value is not None:
            draft.problem(("speculation", key), f"is for draft_model, not {given.kind}", value, "leave it out")


def _check_context(draft: PoolDraft, given: SpeculationSection) -> None:
    engine, at = draft.whole.engine_of(draft.pool, draft.at)
    if engine.constants.get("async_scheduling") and given.kind not in MODELS:
        rule = f"{given.kind} proposes from tokens on the host, so no step is planned ahead"
        draft.whole.problem((*at, "async_scheduling"), rule, True, "leave it out")


def _with_slots(draft: PoolDraft, given: SpeculationSection, scheduler: Scheduler) -> PoolDraft:
    """Return the pool with as many slots as a step can verify: lower a default, report an explicit value."""
    spec = draft.pool.scheduler or {}
    if scheduler.runs_to_completion:
        rule = f"{spec.get('kind')} pads whole batches, so its requests cannot get several tokens per step"
        remedy = "use chunked, prefill_first, continuous, sglang or trtllm"
        draft.problem(("scheduler", "kind"), rule, None, remedy)
        return draft
    each = given.tokens + 1
    for_budget, for_slots = scheduler.budget_argument, scheduler.slots_argument
    budget, slots = scheduler.budget_tokens, scheduler.max_running
    if for_budget is None or for_slots is None or not scheduler.budgets_decode or draft.touched("scheduler"):
        return draft
    if budget is None or slots is None or slots * each <= budget:
        return draft
    written = draft.whole.scenario.cluster.pools[int(draft.at[-1])].scheduler or {}
    if for_slots in written or budget < each:
        key = for_slots if for_budget not in written else for_budget
        rule = f"a step verifies {each} tokens of each of {for_slots}, {slots}, and {for_budget} is {budget}"
        remedy = f"use {for_slots}: {budget // each}" if budget >= each else f"use {for_budget}: {slots * each}"
        draft.problem(("scheduler", key), rule, None, remedy)
        return draft
    draft.set_origin(("scheduler", for_slots), f"no more than {for_budget} by {each}")
    fewer = {"kind": spec["kind"], **plugins.spelled_out(scheduler), for_slots: budget // each}
    capped: Scheduler = plugins.build("schedulers", fewer)
    return replace(draft.but(scheduler={"kind": spec["kind"], **plugins.spelled_out(capped)}), scheduler=capped)


def _with_model(draft: PoolDraft, given: SpeculationSection) -> SpeculationSection:
    """Return the section with the draft's dtype and absolute path; report a draft that does not suit its target."""
    whole, here = draft.whole, (*draft.at, "speculation")
    if given.model is None or whole.problems.touch((*here, "model")):
        return given
    name = whole.absolute_model(given.model)
    model = whole.looked_up((*here, "model"), lambda: catalog.load_model(name))
    if model is None:
        return given
    dtype = given.weight_dtype or model.weight_dtype or draft.weight_dtype
    if given.weight_dtype is None:
        origin = f"model {model.name}" if model.weight_dtype else "weight_dtype"
        draft.set_origin(("speculation", "weight_dtype"), origin)
    check_rate(whole, (*here, "weight_dtype"), dtype, draft.machine.gpu)
    _check_model(draft, model, dtype)
    return given.model_copy(update={"model": name, "weight_dtype": dtype})


def _check_model(draft: PoolDraft, model: ModelSpec, dtype: str) -> None:
    target, here, tensor = draft.machine.model, ("speculation", "model"), draft.pool.parallel.tensor
    bytes_of = weights_bytes(Shard(model, dtype)), weights_bytes(Shard(target, draft.weight_dtype))
    if bytes_of[0] > bytes_of[1]:
        sizes = " and ".join(f"{n_bytes / GB:.1f} GB" for n_bytes in bytes_of)
        rule = f"must be smaller than its target {target.name}; their weights take {sizes}"
        draft.problem(here, rule, model.name, "drafts usually have a tenth of the weights or less")
    if abs(model.vocab_size - target.vocab_size) > PADDED_TOKENS:
        vocabulary = f"the {target.vocab_size} tokens of {target.name}"
        rule = f"must have {vocabulary}, which verifies its proposals, not {model.vocab_size}"
        draft.problem(here, rule, model.name, "use a smaller model of the same family")
    if model.n_heads % tensor or (model.n_kv_heads % tensor and tensor % model.n_kv_heads):
        rule = f"is sharded as its target is: parallel.tensor must divide its {model.n_heads} heads"
        draft.problem(here, rule, tensor, "use fewer GPUs or another draft")


def _check_timed(draft: PoolDraft) -> None:
    """Check that the calibration has the draft's kernels."""
    wrong_before = draft.touched("speculation", "calibration", "parallel", "weight_dtype")
    if wrong_before or draft.whole.problems.touch(("weight_dtype",)):
        return
    setup = speculation_of(draft.whole.scenario, draft.pool)
    if setup is None:
        return
    try:
        drafted = setup.draft_cost(step_cost_of(draft.whole.scenario, draft.pool, draft.machine))
        if drafted is not None:
            drafted.check()
    except CalibrationError as error:
        draft.problem(("speculation",), str(error))
