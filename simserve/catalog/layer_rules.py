"""The layers of a Hugging Face config.json by kind, as the rules of its family list them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from simserve.catalog.config import MOST_NAMED, Config
from simserve.catalog.family import Rule
from simserve.catalog.layer_parts import mlp_key, n_experts_of, read_heads, read_indexer
from simserve.catalog.layers import GroupKind, Heads, LayerGroup, LayerInputs, SharedBlocks
from simserve.catalog.states import MIXERS, StateLayers
from simserve.errors import CatalogError

WINDOWS = {"windowed": "sliding_window", "chunked": "attention_chunk_size"}
"""Kinds of layers with a window, and the keys of the tokens that it attends at most: the last ones, or those of the
same chunk (Llama 4)."""

RATIOS = {"sparse": 4, "compressed": 128}
"""Kinds of layers with entries beside their window, and the tokens of an entry."""

MLPS = ("dense", "experts")

Layer = tuple[Any, str, Config]
"""Mixer and MLP of a layer, and the values with their sizes."""

Sized = TypeVar("Sized", Heads, LayerInputs, SharedBlocks)


def read_layers(configs: Sequence[Config]) -> list[Layer]:
    """Return the layers in their order, those that mix twice as two. Raises CatalogError without the path."""
    config, family = configs[0], configs[0].family
    for rule in family.layers:
        if rule.by == "letters" and config.get(rule.key):
            return _lettered(config, rule)
    mixers, n_layers = _mixers(config), config.n_layers
    mlps = _mlps(config) if n_experts_of(config) else ["dense"] * n_layers
    layers: list[Layer] = []
    for mixer, mlp, own in zip(mixers, mlps, configs if len(configs) > 1 else [config] * n_layers, strict=True):
        mixes, has = (
            next((kind for key, kind in instead.items() if own.get(key)), part)
            for instead, part in ((family.mixers, mixer), (family.mlps, mlp))
        )
        *before, last = mixes.split("+")
        own_mlp = "dense" if last in ("none", "state_alone") else "none"
        layers += [*((each, own_mlp, own) for each in before)]
        layers += [("state", "none", own) if last == "state_alone" else (last, has, own)]
    return layers


def read_groups(layers: list[Layer]) -> tuple[Heads, tuple[LayerGroup, ...]]:
    """Return the most heads of a layer, and the layers by mixer and by other heads, in order of the first of each; then
    what some keep beside their window. Raises CatalogError without the path."""
    config = layers[0][2]
    full: GroupKind = "latent" if config.get("kv_lora_rank") else "full"
    alike = {"shared": "full", **dict.fromkeys(RATIOS, "windowed")}
    mixers: list[Any] = [alike.get(mixer, mixer) for mixer, _, _ in layers]
    n_compressed = Counter(mixer for mixer, _, _ in layers if mixer in RATIOS)
    n_kept = len(layers) - (config.get("num_kv_shared_layers") or 0)
    if n_kept <= 0:
        rule = f"num_kv_shared_layers must leave layers of {len(layers)} that keep keys"
        raise CatalogError(f"{rule}, got {len(layers) - n_kept}")
    owns = [own for _, _, own in layers]
    read = [read_heads(own) if mixer in ("full", *WINDOWS) else None for mixer, own in zip(mixers, owns, strict=True)]
    attending = [own for own in read if own is not None] or [replace(read_heads(config), head_dim=0)]
    heads = max(attending, key=lambda own: (own.n_kv_heads * own.head_dim, own.n_heads))
    of_windows, keys = [read_part(own, own.family.windows, Heads) for own in owns], config.family.windows
    uneven = next((own for own in of_windows if own is not None and own.n_heads % own.n_kv_heads), None)
    if uneven is not None:
        rule = f"{keys['n_kv_heads']} must divide {keys['n_heads']} {uneven.n_heads}"
        raise CatalogError(f"{rule}, got {uneven.n_kv_heads}")
    kinds = [
        (mixer, (mixer == "windowed" and of_window) or (None if own == heads else own))
        for mixer, of_window, own in zip(mixers, of_windows, read, strict=True)
    ]
    kept = Counter(kind for kind, (mixer, _, _) in zip(kinds, layers[:n_kept], strict=False) if mixer != "shared")
    groups = (
        LayerGroup(full if mixer == "full" else mixer, n, config.get(WINDOWS.get(mixer, "")), own, n - kept[mixer, own])
        for (mixer, own), n in Counter(kinds).items()
    )
    needed = ["o_lora_rank"] * bool(n_compressed)
    config.check_needed(needed, "only attention to one vector for all heads has such layers")
    compressed = (
        LayerGroup("compressed", n, ratio=RATIOS[mixer], indexer=read_indexer(config) if mixer == "sparse" else None)
        for mixer, n in sorted(n_compressed.items(), reverse=True)
    )
    return heads, (*groups, *compressed)


def read_mlps(layers: list[Layer]) -> tuple[tuple[int, int], ...]:
    """Return the plain MLPs by size, in order of the first of each. Raises CatalogError for one without a size."""
    for own in (own for _, mlp, own in layers if mlp == "dense"):
        own.check_needed([mlp_key(own)], "layers with an MLP need its inner size")
    sizes = (own.get(mlp_key(own)) * (mlp == "dense") for _, mlp, own in layers if mlp in ("dense", "matrix"))
    return tuple(Counter(sizes).items())


def read_part(config: Config, keys: Mapping[str, str], part: type[Sized]) -> Sized | None:
    """Read a part by the keys of its sizes; None where these are missing."""
    sizes = {name: config.get(key) for name, key in keys.items()}
    return part(**sizes) if sizes and all(sizes.values()) else None


def read_state(config: Config) -> StateLayers | None:
    """Read the sizes of layers with a state; None for families without them. Raises CatalogError without the path."""
    state = config.family.state
    if state is None:
        return None
    config.check_needed(state.sizes.values(), "layers with a state need all their sizes")
    sizes = {name: config.get(key) for name, key in state.sizes.items()}
    many, few = MIXERS[state.mixer].even or ("", "")
    if few and sizes[many] % sizes[few]:
        names = state.sizes[few], state.sizes[many]
        raise CatalogError(f"{names[0]} must divide {names[1]} {sizes[many]}, got {sizes[few]}")
    # As engines hold it by default: in 16 bits unless the file wants more.
    return StateLayers.of(state.mixer, 4 if state.dtype and config.get(state.dtype) == "float32" else None, **sizes)


def _lettered(config: Config, rule: Rule) -> list[Layer]:
    """Return layers of one part each, a letter for each, as layers with an MLP or without."""
    letters = config.get(rule.key)
    if len(letters) != config.n_layers:
        raise _uneven(config, rule.key, letters)
    parts = {str(letter): kind for letter, kind in rule.kinds.items()}
    mlps = "".join(letter for letter, kind in parts.items() if kind in MLPS)
    mixers = "".join(letter for letter in parts if letter not in mlps)
    layers = re.findall(f"([{re.escape(mixers)}])([{re.escape(mlps)}]?)", letters)
    if sum(map(len, ("".join(layer) for layer in layers))) != len(letters):
        other = sorted(set(letters) - parts.keys()) or [f"{mlps[0]} without a layer to follow"]
        what = f"layers of type {', '.join(other[:MOST_NAMED])}"
        raise CatalogError(f"{rule.key}: {what} are not supported yet; choose another model")
    return [(parts[mixer], parts.get(mlp, "none"), config) for mixer, mlp in layers]


def _mixers(config: Config) -> list[str]:
    for rule in config.family.layers:
        kinds = _chosen(config, rule)
        if kinds is None or _lacks_window(config, rule, kinds):
            continue
        if "state" in "".join(kinds) and config.family.state is None:
            raise _unknown(config, rule.key, {each for each in config.get(rule.key) if rule.kinds[each] == "state"})
        return kinds
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window") is not False:  # a config may state one and switch it off
        remedy = f"list the layers with the window of {window} tokens, or set use_sliding_window: false"
        raise CatalogError(f"layer_types is missing; {remedy}")
    if config.family.state is not None:
        placing = (rule for rule in config.family.layers if "state" in (rule.kind, rule.others, *rule.kinds.values()))
        keys = " or ".join(config.named(rule.key) for rule in placing)
        raise CatalogError(f"{keys} is missing; it says which layers have a state")
    return ["full"] * config.n_layers


def _lacks_window(config: Config, rule: Rule, kinds: list[str]) -> bool:
    """Tell whether layers have no window after all. Raises CatalogError where the file lists such layers."""
    for kind in WINDOWS.keys() & set(kinds):
        is_off = kind == "windowed" and config.get("use_sliding_window") is False
        if rule.by == "list" and not config.get(WINDOWS[kind]):
            entry = next(entry for entry, each in rule.kinds.items() if each == kind)
            raise CatalogError(f"{rule.key} names layers of {entry}, but {WINDOWS[kind]} is missing")
        if rule.by != "list" and (is_off or not config.get(WINDOWS[kind])):
            return True
    return False


def _mlps(config: Config) -> list[str]:
    """Return whether each layer has experts: where no rule says otherwise. Raises CatalogError where none has."""
    rules = config.family.experts[: 1 if config.get("mlp_layer_types") else None]  # a list says it all
    chosen = [kinds for kinds in (_chosen(config, each) for each in rules) if kinds is not None]
    mlps = ["dense" if "dense" in kinds else "experts" for kinds in zip(*chosen, strict=True)]
    if chosen and "experts" not in mlps:
        given = " and ".join(config.named(each.key) for each in rules if config.get(each.key)) or "the file"
        raise CatalogError(
            f"{given} must leave experts to one of the {config.n_layers} layers at least; set no experts"
        )
    return mlps or ["experts"] * config.n_layers


def _chosen(config: Config, rule: Rule) -> list[Any] | None:
    """Return the kind of each layer by a rule; None where it says nothing."""
    layers, given = range(config.n_layers), config.get(rule.key)
    value: Any = rule.value if given in (None, []) else given
    if value is None or (rule.when is not None and not config.get(rule.when)):
        return None
    match rule.by, value:
        case "numbers", _:
            chosen = {int(each) - rule.first for each in re.findall(r"\d+", str(value))}  # a list, or text of one
            beyond = sorted(each + rule.first for each in chosen if each not in layers)
            if beyond:
                rest = f"must name some of {config.n_layers} layers, from {rule.first} on, got {beyond[0]}"
                raise CatalogError(f"{config.named(rule.key)} {rest}")
        case _, list():
            return _listed(config, rule, value)
        case "since" | "after", _:
            first = value if value >= 0 else len(layers) + value
            chosen = set(layers[max(0, first + (rule.by == "after")) :])
        case _:
            period = len(value) if isinstance(value, str) else value
            offset = (config.number(rule.offset) or 0) % period
            n_whole = len(layers) // period * period if rule.only_whole else len(layers)
            chosen = {layer for layer in layers if layer % period == offset or layer >= n_whole}
    return [rule.kind if layer in chosen else rule.others for layer in layers]


def _listed(config: Config, rule: Rule, value: list[Any]) -> list[Any]:
    """Return the kinds of entries. Raises CatalogError for another number of them, or one that is not known."""
    kinds: Mapping[Any, Any] = rule.kinds or {1: rule.kind, 0: rule.others}
    unknown = {str(entry) for entry in value if entry not in kinds}
    if unknown:
        raise _unknown(config, rule.key, unknown)
    n_mtp = config.get("num_nextn_predict_layers") or 0  # some files list these, too
    if len(value) not in (config.n_layers, config.n_layers + n_mtp):
        raise _uneven(config, rule.key, value)
    return [kinds[entry] for entry in value[: config.n_layers]]


def _unknown(config: Config, key: str, entries: Any) -> CatalogError:
    what = config.family.what_is(key) or f"layers of type {', '.join(sorted(map(str, entries))[:MOST_NAMED])}"
    return CatalogError(f"{config.named(key)}: {what} are not supported yet; choose another model")


def _uneven(config: Config, key: str, entries: Any) -> CatalogError:
    rule = f"{config.named(key)} must name the {config.n_layers} layers of num_hidden_layers"
    return CatalogError(f"{rule}, got {len(entries)}")
