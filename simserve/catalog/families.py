"""Families: the keys of a Hugging Face config.json and the layers that follow from them, by its model_type.

Each family is a YAML file of the catalog, or `family.yaml` beside a config.json; that of the common keys holds for all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BeforeValidator, Field, ValidationError, create_model

from simserve.catalog.config_keys import TYPES
from simserve.catalog.layers import Heads, LayerInputs
from simserve.catalog.states import MIXERS, StateMixer
from simserve.catalog.types import Section, Strict
from simserve.errors import CatalogError, did_you_mean
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.plugins.validation import problems_of

Words = Annotated[tuple[str, ...], BeforeValidator(lambda text: text.split() if isinstance(text, str) else text)]
"""Words between spaces."""

Mixer = Literal["full", "windowed", "chunked", "state", "state+full"]
"""What mixes tokens in a layer; state+full: a state and attention side by side. Full is latent with `kv_lora_rank`."""

Mlp = Literal["dense", "experts"]


class Rule(Section):
    """Which layers are of a kind, by the value of a key; a rule without a value says nothing.

    list: an entry for each layer. letters: a letter for each mixer or MLP. period: the layer at `offset` of so many.
    numbers: the layers of these numbers, of which the first is `first`. since: the layers from that number on; after:
    those behind it; negative ones count from the end.
    """

    by: Literal["list", "letters", "period", "numbers", "since", "after"]
    key: str = ""
    value: int | None = None
    """The value where the file has none."""
    when: str | None = None
    """A key that must be on."""
    offset: int | str = -1
    first: Literal[0, 1] = 0
    kind: Mixer | Mlp | None = None
    others: Mixer | Mlp | None = None
    kinds: Mapping[str | int, Mixer | Mlp] = {}
    """The kinds of entries or letters; layers of others are not supported."""


class Derived(Section):
    """A value that follows from others: their product, over another, and up to the next multiple."""

    times: tuple[str | int, ...]
    over: str | int = 1
    multiple_of: str | int = 1
    rounds_up: bool = False
    when: str | None = None
    """A key that must be on; else it is `otherwise`, or the first of `times`."""
    otherwise: int | None = None

    @property
    def needs(self) -> list[str]:
        """The keys that it follows from."""
        return [each for each in (*self.times, self.over, self.multiple_of) if isinstance(each, str)]


class StateRule(Section):
    """The mixer with a state: its sizes by their keys, and the key of the dtype of its values."""

    mixer: StateMixer
    sizes: Mapping[str, str]
    dtype: str | None = None


class Traits(Section):
    """What files leave out."""

    gated_mlp: bool = True
    gated_attention: bool = False
    shared_expert: bool = False
    """One shared expert per layer, as wide as the routed ones."""
    shared_is_mlp: bool = False
    """Models without experts have an MLP of the size of shared ones."""


class Family(Section):
    """What is known of the files of one or several model types."""

    model_types: Words = ()
    source: Annotated[str, Field(min_length=1)]
    reads: Mapping[str, Words] = {}
    """Keys that are read, by type; a point leads into a mapping."""
    ignores: Words = ()
    """Keys that change neither sizes nor which keys a token attends."""
    needs: Words = ()
    """Keys that all its files must have."""
    only: Mapping[str, tuple[bool | int | str, ...]] = {}
    """Keys that are understood with these values alone; the name of a key stands for its value."""
    names: Mapping[str, str] = {}
    """Its own keys, by the common ones that they stand for."""
    defaults: Mapping[str, int | float | str | Derived] = {}
    """Values of common keys that a file leaves out, has as null, or as auto."""
    layers: tuple[Rule, ...] = ()
    """Which mixer a layer has: the first rule that says something."""
    experts: tuple[Rule, ...] = ()
    """Which layers have experts: those that no rule makes dense."""
    state: StateRule | None = None
    windows: Mapping[str, str] = {}
    """Heads of layers with a window: their sizes by key, where these differ."""
    has: Traits = Traits()
    layer_inputs: Mapping[str, str] = {}
    """Sizes of embeddings and matrices that each layer has besides (Gemma 3n), by key."""
    other_parts: Words = ()
    """Keys of parts of the model that are not simulated, beside the text part."""
    refuses: Mapping[str, Words] = {}
    """Keys of what is not simulated, by what it is; an asterisk ends the beginning of several."""

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """The types of the keys that are read."""
        common = {} if self is common_family() else common_family().types
        own = {key: TYPES[kind] for kind, keys in self.reads.items() for key in keys}
        parts = (self.state.sizes if self.state else {}, self.windows, self.layer_inputs)
        sizes = (key for part in parts for key in part.values())
        renamed = {name: common[key] for key, name in self.names.items() if key in common}
        return {**common, **dict.fromkeys(sizes, TYPES["width"]), **renamed, **own}

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The keys of one number for all layers, which a file may list for each."""
        common = frozenset() if self is common_family() else common_family().numbers
        own = (key for kind, keys in self.reads.items() if kind.startswith(("width", "parts")) for key in keys)
        return common | {*own, *(name for key, name in self.names.items() if key in common)}

    @cached_property
    def file_type(self) -> type[Strict]:
        """The type of a file; any key may be null."""
        named: dict[str, Any] = {key: (kind | None, None) for key, kind in self.types.items()}
        return create_model("Config", __base__=Strict, **named)

    @cached_property
    def understood(self) -> frozenset[str]:
        """The keys that are read or ignored."""
        common = frozenset() if self is common_family() else common_family().understood
        return common | {*self.types, *self.ignores, *self.other_parts}

    @property
    def text_only(self) -> tuple[str, ...]:
        """The keys of parts that are not simulated."""
        return *common_family().other_parts, *self.other_parts

    @cached_property
    def mappings(self) -> frozenset[str]:
        """The keys with a mapping of further keys."""
        return frozenset(key.partition(".")[0] for key in (*self.types, *self.ignores) if "." in key)

    @property
    def mixer_rules(self) -> tuple[Rule, ...]:
        """Which mixer a layer has: a list of layers goes before the rules of the family, and these before common
        ones."""
        listed, *others = common_family().layers
        return listed, *self.layers, *others

    @property
    def expert_rules(self) -> tuple[Rule, ...]:
        """Which layers have experts."""
        return *common_family().experts, *self.experts

    def refusal(self, key: str) -> str | None:
        """Return what a key is of that is not simulated; None for other keys."""
        if key in self.types or key in self.ignores:
            return None
        own = {**common_family().refuses, **self.refuses}
        alike = (what for what, keys in own.items() for each in keys if key == each or self._begins(key, each))
        return next(alike, None)

    def _begins(self, key: str, beginning: str) -> bool:
        return self.state is None and beginning.endswith("*") and key.startswith(beginning[:-1])


