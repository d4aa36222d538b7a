"""Read a ModelSpec from a Hugging Face config.json: transformers, dense or MoE, quantized or not.

Keys and defaults follow the configuration classes of the transformers library.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.catalog.families import READ, check_refused, check_understood, family_of
from simserve.catalog.layer_parts import check_count, dense_size, read_experts, read_indexer, read_mla
from simserve.catalog.quantization import only_experts, read_weight_dtype
from simserve.catalog.specs import GroupKind, LayerGroup, LinearAttention, Mamba2, ModelSpec
from simserve.errors import CatalogError, closest
from simserve.input_files import SCENARIO_BYTES, read_json

NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
OPTIONAL = ("num_key_value_heads", "head_dim")
"""Counts that may be missing or null: defaults are as many KV heads as heads, and hidden_size / heads."""

TIED_FAMILIES = frozenset(
    {"cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "opt", "starcoder2"}
)
"""Families with tied embeddings unless the file states otherwise."""

UNGATED_FAMILIES = (
    "gpt2",
    "gpt_neox",
    "gptj",
    "opt",
    "falcon",
    "phi",
    "starcoder2",
    "nemotron",
    "nemotron_h",
    "bloom",
    "mpt",
)
"""Families with two MLP matrices; all others have gate, up and down."""

KV_HEADS_ELSEWHERE = ("num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query", "multi_query_group_num")
"""Other families' keys for the number of KV heads; one KV head per head would cost many times the cache."""

MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Counts of MTP layers: DeepSeek, Qwen3.5."""

WINDOW_KEYS = ("sliding_window", "attention_chunk_size")
"""Tokens that a local layer attends at most: the last ones, or those of the same chunk (Llama 4)."""

QUANTIZATION_FILE = "hf_quant_config.json"
"""modelopt's file for the weight dtype, next to a config.json without one."""

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

FLOAT_32 = "float32"

LINEAR_KEYS = {
    "n_key_heads": "linear_num_key_heads",
    "key_head_dim": "linear_key_head_dim",
    "n_value_heads": "linear_num_value_heads",
    "value_head_dim": "linear_value_head_dim",
    "conv_size": "linear_conv_kernel_dim",
}
"""Sizes of layers with a state (Qwen3-Next)."""

GATED_FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Families with a gate for the output of attention, and layers of gated delta nets."""


MOST_LAYERS = 10_000
"""Many times as many as any model has; each is looked at."""


def read_config(path: Path) -> ModelSpec:
    """Read a config.json. Raises CatalogError if it is invalid, incomplete, contradictory or not supported."""
    config = _load(path)
    try:
        return _spec(path, config)
    except CatalogError as error:
        raise CatalogError(f"{path}: {error}") from None


def _spec(path: Path, config: Mapping[str, Any]) -> ModelSpec:
    check_refused(config)
    _check_shapes(config)
    _check(config)
    n_heads, hidden = config["num_attention_heads"], config["hidden_size"]
    family = config.get("model_type")
    tied = config.get("tie_word_embeddings")
    experts, mla = read_experts(config), read_mla(config)
    check_understood(config)
    return ModelSpec(
        name=path.resolve().parent.name if path.stem == "config" else path.stem,
        n_layers=config["num_hidden_layers"],
        hidden_size=hidden,
        n_heads=n_heads,
        n_kv_heads=n_heads if mla else config.get("num_key_value_heads") or n_heads,
        head_dim=mla.qk_head_dim if mla else config.get("head_dim") or hidden // n_heads,
        intermediate_size=dense_size(config) if experts else config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        tie_word_embeddings=family in TIED_FAMILIES if tied is None else bool(tied),
        gated_mlp=family not in UNGATED_FAMILIES,
        gated_attention=family in GATED_FAMILIES and config.get("attn_output_gate") is not False,
        groups=_groups(config),
        experts=experts,
        mla=mla,
        indexer=read_indexer(config),
        linear=_linear(config),
        n_bare_layers=_n_bare_layers(config),
        n_mtp_layers=_n_mtp_layers(config),
        weight_dtype=read_weight_dtype(config),
        only_experts_quantized=experts is not None and only_experts(config),
        source=f"Hugging Face config.json, {path.name}",
    )


def _load(path: Path) -> dict[str, Any]:
    """Read a file's keys; those of an inner text_config take precedence, as only the language model is simulated."""
    try:
        config = read_json(path, SCENARIO_BYTES)
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read ({error.strerror}); give a catalog name or a config.json") from None
    except ValueError as error:
        raise CatalogError(f"{path}: must be a Hugging Face config.json, but is not JSON ({error})") from None
    inner = config.get("text_config") if isinstance(config, dict) else None
    for what, value in (("must be", config), ("text_config must be", {} if inner is None else inner)):
        if not isinstance(value, dict):
            raise CatalogError(f"{path}: {what} a JSON object, got {type(value).__name__}")
    language = {**(config if inner is None else _shared_keys(config)), **(inner or {})}
    family = language.get("model_type")
    if not isinstance(family, str | None):
        raise CatalogError(f"{path}: model_type must be text, got {json.dumps(family)[:60]}; name the family")
    defaults = {key: value for key, value in family_of(language).defaults.items() if key not in language}
    return _in_common_keys({**_quantized_by_file(path), **defaults, **language})


