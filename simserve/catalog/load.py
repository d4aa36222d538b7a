"""Look up catalog entries by name."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simserve.catalog.engine_spec import CONSTANTS, EngineSpec
from simserve.catalog.families import families, family_data
from simserve.catalog.hub import cached_config, is_id, known_model
from simserve.catalog.hugging_face import read_config
from simserve.catalog.latent import Indexer, Mla
from simserve.catalog.layers import Experts, LayerGroup
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.catalog.states import MIXERS, StateLayers
from simserve.errors import CatalogError, closest, did_you_mean
from simserve.units import MIB

NOUNS = {"models": "model", "gpus": "GPU", "engines": "engine", "families": "family"}
"""Folders of the catalog, with the noun for an entry."""

PARTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "experts": ("experts", lambda dense_at=(), **sizes: Experts(dense_at=tuple(dense_at), **sizes)),
    "mla": ("mla", Mla),
    "indexer": ("indexer", Indexer),
    **{name: ("linear", partial(StateLayers.of, name)) for name in MIXERS},
}
"""Mappings in a model's YAML, with the fields that they fill and their types."""

# fast: libyaml where PyYAML was built with it; both loaders are safe and equivalent.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def names(kind: str) -> list[str]:
    """List the names of a kind: models, gpus, engines or families, these by the model_type of their files. Raises
    CatalogError for another kind."""
    if kind not in NOUNS:
        raise CatalogError(f"no such kind in the catalog, got '{kind}'; {did_you_mean(kind, NOUNS)}")
    return sorted(families()) if kind == "families" else list(_names(kind))


def load_model(name: str) -> ModelSpec:
    """Load a model by its catalog name, its id on the Hugging Face hub, or the path of its config.json or of the folder
    with it. Raises CatalogError."""
    path = Path(name).expanduser()
    if "/" not in name and not name.endswith(".json"):
        return _of_catalog(name)
    if path.exists():
        return read_config(path / "config.json" if path.is_dir() else path)
    if is_id(name):
        return _of_hub(name)
    known = _nearest("models", path.name)
    raise CatalogError(f"there is no such file, got '{name}'; or, by its name in the catalog, {known}")


def _of_hub(name: str) -> ModelSpec:
    """Return the model of a repository on the Hugging Face hub, without asking there. Raises CatalogError."""
    known, config = known_model(name), cached_config(name)
    if known is not None:
        spec, dtype = _of_catalog(known.name), known.dtype
        if known.context is not None:
            spec = replace(spec, max_position_embeddings=known.context)
        if dtype is None:
            return spec
        if spec.weight_dtype is None and (spec.experts is None or name.lower().startswith("qwen/")):
            return replace(spec, weight_dtype=dtype)  # others leave some layers of models with experts as they were
    if config is not None:
        return replace(read_config(config), name=name.partition("/")[2].lower())
    rule = "the catalog knows no checkpoint of that name, and neither a file nor the local cache of the hub has it"
    raise CatalogError(
        f"{rule}, got '{name}'; give the path of its config.json, or {_nearest('models', name.split('/')[1])}"
    )


def _of_catalog(name: str) -> ModelSpec:
    data = _read("models", name)
    parts = {name: part(**data.pop(key)) for key, (name, part) in PARTS.items() if key in data}
    groups = tuple(LayerGroup(**group) for group in data.pop("groups", ()))
    return ModelSpec(name=name, groups=groups, **parts, **data)


def gpu_name(written: str) -> str:
    """Return the name in the catalog of a GPU as people write it: H100-SXM, or h200, the only one; else the text."""
    alike = _gpus_like(written)
    return alike[0] if len(alike) == 1 else written


def load_gpu(name: str) -> GpuSpec:
    """Load a GPU by its catalog name, or as people write it. Raises CatalogError."""
    alike = _gpus_like(name)
    if len(alike) > 1:
        raise CatalogError(f"there are several in the catalog, got '{name}'; say which: {', '.join(alike)}")
    name = gpu_name(name)
    data = _read("gpus", name)
    data["hbm_bytes"] = data.pop("memory_mib") * MIB
    return GpuSpec(name=name, **data)


def _gpus_like(written: str) -> list[str]:
    """Return the GPU of a name, or all of which the names begin with it, whatever its case."""
    name, known = re.sub(r"[\s_]+", "-", written.strip().lower()), _names("gpus")
    return [name] if name in known else [each for each in known if each.startswith(f"{name}-")]


