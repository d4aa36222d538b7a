"""Resolve speculation: compatible settings, a draft that suits its target, and slots for all proposed tokens."""

from dataclasses import dataclass

from simserve import catalog, plugins
from simserve.catalog.specs import ModelSpec
from simserve.cost.shard import Shard
from simserve.cost.weights import weights_bytes
from simserve.errors import CalibrationError
from simserve.plugins.validation import Path
from simserve.scenario.draft import Draft
from simserve.scenario.machine import Machine, step_cost_of
from simserve.scenario.servers import Pool, SpeculationSection
from simserve.scenario.speculation_setup import MODELS, speculation_of, weight_dtype_of
from simserve.scenario.weights import check_rate
from simserve.schedulers.base import Scheduler

GB = 1e9

PADDED_TOKENS = 128
"""Tokens by which vocabularies of a family differ through padding (llama.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE)."""


@dataclass(frozen=True)
class _SpeculatingPool:
    """A pool with a speculation section."""

    pool: Pool
    at: Path
    machine: Machine
    speculation: SpeculationSection

    @property
    def here(self) -> Path:
        """The path of that section."""
        return (*self.at, "speculation")


def resolve_speculation(
    draft: Draft, pool: Pool, at: Path, runs: tuple[Machine, Scheduler | None]
) -> tuple[Pool, Scheduler | None]:
    """Return the pool with its draft filled in, and its scheduler, perhaps with fewer slots."""
    machine, scheduler = runs
    if pool.speculation is None or draft.problems.touch((*at, "speculation")):
        return pool, scheduler
    speculating = _SpeculatingPool(pool, at, machine, pool.speculation)
    _check_keys(draft, speculating)
    _check_context(draft, speculating)
    if not pool.speculation.tokens:
        return pool, scheduler
    if scheduler is not None:
        scheduler = _check_scheduler(draft, speculating, scheduler)
    update: dict[str, object] = {"speculation": _with_model(draft, speculating)}
    if scheduler is not None and scheduler is not runs[1] and pool.scheduler is not None:
        update["scheduler"] = {"kind": pool.scheduler["kind"], **plugins.spelled_out(scheduler)}
    pool = pool.model_copy(update=update)
    _check_timed(draft, pool, speculating)
    return pool, scheduler


def check_draft_length(draft: Draft, pool: Pool, at: Path) -> None:
    """Check that requests are no longer than the draft model's context."""
    speculation = pool.speculation
    here = (*at, "max_model_len")
    if speculation is None or speculation.model is None or draft.problems.touch((*at, "speculation"), here):
        return
    most = catalog.load_model(speculation.model).max_position_embeddings
    if pool.max_model_len is not None and pool.max_model_len > most:
        rule = f"must be at most the {most} tokens of the draft model {speculation.model}"
        draft.problem(here, rule, pool.max_model_len, f"set max_model_len: {most}")


def _check_keys(draft: Draft, speculating: _SpeculatingPool) -> None:
    given, here = speculating.speculation, speculating.here
    if given.tokens and isinstance(given.acceptance, tuple) and len(given.acceptance) != given.tokens:
        rule = f"must be one rate, or one for each of the {given.tokens} tokens"
        draft.problem((*here, "acceptance"), rule, list(given.acceptance))
    if given.kind == "draft_model" and given.model is None:
        draft.problem((*here, "model"), "is required for draft_model", None, "name a small one of the target's family")
    target = speculating.machine.model
    if given.kind == "mtp" and given.tokens and not target.n_mtp_layers:
        rule = f"mtp needs a layer that predicts further tokens, and {target.name} has none"
        remedy = "use eagle, draft_model or ngram, or a config.json that counts it in num_nextn_predict_layers"
        draft.problem((*here, "kind"), rule, given.kind, remedy)
    if given.kind == "draft_model":
        return
    for key, value in (("model", given.model), ("weight_dtype", given.weight_dtype)):
        if value is not None:
            draft.problem((*here, key), f"is for draft_model, not {given.kind}", value, "leave it out")


