"""Resolve the weight dtype: as the scenario states, else as the checkpoint does."""

from collections.abc import Iterator

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.errors import CatalogError
from simserve.scenario.draft import Draft
from simserve.scenario.pools import absolute_model

FLOAT8 = frozenset({"fp8", "fp8_block"})
"""Dtypes of the same size; fp8_block checkpoints are often called fp8."""

HERE = ("weight_dtype",)


def resolve_weight_dtype(draft: Draft) -> None:
    """Fill in the checkpoint's dtype where the scenario states none; report a different one."""
    if draft.problems.touch(HERE):
        return
    models = dict(_models(draft))
    if "weight_dtype" in draft.scenario.model_fields_set:
        _check_stated(draft, models)
        return
    stored = {model.weight_dtype or draft.scenario.weight_dtype: name for name, model in models.items()}
    if len(stored) > 1:
        each = " and ".join(f"{name} in {dtype}" for dtype, name in stored.items())
        draft.problem(HERE, f"pools with different weight dtypes are not supported yet: {each}", None, "use one dtype")
        return
    for dtype, name in stored.items():
        if models[name].weight_dtype is not None:
            draft.scenario = draft.scenario.model_copy(update={"weight_dtype": dtype})
            draft.origins[HERE] = f"model {models[name].name}"


def _check_stated(draft: Draft, models: dict[str, ModelSpec]) -> None:
    """Check a stated dtype against a config.json, which is one checkpoint; catalog models exist in many dtypes."""
    stated = draft.scenario.weight_dtype
    for name, model in models.items():
        stored = model.weight_dtype
        is_file = name not in catalog.names("models")
        if is_file and stored not in (None, stated) and not {stored, stated} <= FLOAT8:
            rule = f"the weights of {model.name} are in {stored}, by its quantization_config"
            draft.problem(HERE, rule, stated, f"leave it out, or give the config.json of a checkpoint in {stated}")


def _models(draft: Draft) -> Iterator[tuple[str, ModelSpec]]:
    """Yield the models of all pools by name or path; unreadable ones are reported elsewhere."""
    scenario = draft.scenario
    for name in dict.fromkeys(pool.model or scenario.model for pool in scenario.cluster.pools):
        try:
            yield name, catalog.load_model(absolute_model(draft, name))
        except CatalogError:
            continue
