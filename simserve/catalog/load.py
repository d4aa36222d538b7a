"""Looking things up in the catalog by name."""

from dataclasses import fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simserve.catalog.hugging_face import read_config
from simserve.catalog.specs import EngineSpec, GpuSpec, ModelSpec
from simserve.errors import CatalogError
from simserve.plugins.flaws import did_you_mean

KINDS = ("models", "gpus", "engines")
MIB = 2**20
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def names(kind: str) -> list[str]:
    """All names of a kind: models, gpus or engines."""
    folder = resources.files("simserve.catalog") / kind
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_model(name: str) -> ModelSpec:
    """A model by its name in the catalog, or by the path of its Hugging Face config.json. Raises CatalogError."""
    if name.endswith(".json") or "/" in name:
        return read_config(Path(name))
    return ModelSpec(name=name, **_read("models", name))


def load_gpu(name: str) -> GpuSpec:
    """A GPU by its name in the catalog. Raises CatalogError."""
    data = _read("gpus", name)
    data["hbm_bytes"] = data.pop("memory_mib") * MIB
    return GpuSpec(name=name, **data)


def load_engine(name: str, **constants: float) -> EngineSpec:
    """An engine by its name, with some of its constants replaced. Raises CatalogError."""
    return replace(EngineSpec(name=name, version=None, **_read("engines", name)), **constants)  # type: ignore[arg-type]


def describe(kind: str, name: str) -> dict[str, Any]:
    """A thing as plain data: its numbers, and their sources under `sources`. Raises CatalogError."""
    loaders: dict[str, Any] = {"models": load_model, "gpus": load_gpu, "engines": load_engine}
    thing = loaders[kind](name)
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def _read(kind: str, name: str) -> dict[str, Any]:
    if name not in names(kind):
        raise CatalogError(
            f"no such {kind.removesuffix('s')} in the catalog, got '{name}'; {did_you_mean(name, names(kind))}"
        )
    text = (resources.files("simserve.catalog") / kind / f"{name}.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_Loader)  # a safe loader
    return data
