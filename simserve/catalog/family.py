"""Family: the keys of a Hugging Face config.json and the layers that follow from them, as a file describes them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, create_model, model_validator

from simserve.catalog.quantization import Quantization
from simserve.catalog.states import MIXERS, Words
from simserve.catalog.types import KEY_TYPES, Count, Section, Strict, with_keys

Mixer = Literal[
    "full",
    "windowed",
    "chunked",
    "shared",
    "compressed",
    "sparse",
    "state",
    "state+full",
    "state_alone",
    "full+state_alone",
    "full+full+none",
]
"""What mixes tokens in a layer; shared: attention of the keys and values of the last full layer; compressed: a window
and all entries for many tokens each; sparse: a window and the best entries, for few each; state+full: a state and
attention side by side; state_alone: a state and no MLP; full+full+none: two attentions with an MLP each, and experts
beside these. Full is latent with `kv_lora_rank`."""

Mlp = Literal["dense", "experts"]

TYPES: Mapping[str, Any] = {**KEY_TYPES, "quantization": Quantization}

SIZES = ("width", "width_or_0", "width_or_auto", "parts", "parts_or_0", "count", "count_or_0")
NUMBERS = (*SIZES, "number", "ratio")

BY_TYPES: Mapping[str, tuple[str, ...]] = {
    "list": ("names", "by_layer", "flags", "layers"),
    "letters": ("text",),
    "period": ("count", "period", "frequency"),
    "numbers": ("layers", "numbers"),
    **dict.fromkeys(("since", "after"), ("layer", "count", "count_or_0")),
}
"""The types of keys that rules for layers go by."""


class Rule(Section):
    """A rule for which layers are of a kind, by the value of a key; it says nothing without one.

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
    only_whole: bool = False
    """Layers behind the last whole period are of `kind`, too."""
    first: Literal[0, 1] = 0
    kind: Mixer | Mlp | None = None
    others: Mixer | Mlp | None = None
    kinds: Mapping[str | int, Mixer | Mlp] = {}
    """The kinds of entries or letters; layers of others are not supported."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        lengths, has_mlps = {len(str(letter)) for letter in self.kinds}, {*self.kinds.values()} & {*get_args(Mlp)}
        if self.by == "letters" and (lengths != {1} or not has_mlps):
            raise ValueError("kinds must have a letter for each mixer and each MLP")
        is_of_all = (self.by, self.key, self.value) == ("period", "", 1)
        if not self.kinds and (self.kind is None or (self.others is None and not is_of_all)):
            raise ValueError("must say the kind of the layers and of others")
        if self.by == "period" and self.value is not None and self.value < 1:
            raise ValueError("value must be at least 1")
        if not self.key and self.value is None:
            raise ValueError("must have a key or a value")
        return self


class Derived(Section):
    """A value that follows from others: their product, over another, and up to the next multiple."""

    times: Annotated[tuple[str | Count, ...], Field(min_length=1, max_length=8)]
    over: str | Count = 1
    multiple_of: str | Count = 1
    rounds_up: bool = False
    rounds_off: bool = False
    """To the nearest multiple, or the next one where that is less than 90%."""
    when: str | None = None
    """A key that must be on; else it is `otherwise`, or the first of `times`."""
    otherwise: int | None = None

    @property
    def needs(self) -> list[str]:
        """The keys that it follows from."""
        return [each for each in (*self.times, self.over, self.multiple_of) if type(each) is str]


@with_keys({"mixer": (Literal[tuple(MIXERS)], ...)})
class StateRule(Section):
    """The mixer with a state: its sizes by their keys, and the key of the dtype of its values."""

    mixer: str
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
    """Keys that are read, by type; a point leads into a mapping, or into those of a list, one for each layer."""
    by_layer: Words = ()
    """Such keys with one value for all layers, or a list of one for each; of all others, entries must be equal."""
    ignores: Words = ()
    """Keys that change neither sizes nor which keys a token attends."""
    needs: Words = ()
    """Keys that all its files must have."""
    only: Mapping[str, tuple[bool | int | str, ...]] = {}
    """Keys that are understood with these values alone; the name of a key stands for its value."""
    names: Mapping[str, str] = {}
    """Its own keys, by the common ones that they stand for."""
    defaults: Mapping[str, bool | int | float | str] = {}
    """Values of common keys that a file leaves out, has as null, or as auto."""
    derived: Mapping[str, Derived] = {}
    """Such values that follow from others."""
    layers: tuple[Rule, ...] = ()
    """Which mixer a layer has: the first rule that says something."""
    experts: tuple[Rule, ...] = ()
    """Which layers have experts: those that no rule makes dense."""
    mixers: Mapping[str, Literal["none", "matrix"]] = {}
    """What layers have instead of a mixer, or MLP, where a key is on: nothing, or one square matrix."""
    mlps: Mapping[str, Literal["none", "matrix"]] = {}
    state: StateRule | None = None
    windows: Mapping[str, str] = {}
    """Heads of layers with a window: their sizes by key, where these differ."""
    has: Traits = Traits()
    mtp_layer: tuple[Mixer, Mlp] = ("full", "experts")
    """Attention and MLP of layers that predict further tokens."""
    layer_inputs: Mapping[str, str] = {}
    """Sizes of embeddings and matrices that each layer has besides (Gemma 3n), by key."""
    shared_blocks: Mapping[str, str] = {}
    """Sizes of blocks of attention and an MLP that layers share (Zamba2), by key."""
    other_parts: Words = ()
    """Keys of parts of the model that are not simulated, beside the text part."""
    refuses: Mapping[str, Words] = {}
    """Keys of what is not simulated, by what it is; an asterisk ends the beginning of several."""

    def within(self, common: "Family") -> "Family":
        """Return the family with the common keys. A list of layers goes before its rules, these before common ones."""
        kinds, own = {*common.reads, *self.reads}, (*self.by_layer, *self.mixers, *self.mlps)
        listed = () if any(rule.key == common.layers[0].key for rule in self.layers) else common.layers[:1]
        merged = {
            "reads": {kind: (*common.reads.get(kind, ()), *self.reads.get(kind, ())) for kind in kinds},
            "ignores": (*common.ignores, *self.ignores),
            "by_layer": () if "letters" in {rule.by for rule in self.layers} else (*common.by_layer, *own),
            "layers": (*listed, *self.layers, *common.layers[1:]),
            "experts": (*common.experts, *self.experts),
            "other_parts": (*common.other_parts, *self.other_parts),
            "refuses": {**self.refuses, **common.refuses},
        }
        return self.model_copy(update=merged)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The types of the keys that are read, by name."""
        read = {key: kind for kind, keys in self.reads.items() for key in keys}
        parts = (self.state.sizes if self.state else {}, self.windows, self.layer_inputs, self.shared_blocks)
        sizes = dict.fromkeys((key for part in parts for key in part.values()), "width")
        return {**sizes, **{name: read[key] for key, name in self.names.items() if key in read}, **read}

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """The types of the keys that are read."""
        return {key: TYPES[kind] for key, kind in self.kinds.items()}

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The keys of one number for all layers, which a file may list for each."""
        return frozenset(key for key, kind in self.kinds.items() if kind.startswith(("width", "parts")))

    @cached_property
    def file_type(self) -> type[Strict]:
        """The type of a file; any key may be null."""
        named: dict[str, Any] = {key: (kind | None, None) for key, kind in self.types.items()}
        return create_model("Config", __base__=Strict, **named)

    @cached_property
    def understood(self) -> frozenset[str]:
        """The keys that are read or ignored."""
        return frozenset((*self.types, *self.ignores, *self.other_parts))

    @cached_property
    def mappings(self) -> frozenset[str]:
        """The keys with a mapping of further keys."""
        keys = [key.split(".") for key in (*self.types, *self.ignores)]
        return frozenset(".".join(key[:n]) for key in keys for n in range(1, len(key)))

    def what_is(self, key: str) -> str | None:
        """Return what a key is of that families may not have; None for other keys."""
        alike = (what for what, keys in self.refuses.items() for each in keys if key == each or self._begins(key, each))
        return next(alike, None)

    def refusal(self, key: str) -> str | None:
        """Return what a key is of that is not simulated; None for other keys."""
        return None if key in self.types or key in self.ignores else self.what_is(key)

    def _begins(self, key: str, beginning: str) -> bool:
        return self.state is None and beginning.endswith("*") and key.startswith(beginning[:-1])
