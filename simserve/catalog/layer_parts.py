"""Experts and latent attention of a Hugging Face config.json, with the key names of each family.

The choice of layers with experts follows the modeling code of the transformers library.
"""

import json
from collections.abc import Mapping
from typing import Any

from simserve.catalog.specs import Experts, Indexer, Mla
from simserve.errors import CatalogError, did_you_mean

N_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Families' keys for the number of routed experts per layer: Mixtral and gpt-oss, Qwen, DeepSeek."""

TOP_K = ("num_experts_per_tok", "experts_per_token")

DENSE_SIZE = ("intermediate_size_mlp", "dense_intermediate_size")

SHARED_SIZE = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""Inner size of the one shared expert: Qwen, Granite."""

SHARED_EXPERT_FAMILIES = ("llama4", "llama4_text")
"""Families with one shared expert per layer, as wide as the routed ones, without a key for it."""

INDEXER_KEYS = {"n_heads": "index_n_heads", "head_dim": "index_head_dim", "top_k": "index_topk"}

MLA_NEEDED = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def read_experts(config: Mapping[str, Any]) -> Experts | None:
    """Read the experts; None for a dense model (missing, 0 or 1 expert). Raises CatalogError without the path."""
    named = {key: config[key] for key in N_EXPERTS if _is_many(config.get(key))}
    if not named:
        _refuse_other_names(config)
        return None
    for key, value in named.items():
        check_count(key, value)
    if len(set(named.values())) > 1:
        raise CatalogError(f"{' and '.join(named)} must be the same number of experts, got {_json(named.values())}")
    key, n_experts = next(iter(named.items()))
    top_key = next((name for name in TOP_K if config.get(name) is not None), None)
    if top_key is None:
        raise CatalogError(f"num_experts_per_tok is missing; give the number of the {n_experts} experts per token")
    top_k = config[top_key]
    check_count(top_key, top_k)
    if top_k > n_experts:
        raise CatalogError(f"{top_key} must be at most the {n_experts} experts of {key}, got {top_k}")
    n_shared, shared_size = _shared(config)
    n_groups, top_groups = _routing_groups(config, n_experts, top_k)
    return Experts(
        n_experts=n_experts,
        top_k=top_k,
        expert_size=_expert_size(config),
        n_dense_layers=_n_dense_layers(config),
        n_shared_experts=n_shared,
        shared_size=shared_size,
        n_groups=n_groups,
        top_groups=top_groups,
    )


def read_mla(config: Mapping[str, Any]) -> Mla | None:
    """Read latent attention; None where keys and values are cached directly. Raises CatalogError without the path."""
    if not config.get("kv_lora_rank"):
        return None
    missing = [key for key in MLA_NEEDED if config.get(key) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise CatalogError(
            f"{' and '.join(missing)} {verb} missing; latent attention (kv_lora_rank) needs all its widths"
        )
    for key in ("kv_lora_rank", *MLA_NEEDED, *(["q_lora_rank"] if config.get("q_lora_rank") is not None else [])):
        check_count(key, config[key])
    return Mla(
        kv_lora_rank=config["kv_lora_rank"],
        q_lora_rank=config.get("q_lora_rank"),
        **{key: config[key] for key in MLA_NEEDED},
    )


def read_indexer(config: Mapping[str, Any]) -> Indexer | None:
    """Read the indexer of sparse attention; None without one. Raises CatalogError without the path."""
    if not config.get("index_topk"):
        return None
    if not config.get("kv_lora_rank"):
        raise CatalogError("index_topk: sparse attention without latent vectors (kv_lora_rank) is not supported yet")
    for key in INDEXER_KEYS.values():
        check_count(key, config.get(key))
    return Indexer(**{name: config[key] for name, key in INDEXER_KEYS.items()})


def dense_size(config: Mapping[str, Any]) -> int:
    """Return the inner size of the MLP of layers without experts; Llama 4 and MiniMax have separate keys for it."""
    key = next((key for key in DENSE_SIZE if config.get(key)), "intermediate_size")
    check_count(key, config[key])
    size: int = config[key]
    return size


def _routing_groups(config: Mapping[str, Any], n_experts: int, top_k: int) -> tuple[int, int]:
    """Return the groups that experts are chosen in, and how many of them a token uses; 1 and 1 without."""
    n_groups, top_groups = config.get("n_group") or 1, config.get("topk_group") or 1
    check_count("n_group", n_groups)
    check_count("topk_group", top_groups)
    if n_experts % n_groups:
        raise CatalogError(f"n_group must divide the {n_experts} experts, got {n_groups}")
    if top_groups > n_groups:
        raise CatalogError(f"topk_group must be at most the {n_groups} groups of n_group, got {top_groups}")
    if top_k > n_experts // n_groups * top_groups:
        raise CatalogError(f"topk_group must have at least the {top_k} experts of a token, got {top_groups}")
    return n_groups, top_groups


def _refuse_other_names(config: Mapping[str, Any]) -> None:
    other = next((key for key in config if "expert" in key and _is_many(config[key])), None)
    if other is not None and not any(key in config for key in N_EXPERTS):
        near = did_you_mean(other, N_EXPERTS)
        raise CatalogError(f"num_experts is missing, but {other} is {_json(config[other])}; {near}")


def _expert_size(config: Mapping[str, Any]) -> int:
    """Return moe_intermediate_size; Mixtral and gpt-oss, without another MLP, use intermediate_size."""
    key = "intermediate_size" if config.get("moe_intermediate_size") is None else "moe_intermediate_size"
    check_count(key, config.get(key))
    size: int = config[key]
    return size


def _shared(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of shared experts and the inner size of one."""
    n_shared = config.get("n_shared_experts")
    key = next((key for key in SHARED_SIZE if config.get(key)), None)
    if n_shared:
        check_count("n_shared_experts", n_shared)
        return n_shared, _expert_size(config)
    if key is not None:
        check_count(key, config[key])
        return 1, config[key]
    return (1, _expert_size(config)) if config.get("model_type") in SHARED_EXPERT_FAMILIES else (0, 0)