def _in_common_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return a file's keys with the common ones in place of a family's own: layers of one part each become layers with
    an MLP or without."""
    family = config.get("model_type")
    if family == "nemotron_h" and len(str(config.get(PATTERN))) == config.get("num_hidden_layers"):
        mixers = [PATTERN_KINDS[part] for part in str(config[PATTERN]) if part in PATTERN_KINDS]
        head_dim = config.get("attention_head_dim") or config.get("head_dim")
        return {**config, "num_hidden_layers": len(mixers), "layer_types": mixers, "head_dim": head_dim}
    if family == "granitemoehybrid" and not config.get("num_local_experts"):
        config = {**config, "intermediate_size": config.get("shared_intermediate_size")}
    if config.get("mamba_d_head") == "auto":
        expand, hidden, n_heads = (config.get(key) or 0 for key in ("mamba_expand", "hidden_size", "mamba_n_heads"))
        config = {**config, "mamba_d_head": expand * hidden // n_heads if n_heads else None}
    if config.get("moe_intermediate_size") and not config.get("mlp_only_layers"):  # all layers have experts
        config = {**config, "intermediate_size": config.get("intermediate_size") or config["moe_intermediate_size"]}
    return config


def _shared_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys outside an inner text_config that are about the language model too."""
    return {key: value for key, value in config.items() if key in READ}


def _quantized_by_file(path: Path) -> dict[str, Any]:
    """Return the quantization_config given by a separate file, if there is one."""
    extra = path.with_name(QUANTIZATION_FILE)
    if not extra.is_file():
        return {}
    try:
        return {"quantization_config": read_json(extra, SCENARIO_BYTES)["quantization"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise CatalogError(f"{extra}: must be modelopt's JSON object with the key quantization") from None


def _check_shapes(config: Mapping[str, Any]) -> None:
    uneven = next((key for key in _counted(config) if isinstance(config[key], list)), None)
    if uneven is not None:
        raise CatalogError(f"{uneven}: layers that differ in shape are not supported yet; choose another model")
    kinds = config.get("layer_types") or []
    known = {kind for kind in LAYER_KINDS if LAYER_KINDS[kind] != "state" or _linear(config) is not None}
    if config.get(PATTERN) is not None and not config.get("layer_types"):
        n_layers, n_listed = config.get("num_hidden_layers"), len(str(config[PATTERN]))
        raise CatalogError(f"{PATTERN} must name the {n_layers} layers of num_hidden_layers, got {n_listed}")
    if config.get(PATTERN) is not None and not re.fullmatch(r"([M*]-?)+", str(config[PATTERN])):
        other = sorted(set(str(config[PATTERN])) - {"M", "*", "-"}) or ["- without a layer to follow"]
        raise CatalogError(f"{PATTERN}: layers of type {', '.join(other)} are not supported yet")
    unknown = sorted({str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])} - known)
    if unknown:
        raise CatalogError(f"layer_types: layers of type {', '.join(unknown)} are not supported yet")


def _counted(config: Mapping[str, Any]) -> list[str]:
    return [key for key in (*NEEDED, *OPTIONAL) if config.get(key) is not None]