def family_of(model_type: object, folder: Path | None = None) -> Family:
    """Return what is known of a model_type, or what `family.yaml` in the folder of its config.json says.

    Raises CatalogError for a file that is invalid.
    """
    own = None if folder is None else folder / "family.yaml"
    if own is not None and own.is_file():
        try:
            data = yaml.safe_load(read_file(own, SCENARIO_BYTES))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise CatalogError(f"{own}: cannot be read ({error}); write it as YAML") from None
        return _named(str(own), data)
    return families().get(str(model_type), _other())


@cache  # fast: a folder of files
def families() -> Mapping[str, Family]:
    """Return the families of the catalog by model_type. Raises CatalogError for a type with two files."""
    files: dict[str, Family] = {}
    for name in sorted(_parsed().keys() - {"common"}):
        family = _named(f"families/{name}.yaml", _parsed()[name])
        for each in family.model_types:
            if each in files:
                raise CatalogError(
                    f"families/{name}.yaml: model_types: must be in one file each, got {each}; delete one"
                )
            files[each] = family
    return files


@cache
def common_family() -> Family:
    """Return the keys that all families have in common."""
    return _checked_schema(_parsed()["common"])


@cache
def _other() -> Family:
    return Family(source=common_family().source)


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
    family = _checked_schema(data)
    _check_once(family)
    _check_keys(family)
    _check_cycles(family)
    return family


