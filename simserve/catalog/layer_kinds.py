"""The layers of a Hugging Face config.json by kind: full, windowed, chunked, latent, or with a state.

Rules of families that list no layers follow the modeling code of the transformers library.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from simserve.catalog.families import MOST_NAMED, family_of
from simserve.catalog.layer_parts import check_needed
from simserve.catalog.layers import GroupKind, LayerGroup, LinearAttention, Mamba2
from simserve.errors import CatalogError

LAYER_KINDS: Mapping[str, GroupKind] = {
    "full_attention": "full",
    "sliding_attention": "windowed",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "attention": "full",
    "mamba": "state",
}
"""Supported entries of layer_types; layers with a state only where the file has their sizes."""

PATTERN = "hybrid_override_pattern"
"""Nemotron-H's list of layers, each of one part: M has a state, * attends, - is an MLP."""

PATTERN_KINDS = {"M": "linear_attention", "*": "full_attention"}

LISTS = ("layer_types", "no_rope_layers", "moe_layer_freq")
"""Keys with an entry for each layer."""

WINDOWS = (("sliding_attention", "sliding_window"), ("chunked_attention", "attention_chunk_size"))
"""Entries of layer_types with a window, and the keys of the tokens that it attends at most: the last ones, or those of
the same chunk (Llama 4)."""


def in_common_layers(config: dict[str, Any]) -> dict[str, Any]:
    """Return a file's keys with the common ones in place of a family's own: layers of one part each become layers with
    an MLP or without. Raises CatalogError without the path."""
    if config.get(PATTERN):
        return _from_pattern(config)
    if config.get("mamba_d_head") == "auto":
        check_needed(config, ("mamba_expand", "mamba_n_heads"), "mamba_d_head, which is auto, follows from them")
        n_heads, inner_size = config["mamba_n_heads"], config["mamba_expand"] * config["hidden_size"]
        if inner_size % n_heads:
            raise CatalogError(f"mamba_n_heads must divide mamba_expand times hidden_size, {inner_size}, got {n_heads}")
        return {**config, "mamba_d_head": inner_size // n_heads}
    return config


def _from_pattern(config: dict[str, Any]) -> dict[str, Any]:
    pattern, n_layers = config[PATTERN], config["num_hidden_layers"]
    if len(pattern) != n_layers:
        raise CatalogError(f"{PATTERN} must name the {n_layers} layers of num_hidden_layers, got {len(pattern)}")
    if not re.fullmatch(r"([M*]-?)+", pattern):
        other = sorted(set(pattern) - {"M", "*", "-"}) or ["- without a layer to follow"]
        raise CatalogError(f"{PATTERN}: layers of type {', '.join(other[:MOST_NAMED])} are not supported yet")
    mixers = [PATTERN_KINDS[part] for part in pattern if part in PATTERN_KINDS]
    head_dim = config.get("attention_head_dim") or config.get("head_dim")
    return {**config, "num_hidden_layers": len(mixers), "layer_types": mixers, "head_dim": head_dim}


def n_bare_layers(config: Mapping[str, Any]) -> int:
    """Return the layers without an MLP after them."""
    pattern = config.get(PATTERN)
    return config["num_hidden_layers"] - pattern.count("-") if pattern else 0


def check_kinds(config: Mapping[str, Any]) -> None:
    """Raise CatalogError for lists of layers that are not supported, or contradict other keys."""
    n_layers, kinds = config["num_hidden_layers"], config.get("layer_types") or ()
    known = {kind for kind in LAYER_KINDS if LAYER_KINDS[kind] != "state" or family_of(config).state}
    unknown = sorted(set(kinds) - known)
    if unknown:
        raise CatalogError(f"layer_types: layers of type {', '.join(unknown[:MOST_NAMED])} are not supported yet")
    for key in LISTS:
        listed = config.get(key)
        if isinstance(listed, list) and len(listed) not in (0, n_layers):
            raise CatalogError(f"{key} must name the {n_layers} layers of num_hidden_layers, got {len(listed)}")
    for kind, key in WINDOWS:
        if kind in kinds and not config.get(key):
            raise CatalogError(f"layer_types names layers of {kind}, but {key} is missing")


def read_state(config: Mapping[str, Any]) -> LinearAttention | Mamba2 | None:
    """Read the sizes of layers with a state; None for families without them. Raises CatalogError without the path."""
    family = family_of(config)
    if family.state is None:
        return None
    check_needed(config, family.sizes.values(), "layers with a state need all their sizes")
    sizes = {name: config[key] for name, key in family.sizes.items()}
    many, few = ("n_heads", "n_groups") if family.state is Mamba2 else ("n_value_heads", "n_key_heads")
    if sizes[many] % sizes[few]:
        raise CatalogError(f"{family.sizes[few]} must divide {family.sizes[many]} {sizes[many]}, got {sizes[few]}")
    # As engines hold it by default: in 16 bits unless the file wants more.
    return family.state(**sizes, state_value_bytes=4 if config.get(family.state_dtype) == "float32" else 2)


def read_groups(config: Mapping[str, Any]) -> tuple[LayerGroup, ...]:
    """Return the layers by kind, in order of their first layer."""
    windows = {"windowed": config.get("sliding_window"), "chunked": config.get("attention_chunk_size")}
    full: GroupKind = "latent" if config.get("kv_lora_rank") else "full"
    counts = Counter(full if kind == "full" else kind for kind in _kinds(config))
    return tuple(LayerGroup(kind, n_layers, windows.get(kind)) for kind, n_layers in counts.items())


def _kinds(config: Mapping[str, Any]) -> list[GroupKind]:
    """Return the kind of each layer: as layer_types lists them, else by the rule of the family."""
    layers = range(config["num_hidden_layers"])
    if config.get("layer_types"):
        return [LAYER_KINDS[kind] for kind in config["layer_types"]]
    if family_of(config).state is not None:
        return _every(config.get("full_attention_interval") or 4, "state", layers)
    has_window = any(config.get(key) for _, key in WINDOWS)
    if not has_window or config.get("use_sliding_window") is False:  # a config may state one and switch it off
        return ["full" for _ in layers]
    if config.get("attention_chunk_size"):
        rotated = config.get("no_rope_layers")  # Llama 4: only layers with positions attend a chunk
        if rotated:
            return ["chunked" if rotates else "full" for rotates in rotated]
        return _every(config.get("no_rope_layer_interval") or 4, "chunked", layers)
    if config.get("use_sliding_window"):  # Qwen: from max_window_layers on
        n_full = config.get("max_window_layers") or 0
        return ["full" if layer < n_full else "windowed" for layer in layers]
    pattern = config.get("sliding_window_pattern")
    period = len(pattern) if isinstance(pattern, str) else pattern or family_of(config).window_period
    if period is None:
        window = f"the window of {config['sliding_window']} tokens"
        raise CatalogError(f"layer_types is missing; list the layers with {window}, or set use_sliding_window: false")
    return _every(period, "windowed", layers)


def _every(period: int, other: GroupKind, layers: range) -> list[GroupKind]:
    """Return full attention for layers that end a period of several, and the other kind for the rest."""
    return ["full" if period > 1 and (layer + 1) % period == 0 else other for layer in layers]
