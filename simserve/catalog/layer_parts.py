"""Experts and latent attention of a Hugging Face config.json, with the key names of each family.

The choice of layers with experts follows the modeling code of the transformers library.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from simserve.catalog.layers import Experts, Indexer, Mla
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

MOE_LAYERS = (
    "first_k_dense_replace",
    "moe_layer_freq",
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "mlp_only_layers",
    "moe_layers",
)
"""Keys that say which layers have experts."""

MLA_NEEDED = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def read_experts(config: Mapping[str, Any]) -> Experts | None:
    """Read the experts; None for a dense model (missing, 0 or 1 expert). Raises CatalogError without the path."""
    named = {key: config[key] for key in N_EXPERTS if _is_many(config.get(key))}
    if not named:
        other = next((key for key in config if "expert" in key and _is_many(config[key])), None)
        if other is not None and not any(key in config for key in N_EXPERTS):
            near = did_you_mean(other, N_EXPERTS)
            raise CatalogError(f"num_experts is missing, but {other} is {json.dumps(config[other])}; {near}")
        return None
    if len(set(named.values())) > 1:
        got = json.dumps(list(named.values()))
        raise CatalogError(f"{' and '.join(named)} must be the same number of experts, got {got}")
    key, n_experts = next(iter(named.items()))
    top_key = next((name for name in TOP_K if config.get(name) is not None), TOP_K[0])
    check_needed(config, [top_key], f"give the number of the {n_experts} experts of {key} per token")
    if config[top_key] > n_experts:
        raise CatalogError(f"{top_key} must be at most the {n_experts} experts of {key}, got {config[top_key]}")
    n_shared, shared_size = _shared(config)
    n_groups, top_groups = _routing_groups(config, n_experts, config[top_key])
    return Experts(
        n_experts=n_experts,
        top_k=config[top_key],
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
    check_needed(config, MLA_NEEDED, "latent attention (kv_lora_rank) needs all its widths")
    return Mla(q_lora_rank=config.get("q_lora_rank"), **{key: config[key] for key in ("kv_lora_rank", *MLA_NEEDED)})


def read_indexer(config: Mapping[str, Any]) -> Indexer | None:
    """Read the indexer of sparse attention; None without one. Raises CatalogError without the path."""
    if not config.get("index_topk"):
        return None
    if not config.get("kv_lora_rank"):
        raise CatalogError("index_topk: sparse attention without latent vectors (kv_lora_rank) is not supported yet")
    check_needed(config, INDEXER_KEYS.values(), "sparse attention (index_topk) needs all its sizes")
    return Indexer(**{name: config[key] for name, key in INDEXER_KEYS.items()})


def check_needed(config: Mapping[str, Any], keys: Iterable[str], remedy: str) -> None:
    """Raise CatalogError for keys that are missing, or 0."""
    missing = [key for key in keys if not config.get(key)]
    if missing:
        verb, given = "is" if len(missing) == 1 else "are", config.get(missing[0])
        raise CatalogError(f"{' and '.join(missing)} {verb} {'missing' if given is None else given}; {remedy}")


def mlp_key(config: Mapping[str, Any]) -> str:
    """Return the key of the inner size of the MLP: that of the experts, where all layers have them and no other is."""
    if config.get("model_type") == "granitemoehybrid" and not config.get("num_local_experts"):
        return "shared_intermediate_size"
    own = DENSE_SIZE if any(_is_many(config.get(key)) for key in N_EXPERTS) else ()
    expert = () if config.get("mlp_only_layers") else ("moe_intermediate_size",)
    given = (key for key in (*own, "intermediate_size", *expert) if config.get(key))
    return next(given, "moe_intermediate_size" if "moe_intermediate_size" in config and expert else "intermediate_size")


def _routing_groups(config: Mapping[str, Any], n_experts: int, top_k: int) -> tuple[int, int]:
    """Return the groups that experts are chosen in, and how many of them a token uses; 1 and 1 without."""
    n_groups, top_groups = config.get("n_group") or 1, config.get("topk_group") or 1
    if n_experts % n_groups:
        raise CatalogError(f"n_group must divide the {n_experts} experts, got {n_groups}")
    if top_groups > n_groups:
        raise CatalogError(f"topk_group must be at most the {n_groups} groups of n_group, got {top_groups}")
    if top_k > n_experts // n_groups * top_groups:
        raise CatalogError(f"topk_group must have at least the {top_k} experts of a token, got {top_groups}")
    return n_groups, top_groups


def _expert_size(config: Mapping[str, Any]) -> int:
    """Return moe_intermediate_size; Mixtral and gpt-oss, without another MLP, use intermediate_size."""
    key = "intermediate_size" if config.get("moe_intermediate_size") is None else "moe_intermediate_size"
    check_needed(config, [key], "experts need their inner size")
    size: int = config[key]
    return size


def _shared(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of shared experts and the inner size of one."""
    n_shared = config.get("n_shared_experts")
    if n_shared:
        return n_shared, _expert_size(config)
    sizes = [config[key] for key in SHARED_SIZE if config.get(key)]
    if not sizes and config.get("model_type") in SHARED_EXPERT_FAMILIES:
        sizes = [_expert_size(config)]
    return (1, sizes[0]) if sizes else (0, 0)


def _n_dense_layers(config: Mapping[str, Any]) -> int:
    n_layers: int = config["num_hidden_layers"]
    n_moe_layers = sum(_is_moe(config, layer) for layer in range(n_layers))
    if not n_moe_layers:
        given = " and ".join(key for key in MOE_LAYERS if config.get(key)) or "the file"
        raise CatalogError(f"{given} must leave experts to one of the {n_layers} layers at least; set no experts")
    return n_layers - n_moe_layers


def _is_moe(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has experts."""
    freq = config.get("moe_layer_freq") or 1
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
    return isinstance(value, int | list) and value not in (0, 1, [])
