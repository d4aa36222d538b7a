"""Resolving how pools speculate: what goes together, whether the draft suits its target, and seats for all tokens."""

from dataclasses import dataclass

from simserve import catalog, plugins
from simserve.catalog.specs import ModelSpec
from simserve.cost.memory import weights_bytes
from simserve.cost.ops import Shard
from simserve.errors import CalibrationError
from simserve.plugins.validation import Path
from simserve.scenario.draft import Draft
from simserve.scenario.knobs import TOKENS_AND_SEATS
from simserve.scenario.servers import Pool, Speculation
from simserve.scenario.setup import Machine, n_sharing, step_cost_of
from simserve.scenario.speculating import MODELS, speculation_of
from simserve.schedulers.base import Scheduler

GB = 1e9


@dataclass(frozen=True)
class _Asked:
    """A pool that is to speculate."""

    pool: Pool
    at: Path
    machine: Machine
    speculation: Speculation

    @property
    def here(self) -> Path:
        """Where it says so."""
        return (*self.at, "speculation")


def resolve_speculation(
    draft: Draft, pool: Pool, at: Path, runs: tuple[Machine, Scheduler | None]
) -> tuple[Pool, Scheduler | None]:
    """The pool with its draft's details filled in, and its scheduler, whose seats may be fewer for it."""
    machine, scheduler = runs
    if pool.speculation is None or draft.mistakes.touch((*at, "speculation")):
        return pool, scheduler
    asked = _Asked(pool, at, machine, pool.speculation)
    _check_keys(draft, asked)
    _check_surroundings(draft, asked)
    if not pool.speculation.tokens:
        return pool, scheduler
    if scheduler is not None:
        scheduler = _check_scheduler(draft, asked, scheduler)
    update: dict[str, object] = {"speculation": _with_model(draft, asked)}
    if scheduler is not None and scheduler is not runs[1] and pool.scheduler is not None:
        update["scheduler"] = {"kind": pool.scheduler["kind"], **plugins.spelled_out(scheduler)}
    pool = pool.model_copy(update=update)
    _check_timed(draft, pool, asked)
    return pool, scheduler


def check_draft_length(draft: Draft, pool: Pool, at: Path) -> None:
    """Requests may not be longer than the draft model can read."""
    asked = pool.speculation
    here = (*at, "max_model_len")
    if asked is None or asked.model is None or draft.mistakes.touch((*at, "speculation"), here):
        return
    most = catalog.load_model(asked.model).max_position_embeddings
    if pool.max_model_len is not None and pool.max_model_len > most:
        rule = f"must be at most the {most} tokens of the draft model {asked.model}"
        draft.flaw(here, rule, pool.max_model_len, f"set max_model_len: {most}")


def _check_keys(draft: Draft, asked: _Asked) -> None:
    given, here = asked.speculation, asked.here
    if given.tokens and isinstance(given.acceptance, tuple) and len(given.acceptance) != given.tokens:
        rule = f"must be one rate, or one for each of the {given.tokens} tokens"
        draft.flaw((*here, "acceptance"), rule, list(given.acceptance))
    if given.kind == "draft_model" and given.model is None:
        draft.flaw((*here, "model"), "a draft_model needs one", None, "name a small one of the target's family")
    if given.kind == "draft_model":
        return
    for key, value in (("model", given.model), ("weight_dtype", given.weight_dtype)):
        if value is not None:
            draft.flaw((*here, key), f"is a draft_model's, not that of {given.kind}", value, "leave it out")


def _check_surroundings(draft: Draft, asked: _Asked) -> None:
    pool, here, kind = asked.pool, asked.here, asked.speculation.kind
    if pool.role != "both":
        draft.flaw(here, f"{pool.role} pools that speculate are not there yet", kind, "leave it out, or use role: both")
    if pool.parallel.pipeline > 1:
        draft.flaw(
            here, "a pipeline that speculates is not there yet", kind, "leave it out, or use parallel.pipeline 1"
        )
    if n_sharing(asked.machine.model, pool.parallel.data) > 1:
        rule = "ranks that share experts and speculate are not there yet"
        draft.flaw(here, rule, kind, "leave it out, or use parallel.data 1")
    if pool.host_tier is not None:
        rule = "host memory beside a pool that speculates is not there yet"
        draft.flaw(here, rule, kind, "leave it out, or leave out host_tier")
    written = pool.engine or draft.scenario.engine
    if written.async_scheduling and kind not in MODELS:
        where = ("engine",) if pool.engine is None else (*asked.at, "engine")
        rule = f"{kind} proposes from tokens on the host, so no step is planned ahead"
        draft.flaw((*where, "async_scheduling"), rule, True, "leave it out")