def _check_context(draft: Draft, speculating: _SpeculatingPool) -> None:
    pool, kind = speculating.pool, speculating.speculation.kind
    written = pool.engine or draft.scenario.engine
    if written.constants.get("async_scheduling") and kind not in MODELS:
        where = ("engine",) if pool.engine is None else (*speculating.at, "engine")
        rule = f"{kind} proposes from tokens on the host, so no step is planned ahead"
        draft.problem((*where, "async_scheduling"), rule, True, "leave it out")


def _check_scheduler(draft: Draft, speculating: _SpeculatingPool, scheduler: Scheduler) -> Scheduler:
    """Return the policy with as many slots as a step can verify: lower a default, report an explicit value."""
    at = (*speculating.at, "scheduler")
    if scheduler.runs_to_completion:
        kind = (speculating.pool.scheduler or {}).get("kind")
        rule = f"{kind} pads whole batches, so its requests cannot get several tokens per step"
        draft.problem((*at, "kind"), rule, None, "use chunked, prefill_first, continuous, sglang or trtllm")
        return scheduler
    each = speculating.speculation.tokens + 1
    for_budget, for_slots = scheduler.budget_argument, scheduler.slots_argument
    budget, slots = scheduler.budget_tokens, scheduler.max_running
    if for_budget is None or for_slots is None or not scheduler.budgets_decode or draft.problems.touch(at):
        return scheduler
    if budget is None or slots is None or slots * each <= budget:
        return scheduler
    names = for_budget, for_slots
    given = draft.scenario.cluster.pools[int(speculating.at[-1])].scheduler or {}
    if names[1] in given or budget < each:
        key = names[1] if names[0] not in given else names[0]
        rule = f"a step verifies {each} tokens of each of {names[1]}, {slots}, and {names[0]} is {budget}"
        remedy = f"use {names[1]}: {budget // each}" if budget >= each else f"use {names[0]}: {slots * each}"
        draft.problem((*at, key), rule, None, remedy)
        return scheduler
    draft.origins[*at, names[1]] = f"no more than {names[0]} by {each}"
    kind = (speculating.pool.scheduler or {})["kind"]
    capped: Scheduler = plugins.build(
        "schedulers", {"kind": kind, **plugins.spelled_out(scheduler), names[1]: budget // each}
    )
    return capped


def _with_model(draft: Draft, speculating: _SpeculatingPool) -> SpeculationSection:
    """Return the section with the draft's dtype and absolute path; report a draft that does not suit its target."""
    given, here = speculating.speculation, (*speculating.here, "model")
    if given.model is None or draft.problems.touch(here):
        return given
    name = draft.absolute_model(given.model)
    model = draft.looked_up(here, lambda: catalog.load_model(name))
    if model is None:
        return given
    dtype = given.weight_dtype or model.weight_dtype or weight_dtype_of(draft.scenario, speculating.pool)
    if given.weight_dtype is None:
        draft.origins[*speculating.here, "weight_dtype"] = (
            f"model {model.name}" if model.weight_dtype else "weight_dtype"
        )
    check_rate(draft, (*speculating.here, "weight_dtype"), dtype, speculating.machine.gpu)
    _check_model(draft, speculating, model, dtype)
    return given.model_copy(update={"model": name, "weight_dtype": dtype})


def _check_model(draft: Draft, speculating: _SpeculatingPool, model: ModelSpec, dtype: str) -> None:
    target, here, tensor = speculating.machine.model, (*speculating.here, "model"), speculating.pool.parallel.tensor
    bytes_of = (
        weights_bytes(Shard(model, dtype)),
        weights_bytes(Shard(target, weight_dtype_of(draft.scenario, speculating.pool))),
    )
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


def _check_timed(draft: Draft, pool: Pool, speculating: _SpeculatingPool) -> None:
    """Check that the calibration has the draft's kernels."""
    if draft.problems.touch(
        speculating.here,
        (*speculating.at, "calibration"),
        (*speculating.at, "parallel"),
        (*speculating.at, "weight_dtype"),
        ("weight_dtype",),
    ):
        return
    setup = speculation_of(draft.scenario, pool)
    if setup is None:
        return
    try:
        drafted = setup.draft_cost(step_cost_of(draft.scenario, pool, speculating.machine))
        if drafted is not None:
            drafted.check()
    except CalibrationError as error:
        draft.problem(speculating.here, str(error))