def _n_dense_layers(config: Mapping[str, Any]) -> int:
    n_layers: int = config["num_hidden_layers"]
    for key in ("first_k_dense_replace", "decoder_sparse_step", "interleave_moe_layer_step"):
        if config.get(key) is not None:
            check_count(key, config[key], least=0 if key == "first_k_dense_replace" else 1)
    freq = config.get("moe_layer_freq", 1)
    if isinstance(freq, list) and len(freq) != n_layers:
        raise CatalogError(f"moe_layer_freq must name the {n_layers} layers of num_hidden_layers, got {len(freq)}")
    if not isinstance(freq, list):
        check_count("moe_layer_freq", freq)
    for key in ("mlp_only_layers", "moe_layers"):
        if not isinstance(config.get(key), list | None):
            raise CatalogError(f"{key} must be a list of layers, got {json.dumps(config[key])[:60]}")
    n_moe_layers = sum(_has_experts(config, layer) for layer in range(n_layers))
    if not n_moe_layers:
        raise CatalogError(f"no layer of {n_layers} has experts by first_k_dense_replace and the like; set no experts")
    return n_layers - n_moe_layers


def _has_experts(config: Mapping[str, Any], layer: int) -> bool:
    freq = config.get("moe_layer_freq", 1)
    return (
        layer >= (config.get("first_k_dense_replace") or 0)
        and (bool(freq[layer]) if isinstance(freq, list) else layer % freq == 0)
        and (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0
        and (layer + 1) % (config.get("interleave_moe_layer_step") or 1) == 0
        and layer not in (config.get("mlp_only_layers") or ())
        and (not config.get("moe_layers") or layer in config["moe_layers"])
    )


def _is_many(value: object) -> bool:
    """Tell whether a value is a number of experts above one; configs of dense models have null or 0."""
    return isinstance(value, int | list) and value not in (0, 1) and value != []


def check_count(key: str, value: object, least: int = 1) -> None:
    """Check that a key's value is a whole number. Raises CatalogError without the path."""
    if type(value) is not int or value < least:  # not isinstance: true is an int
        raise CatalogError(f"{key} must be a whole number of at least {least}, got {json.dumps(value)}")


def _json(value: Any) -> str:
    return json.dumps(value if isinstance(value, int | str) else list(value))