def _check_scheduler(draft: Draft, asked: _Asked, scheduler: Scheduler) -> Scheduler:
    """The policy; what all its seats verify must fit into a step: a default gives way, an explicit value is wrong."""
    at = (*asked.at, "scheduler")
    if scheduler.orders and not scheduler.follows:
        rule = "requests that pass each other where a pool speculates are not there yet"
        draft.flaw((*at, "policy"), rule, getattr(scheduler, "policy", None), "use policy: fcfs")
        return scheduler
    if scheduler.runs_to_completion or scheduler.follows:
        kind = (asked.pool.scheduler or {}).get("kind")
        why = "pads whole batches" if scheduler.runs_to_completion else "counts tokens out by steps"
        remedy = "use chunked, prefill_first, continuous or trtllm"
        draft.flaw((*at, "kind"), f"{kind} {why}, so its requests cannot get several tokens a step", None, remedy)
        return scheduler
    each = asked.speculation.tokens + 1
    names = next((pair for pair in TOKENS_AND_SEATS if hasattr(scheduler, pair[0])), None)
    if names is None or getattr(scheduler, names[0]) is None or draft.mistakes.touch(at):
        return scheduler
    budget, seats = (getattr(scheduler, name) for name in names)
    if seats * each <= budget:
        return scheduler
    given = draft.scenario.cluster.pools[int(asked.at[-1])].scheduler or {}
    if names[1] in given or budget < each:
        key = names[1] if names[0] not in given else names[0]
        rule = f"a step verifies {each} tokens of each of {names[1]}, {seats}, and {names[0]} is {budget}"
        remedy = f"use {names[1]}: {budget // each}" if budget >= each else f"use {names[0]}: {seats * each}"
        draft.flaw((*at, key), rule, None, remedy)
        return scheduler
    draft.origins[*at, names[1]] = f"no more than {names[0]} by {each}"
    kind = (asked.pool.scheduler or {})["kind"]
    found: Scheduler = plugins.build(
        "schedulers", {"kind": kind, **plugins.spelled_out(scheduler), names[1]: budget // each}
    )
    return found


def _with_model(draft: Draft, asked: _Asked) -> Speculation:
    """What is asked for with the draft model's dtype and an absolute path; a mistake where it does not suit."""
    given, here = asked.speculation, (*asked.here, "model")
    if given.model is None or draft.mistakes.touch(here):
        return given
    found = draft.find_file(given.model) if given.model.endswith(".json") or "/" in given.model else None
    name = given.model if found is None else str(found)
    model = draft.looked_up(here, lambda: catalog.load_model(name))
    if model is None:
        return given
    dtype = given.weight_dtype or model.weight_dtype or draft.scenario.weight_dtype
    if given.weight_dtype is None:
        draft.origins[*asked.here, "weight_dtype"] = f"model {model.name}" if model.weight_dtype else "weight_dtype"
    _check_model(draft, asked, model, dtype)
    return given.model_copy(update={"model": name, "weight_dtype": dtype})


def _check_model(draft: Draft, asked: _Asked, model: ModelSpec, dtype: str) -> None:
    target, here, tensor = asked.machine.model, (*asked.here, "model"), asked.pool.parallel.tensor
    bytes_of = weights_bytes(Shard(model, dtype)), weights_bytes(Shard(target, draft.scenario.weight_dtype))
    if bytes_of[0] > bytes_of[1]:
        sizes = " and ".join(f"{n_bytes / GB:.1f} GB" for n_bytes in bytes_of)
        rule = f"must be smaller than its target {target.name}; their weights take {sizes}"
        draft.flaw(here, rule, model.name, "a draft pays with a tenth of them or less")
    if model.vocab_size != target.vocab_size:
        words = f"the {target.vocab_size} words of {target.name}"
        rule = f"must have {words}, which verifies its tokens, not {model.vocab_size}"
        draft.flaw(here, rule, model.name, "use a smaller model of the same family")
    if model.n_heads % tensor or (model.n_kv_heads % tensor and tensor % model.n_kv_heads):
        rule = f"is divided as its target is, and its {model.n_heads} heads must be divisible by parallel.tensor"
        draft.flaw(here, rule, tensor, "use fewer GPUs or another draft")
    if model.windowed:
        draft.flaw(here, "a draft model with a sliding window is not there yet", model.name, "use another draft")


def _check_timed(draft: Draft, pool: Pool, asked: _Asked) -> None:
    """The calibration knows the draft's kernels."""
    if draft.mistakes.touch(asked.here, (*asked.at, "calibration"), (*asked.at, "parallel"), ("weight_dtype",)):
        return
    found = speculation_of(draft.scenario, pool)
    if found is None:
        return
    try:
        drafted = found.draft_cost(step_cost_of(draft.scenario, pool, asked.machine))
        if drafted is not None:
            drafted.check()
    except CalibrationError as error:
        draft.flaw(asked.here, str(error))
