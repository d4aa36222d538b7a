"""Resolve weight dtypes: as the scenario or a pool states, else as the checkpoint does; check them against cards."""

from collections.abc import Iterator

from simserve import catalog
from simserve.catalog.specs import COMPUTES_IN, NEEDS_RATE, GpuSpec, ModelSpec
from simserve.errors import CatalogError
from simserve.plugins.validation import Path
from simserve.scenario.draft import Draft

FLOAT8 = frozenset({"fp8", "fp8_block"})
"""Dtypes of the same size. A checkpoint in fp8_block is often called fp8, and its kernels follow its scales."""

HERE: Path = ("weight_dtype",)


def resolve_weight_dtype(draft: Draft) -> None:
    """Fill in the dtypes of checkpoints where neither scenario nor pool states one; report different ones."""
    if draft.problems.touch(HERE):
        return
    scenario, is_stated = draft.scenario, "weight_dtype" in draft.scenario.model_fields_set
    pools, shared = list(scenario.cluster.pools), dict[int, str]()
    models = dict(_models(draft))
    for index, (name, model) in models.items():
        own, here = pools[index].weight_dtype, ("cluster", "pools", index, "weight_dtype")
        stated = own or (scenario.weight_dtype if is_stated else None)
        if stated is not None:
            _check_stated(draft, HERE if own is None else here, name, model, stated)
        is_meant = stated == "fp8" and model.weight_dtype == "fp8_block"
        dtype = "fp8_block" if is_meant else stated or model.weight_dtype or scenario.weight_dtype
        if own is None:
            shared[index] = dtype
        elif is_meant:
            pools[index] = pools[index].model_copy(update={"weight_dtype": dtype})
            draft.replaced[here] = _meant([model])
    if len(set(shared.values())) == 1:
        of = dict(models[index] for index in shared)
        (dtype,) = set(shared.values())
        scenario = scenario.model_copy(update={"weight_dtype": dtype})
        if is_stated and dtype != draft.scenario.weight_dtype:
            draft.replaced[HERE] = _meant([*of.values()])
        elif not is_stated and any(model.weight_dtype for model in of.values()):
            draft.origins[HERE] = f"model {[*of.values()][-1].name}"
        shared = {}
    for index, dtype in shared.items():
        model = models[index][1]
        if is_stated and dtype == scenario.weight_dtype:
            continue
        pools[index] = pools[index].model_copy(update={"weight_dtype": dtype})
        of_model = f"model {model.name}" if model.weight_dtype else "default"
        draft.origins["cluster", "pools", index, "weight_dtype"] = _meant([model]) if is_stated else of_model
    cluster = scenario.cluster.model_copy(update={"pools": tuple(pools)})
    draft.scenario = scenario.model_copy(update={"cluster": cluster})


def check_rate(draft: Draft, here: Path, dtype: str, gpu: GpuSpec) -> None:
    """Report a dtype of weights and activations that the card's tensor cores do not multiply."""
    if dtype in NEEDS_RATE and not gpu.multiplies(dtype) and not draft.problems.touch(here):
        rule = f"computes in {COMPUTES_IN[dtype]}, for which {gpu.name} has no rate by its data sheet"
        remedy = f"use {NEEDS_RATE[dtype]}, which is weight-only, or another gpu"
        draft.problem(here, rule, dtype, remedy)


def _meant(models: list[ModelSpec]) -> str:
    """Say why fp8 of models that are published in fp8_block is that."""
    return f"fp8 of {' and '.join(model.name for model in models)} is scaled in blocks"


def _check_stated(draft: Draft, here: Path, name: str, model: ModelSpec, stated: str) -> None:
    """Check a stated dtype against a config.json, which is one checkpoint; catalog models exist in many dtypes."""
    stored = model.weight_dtype
    is_file = name not in catalog.names("models")
    if is_file and stored not in (None, stated) and not {stored, stated} <= FLOAT8 and not draft.problems.touch(here):
        rule = f"the weights of {model.name} are in {stored}, by its quantization_config"
        draft.problem(here, rule, stated, f"leave it out, or give the config.json of a checkpoint in {stated}")


def _models(draft: Draft) -> Iterator[tuple[int, tuple[str, ModelSpec]]]:
    """Yield the model of each pool with its name or path; unreadable ones are reported elsewhere."""
    scenario = draft.scenario
    for index, pool in enumerate(scenario.cluster.pools):
        name = pool.model or scenario.model
        try:
            yield index, (name, catalog.load_model(draft.absolute_model(name)))
        except CatalogError:
            continue
