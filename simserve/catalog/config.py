"""Config: the values of a Hugging Face config.json under the common names of their keys."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import ceil, prod
from typing import Any

from simserve.catalog.family import Family
from simserve.catalog.types import checked
from simserve.errors import CatalogError
from simserve.plugins.validation import MOST_SHOWN

MOST_NAMED = 3
"""Keys that an error names."""


@dataclass(frozen=True)
class Config:
    """The values of a file by the common names of their keys, and what is known of its family."""

    family: Family
    values: Mapping[str, Any]

    @property
    def n_layers(self) -> int:
        """Layers of the file, as it counts them."""
        return int(self.values["num_hidden_layers"])

    def get(self, key: str) -> Any:
        """Return a value, None for one that is missing."""
        return self.values.get(key)

    def number(self, value: object) -> Any:
        """Return a number, or the value of the key that stands for it."""
        return self.values.get(value) if type(value) is str else value

    def named(self, key: str) -> str:
        """Return the key that the file has for a common one."""
        return self.family.names.get(key, key)

    def check_needed(self, keys: Iterable[str], remedy: str) -> None:
        """Raise CatalogError for keys that are missing, or 0."""
        missing = [key for key in keys if not self.get(key)]
        if missing:
            verb, given = "is" if len(missing) == 1 else "are", self.get(missing[0])
            names = " and ".join(map(self.named, missing))
            raise CatalogError(f"{names} {verb} {'missing' if given is None else given}; {remedy}")


def read_keys(family: Family, given: Mapping[str, Any]) -> list[Config]:
    """Return a file's values in their types, with those that it leaves out: for each layer, or once where all are
    alike. Raises CatalogError for a key of what is not simulated, or of another type."""
    flat = _flat(family, given)
    for key in _on(flat):
        refusal = family.refusal(key)
        if refusal is not None and flat[key] != 0:
            rule = f"{key}: {refusal} are not supported yet"
            raise CatalogError(f"{rule}, got {json.dumps(flat[key])[:MOST_SHOWN]}; choose another model")
    n_layers = flat.get(family.names.get("num_hidden_layers", "num_hidden_layers"))
    listed = {key: value for key, value in flat.items() if _is_listed(family, key, value, n_layers)}
    common = dict(checked(family.file_type, {key: value for key, value in flat.items() if key not in listed}))
    layers = [dict(zip(listed, layer, strict=True)) for layer in [*zip(*listed.values(), strict=True)] or [()]]
    typed = {str(layer): checked(family.file_type, layer).model_dump(exclude_unset=True) for layer in layers}
    configs = {layer: _completed(Config(family, {**common, **own})) for layer, own in typed.items()}
    return [configs[str(layer)] for layer in layers]


def _completed(config: Config) -> Config:
    """Return typed values under their common names, with those that a file leaves out."""
    family, values = config.family, {key: value for key, value in config.values.items() if value is not None}
    own = set(family.names.values()) - family.names.keys()
    common = {key: value for key, value in values.items() if key not in own}
    for key, name in family.names.items():
        if name in values and common.get(key) not in (None, values[name]) and key != "max_position_embeddings":
            raise CatalogError(f"{name} and {key} must be the same, got {values[name]} and {common[key]}; delete one")
    common |= {key: values[name] for key, name in family.names.items() if name in values}
    config = Config(family, {**family.defaults, **{key: value for key, value in common.items() if value != "auto"}})
    for key in family.derived:
        config = _with_derived(config, key)
    derived = {key: config.get(key) for key, each in family.derived.items() if config.get(key) != each.otherwise}
    checked(family.file_type, derived)
    for key, known in family.only.items():
        value = config.get(key)
        if value is not None and value not in [config.number(each) if each in family.types else each for each in known]:
            rule = f"{config.named(key)}: only {' or '.join(map(json.dumps, known))} is supported"
            raise CatalogError(f"{rule}, got {json.dumps(value)[:MOST_SHOWN]}; choose another model")
    return config


def check_understood(family: Family, given: Mapping[str, Any]) -> None:
    """Raise CatalogError for keys that may change the arithmetic and are not understood."""
    flat = _flat(family, given)
    unknown = [key for key in _on(flat) if key not in family.understood and family.refusal(key) is None]
    if unknown:
        named = ", ".join(f"{key}: {json.dumps(flat[key])[:MOST_SHOWN]}" for key in unknown[:MOST_NAMED])
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        model_type = given.get("model_type")
        of = f"model_type {model_type}" if model_type else "a file without model_type"
        raise CatalogError(
            f"keys of {of} that may change sizes or attention are not understood, got {named}{more}; "
            "delete them in a copy of the file if they change neither, else choose another model"
        )


def _on(values: Mapping[str, Any]) -> list[str]:
    """List the keys that switch something on: null, false and empty values do not."""
    on = {key: value for key, value in values.items() if value is not None and value is not False}
    return [key for key, value in on.items() if value not in ("", [], {})]


def _flat(family: Family, given: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the keys of a file with those of its mappings that the family has, each with a point before it, and for a
    list of mappings the lists of what is read or on."""
    flat: dict[str, Any] = {}
    for key, value in ((before + name, value) for name, value in given.items()):
        match value:
            case dict() if key in family.mappings:
                flat |= _flat(family, value, f"{key}.")
            case [dict(), *_] if key in family.mappings:
                blocks = [_flat(family, each, f"{key}.") if type(each) is dict else {key: each} for each in value]
                lists = {each: [block.get(each) for block in blocks] for each in dict.fromkeys(chain(*blocks))}
                flat |= {each: values for each, values in lists.items() if each in family.types or any(values)}
            case _:
                flat[key] = value
    return flat


def _is_listed(family: Family, key: str, value: Any, n_layers: Any) -> bool:
    """Tell whether a value is a list of one for each layer."""
    match value:
        case [first, *others] if len(value) == n_layers:
            return key in family.by_layer or (key in family.numbers and all(each == first for each in others))
    return False


def _with_derived(config: Config, key: str) -> Config:
    """Return the values with one that the file leaves out. Raises CatalogError where it is no whole number."""
    if config.get(key) is not None:
        return config
    derived = config.family.derived[key]
    if derived.when is not None and not config.get(derived.when):
        first = derived.times[0] if derived.otherwise is None else derived.otherwise
        return Config(config.family, {**config.values, key: config.number(first)})
    for need in derived.needs:
        if need in config.family.derived:
            config = _with_derived(config, need)
    config.check_needed(derived.needs, f"{config.named(key)} follows from {' and '.join(derived.needs)}")
    top, over = prod(map(config.number, derived.times)), config.number(derived.over)
    multiple = config.number(derived.multiple_of)
    value = top / over
    if derived.rounds_off:
        nearest = max(multiple, int(value + multiple / 2) // multiple * multiple)
        value = nearest + multiple * (nearest < 0.9 * value)
    elif derived.rounds_up or multiple != 1:
        value = ceil((ceil(value) if derived.rounds_up else int(value)) / multiple) * multiple
    if value != int(value):
        product = " times ".join(map(str, derived.times))
        divided, got = (product, top) if over == derived.over else (f"{product}, {top}", over)
        raise CatalogError(f"{derived.over} must divide {divided}, got {got}; compare both")
    return Config(config.family, {**config.values, key: int(value)})