def load_engine(
    name: str,
    *,
    version: str | None = None,
    fitted: Mapping[str, float] | None = None,
    fitted_version: str | None = None,
    n_gpus: int | None = None,
    **constants: float | str | None,
) -> EngineSpec:
    """Load an engine by its name. Raises CatalogError.

    Constants are those of the oldest version in the catalog, then those `fitted` to its servers, or to servers of
    `fitted_version` after the changes up to that, then changes up to `version`, or up to the engine's default without,
    then `constants`. With `n_gpus` 1, what it says of one GPU replaces what is `fitted`, to servers of several.
    """
    for key in constants:
        if key not in CONSTANTS:
            raise CatalogError(f"no such constant of an engine, got '{key}'; {did_you_mean(key, CONSTANTS)}")
    data = _read("engines", name)
    versions: dict[str, dict[str, Any]] = data.pop("versions", {})
    default, alone = data.pop("default", None), data.pop("of_one_gpu", None)
    engine = EngineSpec(name=name, fitted_to=fitted_version or data["version"], **data)
    version, since = version or default, _release(name, fitted_version or "0.0")
    reached = [release for release in versions if _release(name, release) <= _release(name, version or "0.0")]
    before = [versions[release] for release in reached if _release(name, release) <= since]
    own: dict[str, Any] = {"source": "fitted to serving runs, see the calibration", **(fitted or {})}
    fits = [own] if alone is None or n_gpus != 1 else [own, alone]
    given: dict[str, Any] = {"source": "given by the scenario", **constants}
    changes, sources = dict[str, Any](), dict(engine.sources)
    for changed in (*before, *fits, *(versions[release] for release in reached[len(before) :]), given):
        values = {key: value for key, value in changed.items() if key != "source"}
        changes |= values
        sources |= dict.fromkeys(values, changed["source"])
    version, constants_of = version or engine.version, [engine.version, *reached][-1]
    return replace(engine, **changes, sources=sources, version=version, constants_of=constants_of)


def default_version(engine: str) -> str | None:
    """Return the version of an engine where a scenario names none; None for ideal. Raises CatalogError."""
    data = _read("engines", engine)
    return None if engine == "ideal" else str(data.get("default", data["version"]))


def versions(engine: str) -> list[str]:
    """Return the versions of an engine of which the catalog has constants, the oldest first."""
    data = _read("engines", engine)
    return [str(data["version"]), *data.get("versions", {})]


def is_listed(engine: EngineSpec) -> bool:
    """Tell whether the catalog lists the version of an engine; patch releases count as their release."""
    return engine.name == "ideal" or engine.version.split(".")[:2] == engine.constants_of.split(".")[:2]


def _release(engine: str, version: str) -> tuple[int, ...]:
    """Parse 0.12 as (0, 12) and 0.12.1rc1 as (0, 12, 1) for comparisons."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        known = f"the catalog has {', '.join(versions(engine))}"
        raise CatalogError(f"a version of {engine} must begin with two numbers, got '{version}'; {known}")
    return tuple(int(part) for part in match.groups() if part is not None)


def describe(kind: str, name: str) -> dict[str, Any]:
    """Return an entry as plain data: its fields by name and their sources. Raises CatalogError."""
    load: dict[str, Callable[[str], Any]] = {"models": load_model, "gpus": load_gpu, "engines": load_engine}
    if name not in names(kind) and kind == "families":
        rule = "no file in the catalog, which models of common keys such as llama do not need"
        raise CatalogError(f"{rule}, got '{name}'; {did_you_mean(name, families())}")
    if kind == "families":
        return dict(family_data(name))
    thing = load[kind](name)
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    """Return dataclasses as mappings, and groups as a list of them without what they do not have."""
    if isinstance(value, tuple):
        return [each if type(each) in (str, tuple) else _kept(asdict(each)) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _kept(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if value and (key, value) != ("ratio", 1)}


@cache
def _names(kind: str) -> tuple[str, ...]:
    folder = resources.files("simserve.catalog") / kind
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def _nearest(kind: str, name: str) -> str:
    """Return a remedy for an unknown name: those that begin with it; else the nearest with such letters and no other
    numbers, as an a10 is no misspelled a100 and a phi-4 no gpt-4; else those of its letters, or all."""
    known, numbers, family = _names(kind), set(re.findall(r"\d+", name)), _family(name)
    longer = [each for each in known if each.startswith(name.lower())]
    if len(longer) > 1:
        return f"choose from {', '.join(longer)}"
    alike = [each for each in known if closest(family, [_family(each)])] if numbers else known
    near = closest(name, [each for each in alike if numbers <= set(re.findall(r"\d+", each))])
    same = [each for each in known if family and each.startswith(family)]
    return f"did you mean {near}?" if near else f"choose from {', '.join(same or known)}"


def _family(name: str) -> str:
    """Return the letters that a name begins with."""
    return re.split(r"[^a-z]", name.lower())[0]


def _read(kind: str, name: str) -> dict[str, Any]:
    if name not in _names(kind):
        path = ", or the path of a config.json" if kind == "models" else ""
        raise CatalogError(f"no such {NOUNS[kind]} in the catalog{path}, got '{name}'; {_nearest(kind, name)}")
    return deepcopy(_parsed(kind, name))


@cache  # fast: a scenario looks up each thing several times
def _parsed(kind: str, name: str) -> dict[str, Any]:
    text = (resources.files("simserve.catalog") / kind / f"{name}.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=LOADER)
    return data
