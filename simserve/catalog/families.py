"""Families: the files of the catalog about the config.json of a model_type, read and checked."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from simserve.catalog.family import BY_TYPES, NUMBERS, SIZES, TYPES, Family, Mixer, Mlp
from simserve.catalog.layers import Heads, LayerInputs, SharedBlocks
from simserve.catalog.states import MIXERS
from simserve.catalog.types import checked
from simserve.errors import CatalogError, did_you_mean
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import problems_of

OWN_FILE = "family.yaml"
"""The file of a family of one's own, beside its config.json."""

OPTIONAL = frozenset({"value_head_dim"})
"""Sizes of parts that a family need not have."""


class _UniqueKeys(yaml.SafeLoader):
    """Reads YAML in which no key is given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. Raises ConstructorError."""
        twice = [key for key, n in Counter(str(key.value) for key, _ in node.value).items() if n > 1]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def family_of(model_type: object, folder: Path) -> Family:
    """Return what is known of a model_type, or what a file of its own in the folder of its config.json says.

    Raises CatalogError for a file that is invalid.
    """
    own = folder / OWN_FILE
    if not own.is_file():
        return families().get(str(model_type), _other())
    try:
        data = yaml.load(read_file(own, SCENARIO_BYTES // 16), _UniqueKeys)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CatalogError(f"{own}: cannot be read ({' '.join(str(error).split())}); write it as YAML") from None
    return _named(str(own), data)


@cache  # fast: a folder of files
def families() -> Mapping[str, Family]:
    """Return the families of the catalog by model_type. Raises CatalogError for a type with two files."""
    files: dict[str, Family] = {}
    for name in sorted(_parsed().keys() - {"shared_keys"}):
        family = _named(f"families/{name}.yaml", _parsed()[name])
        for each in family.model_types:
            if each in files:
                raise CatalogError(f"families/{name}.yaml: a model type must have one file, got {each}; delete one")
            files[each] = family
    return files


def family_data(model_type: str) -> Mapping[str, Any]:
    """Return what the file of a known model_type says, without the shared keys."""
    return next(data for data in _parsed().values() if model_type in data.get("model_types", "").split())


@cache
def common_family() -> Family:
    """Return the keys that all families have in common."""
    return _of_data(_parsed()["shared_keys"])


@cache
def _other() -> Family:
    return Family(source=common_family().source).within(common_family())


@cache
def _parsed() -> Mapping[str, Any]:
    folder = resources.files("simserve.catalog") / "families"
    files = (file for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {file.name.removesuffix(".yaml"): yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def _named(file: str, data: object) -> Family:
    try:
        return read_family(data)
    except CatalogError as error:
        raise CatalogError(f"{file}: {error}") from None


def read_family(data: object) -> Family:
    """Return the family of a file's data. Raises CatalogError by the key of what is wrong."""
    own = _of_data(data)
    _check_once(own)
    family = own.within(common_family())
    _check_keys(own, family)
    _check_cycles(own)
    checked(family.file_type, own.defaults, ("defaults",))
    return family


def _of_data(data: object) -> Family:
    try:
        return Family.model_validate(data)
    except ValidationError as error:
        problem = problems_of(error, data)[0]
        near = did_you_mean(str(problem.path[0]), Family.model_fields) if problem.kind == "unknown" else None
        raise CatalogError(str(replace(problem, remedy=problem.remedy or near))) from None


def _check_once(family: Family) -> None:
    """Check that there is one rule for a key, and that types are known."""
    unknown = next((kind for kind in family.reads if kind not in TYPES), None)
    if unknown is not None:
        raise CatalogError(f"reads: must be by type, got {unknown}; choose from {', '.join(TYPES)}")
    common = common_family().types
    rules = [(f"reads.{kind}", key) for kind, keys in family.reads.items() for key in keys]
    rules += [("ignores", key) for key in family.ignores]
    rules += [("names", key) for key in family.names.values() if key not in common]
    rules += [("derived", f"a default of {key}") for key in family.derived]
    first = {
        **dict.fromkeys(common, "shared_keys.yaml"),
        **{f"a default of {key}": "defaults" for key in family.defaults},
    }
    for place, key in rules:
        other = first.setdefault(key, place)
        if other != place:
            raise CatalogError(f"{place}: there must be one rule for a key, got {key}, which {other} has; delete one")


def _check_keys(own: Family, family: Family) -> None:
    """Check that keys, their types, kinds and sizes are known ones."""
    rules = [*(("layers", each) for each in own.layers), *(("experts", each) for each in own.experts)]
    parts = {
        "state.sizes": own.state.sizes if own.state else {},
        "windows": own.windows,
        "layer_inputs": own.layer_inputs,
        "shared_blocks": own.shared_blocks,
    }
    read: list[tuple[str, Iterable[Any], tuple[str, ...]]] = [
        ("names", own.names, ()),
        *(("names", [name], _alike(family.kinds.get(key, ""))) for key, name in own.names.items()),
        ("needs", own.needs, ()),
        ("only", own.only, ()),
        ("defaults", own.defaults, ()),
        ("mixers and mlps", (*own.mixers, *own.mlps), ()),
        *(("derived", [key, *each.needs], NUMBERS) for key, each in own.derived.items()),
        *((place, [rule.key or None], BY_TYPES[rule.by]) for place, rule in rules),
        *((place, [rule.offset], NUMBERS) for place, rule in rules if type(rule.offset) is str),
        *((place, [rule.when], ()) for place, rule in rules),
        *((place, keys.values(), SIZES) for place, keys in parts.items()),
        ("state.dtype", [own.state and own.state.dtype], ("dtype",)),
    ]
    for place, key, types in ((place, key, types) for place, keys, types in read for key in keys if key is not None):
        kind = family.kinds.get(key)
        if kind is None:
            raise CatalogError(f"{place}: must be a key that is read, got {key}; give its type in reads")
        if types and kind not in types:
            raise CatalogError(f"{place}: must be a key of type {', '.join(types)}, got {key} of {kind}")
    for place, rule in rules:
        known, kinds = get_args(Mlp if place == "experts" else Mixer), {rule.kind, rule.others, *rule.kinds.values()}
        if own.state is None and rule.by != "letters" and any("state" in str(each) for each in kinds):
            raise CatalogError("state is missing; layers of kind state need its mixer and sizes")
        wrong = kinds - {None, *known}
        if wrong and rule.by != "letters":
            raise CatalogError(f"{place}: must have kinds of {', '.join(known)}, got {min(map(str, wrong))}")
    if own.state is not None:
        _check_sizes("state.sizes", own.state.sizes, MIXERS[own.state.mixer].sizes)
    for place, part in (("windows", Heads), ("layer_inputs", LayerInputs), ("shared_blocks", SharedBlocks)):
        if sizes := getattr(own, place):
            _check_sizes(place, sizes, [field.name for field in fields(part)])


def _alike(kind: str) -> tuple[str, ...]:
    """Return the types of values of one kind."""
    return tuple(each for each in TYPES if each.partition("_")[0] == kind.partition("_")[0])


def _check_sizes(place: str, sizes: Mapping[str, str], of_part: Iterable[str]) -> None:
    """Check that there is a key for every size of a part."""
    needed = {*of_part} - (OPTIONAL if place == "windows" else set())
    wrong = sorted(needed - sizes.keys()) or sorted(sizes.keys() - needed - OPTIONAL)
    if wrong:
        rule = "has no key" if wrong[0] in needed else "is no size of it"
        raise CatalogError(f"{place}: {wrong[0]} {rule}; give one for each of {', '.join(sorted(needed))}")


def _check_cycles(family: Family) -> None:
    """Check that no value follows from itself."""
    try:
        TopologicalSorter({key: each.needs for key, each in family.derived.items()}).prepare()
    except CycleError as error:
        cycle = " needs ".join(reversed(error.args[1]))
        raise CatalogError(
            f"derived: values must not need themselves, got {cycle}; give one of them a number"
        ) from None