def _check(config: Mapping[str, Any]) -> None:
    """Check that every required key is present and a count, and that no two contradict each other."""
    missing = [key for key in NEEDED if config.get(key) is None]
    if missing:
        near = closest(missing[0], [key for key in config if key not in NEEDED and isinstance(config[key], int)])
        remedy = f"{missing[0]} may be called {near}" if near else "it must be the config.json of a causal model"
        raise CatalogError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; {remedy}")
    alias = next((key for key in KV_HEADS_ELSEWHERE if config.get(key)), None)
    if alias is not None and config.get("num_key_value_heads") is None:
        remedy = f"give it with {alias}, got {json.dumps(config[alias])}"
        raise CatalogError(f"num_key_value_heads is missing; {remedy}")
    for key in (*_counted(config), *(key for key in WINDOW_KEYS if config.get(key) and _uses_window(config))):
        if type(config[key]) is not int or config[key] < 1:  # not isinstance: true is an int
            raise CatalogError(f"{key} must be a whole number of at least 1, got {json.dumps(config[key])}")
    n_layers, n_heads, hidden = (config[key] for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if n_layers > MOST_LAYERS:
        raise CatalogError(f"num_hidden_layers must be at most {MOST_LAYERS}, got {n_layers}; check the file")
    n_kv_heads, kinds = config.get("num_key_value_heads") or n_heads, config.get("layer_types")
    if n_heads % n_kv_heads:
        raise CatalogError(f"num_key_value_heads must divide the {n_heads} attention heads, got {n_kv_heads}")
    if not config.get("head_dim") and not config.get("kv_lora_rank") and hidden % n_heads:
        raise CatalogError(f"without head_dim, num_attention_heads must divide hidden_size {hidden}, got {n_heads}")
    if kinds and len(kinds) != n_layers:
        raise CatalogError(f"layer_types must name the {n_layers} layers of num_hidden_layers, got {len(kinds)}")
    for kind, key in (("sliding_attention", "sliding_window"), ("chunked_attention", "attention_chunk_size")):
        if kinds and kind in kinds and not config.get(key):
            raise CatalogError(f"layer_types names layers of {kind}, but {key} is missing")


def _uses_window(config: Mapping[str, Any]) -> bool:
    """Tell whether a window is on; a config may state one and switch it off."""
    return any(config.get(key) for key in WINDOW_KEYS) and config.get("use_sliding_window") is not False


def _groups(config: Mapping[str, Any]) -> tuple[LayerGroup, ...]:
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
    if _linear(config) is not None:
        return _every(config["full_attention_interval"], "state", layers)
    if not _uses_window(config):
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
        window = config["sliding_window"]
        raise CatalogError(f"layer_types is missing; list the layers with the window of {window} tokens")
    return _every(period, "windowed", layers)


def _every(period: int, other: GroupKind, layers: range) -> list[GroupKind]:
    """Return full attention for layers that end a period of several, and the other kind for the rest."""
    return ["full" if period > 1 and (layer + 1) % period == 0 else other for layer in layers]


def _linear(config: Mapping[str, Any]) -> LinearAttention | Mamba2 | None:
    """Return the sizes of layers with a state; None for files without them."""
    mamba2 = family_of(config).mamba2
    if mamba2:
        sizes = _counts(config, mamba2)
        return Mamba2(**sizes, state_value_bytes=_state_value_bytes(config, "mamba_ssm_cache_dtype"))
    if config.get("model_type") not in GATED_FAMILIES:
        return None
    check_count("full_attention_interval", config.get("full_attention_interval"))
    sizes = _counts(config, LINEAR_KEYS)
    return LinearAttention(**sizes, state_value_bytes=_state_value_bytes(config, "mamba_ssm_dtype"))


def _counts(config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, int]:
    """Return the values of keys by our names."""
    for key in keys.values():
        check_count(key, config.get(key))
    return {name: config[key] for name, key in keys.items()}


def _state_value_bytes(config: Mapping[str, Any], key: str) -> int:
    """Return the bytes of a value of a state: as engines hold it by default, in 16 bits unless the file wants more."""
    return 4 if config.get(key) == FLOAT_32 else 2


def _n_bare_layers(config: Mapping[str, Any]) -> int:
    """Return the layers without an MLP after them."""
    pattern = config.get(PATTERN)
    return 0 if pattern is None else config["num_hidden_layers"] - pattern.count("-")


def _n_mtp_layers(config: Mapping[str, Any]) -> int:
    """Return the MTP layers that the file counts, else those that the family is published with."""
    key = next((key for key in MTP_KEYS if config.get(key) is not None), None)
    if key is None:
        return family_of(config).n_mtp_layers
    check_count(key, config[key], least=0)
    return int(config[key])