def _checked_schema(data: object) -> Family:
    try:
        return Family.model_validate(data)
    except ValidationError as error:
        problem = problems_of(error, data)[0]
        near = did_you_mean(str(problem.path[0]), Family.model_fields) if problem.kind == "unknown" else None
        raise CatalogError(str(replace(problem, remedy=problem.remedy or near))) from None


def _check_once(family: Family) -> None:
    """Check that there is one rule for a key."""
    common = common_family()
    rules = [(f"reads.{kind}", key) for kind, keys in family.reads.items() for key in keys]
    rules += [("ignores", key) for key in family.ignores]
    rules += [("names", key) for key in family.names.values() if key not in common.types]
    first = dict.fromkeys(common.types, "the common keys")
    for place, key in rules:
        other = first.setdefault(key, place)
        if other != place:
            raise CatalogError(f"{place}: there must be one rule for a key, got {key}, which {other} has; delete one")


def _check_keys(family: Family) -> None:
    """Check that types, keys and sizes are known ones."""
    unknown_type = next((kind for kind in family.reads if kind not in TYPES), None)
    if unknown_type is not None:
        raise CatalogError(f"reads: must be by type, got {unknown_type}; choose from {', '.join(TYPES)}")
    derived = {key: value for key, value in family.defaults.items() if isinstance(value, Derived)}
    named = {
        "names": [*family.names],
        "needs": family.needs,
        "only": [*family.only],
        "layers": _keys_of(family.layers),
        "experts": _keys_of(family.experts),
        "defaults": [*family.defaults, *(key for each in derived.values() for key in each.needs)],
        "state.dtype": [family.state.dtype] if family.state and family.state.dtype else [],
    }
    for place, keys in named.items():
        unread = next((key for key in keys if key not in family.types), None)
        if unread is not None:
            raise CatalogError(f"{place}: must be a key that is read, got {unread}; give its type in reads")
    for place, rules, known in (("layers", family.layers, get_args(Mixer)), ("experts", family.experts, get_args(Mlp))):
        kinds = (
            each for rule in rules if rule.by != "letters" for each in (rule.kind, rule.others, *rule.kinds.values())
        )
        wrong = next((each for each in kinds if each not in (None, *known)), None)
        if wrong is not None:
            raise CatalogError(f"{place}: must have kinds of {', '.join(known)}, got {wrong}")
    if family.state is not None:
        _check_sizes("state.sizes", family.state.sizes, MIXERS[family.state.mixer])
    if family.windows:
        _check_sizes("windows", family.windows, Heads)
    if family.layer_inputs:
        _check_sizes("layer_inputs", family.layer_inputs, LayerInputs)


def _check_sizes(place: str, sizes: Mapping[str, str], part: type) -> None:
    """Check that there is a key for every size of a part."""
    needed = {field.name for field in fields(part) if field.name not in ("state_value_bytes", "value_head_dim")}
    wrong = sorted(needed - sizes.keys()) or sorted(sizes.keys() - needed - {"value_head_dim"})
    if wrong:
        rule = "has no key" if wrong[0] in needed else "is no size of it"
        raise CatalogError(f"{place}: {wrong[0]} {rule}; give one for each of {', '.join(sorted(needed))}")


def _keys_of(rules: Iterable[Rule]) -> list[str]:
    keys = (key for rule in rules for key in (rule.key, rule.when, rule.offset))
    return [key for key in keys if isinstance(key, str) and key]


def _check_cycles(family: Family) -> None:
    """Check that no value follows from itself."""

    def follow(path: list[str]) -> None:
        value = family.defaults.get(path[-1])
        for key in value.needs if isinstance(value, Derived) else ():
            if key in path:
                cycle = " needs ".join([*path[path.index(key) :], key])
                raise CatalogError(f"defaults: must not need themselves, got {cycle}; give one of them a number")
            follow([*path, key])

    for start in family.defaults:
        follow([start])
