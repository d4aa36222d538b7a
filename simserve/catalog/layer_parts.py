"""Experts and latent attention of a Hugging Face config.json, from its common keys."""

import json
from collections.abc import Sequence
from typing import Any

from simserve.catalog.config import Config
from simserve.catalog.latent import Indexer, Mla, SharedVector
from simserve.catalog.layers import Experts, Heads
from simserve.errors import CatalogError

N_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Families' keys for the number of routed experts per layer: Mixtral and gpt-oss, Qwen, DeepSeek."""

TOP_K = ("num_experts_per_tok", "experts_per_token")

SHARED_SIZE = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""Inner size of the one shared expert: Qwen, Granite."""

INDEXER_KEYS = {"n_heads": "index_n_heads", "head_dim": "index_head_dim", "top_k": "index_topk"}

KV_HEADS_ELSEWHERE = ("num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query", "multi_query_group_num")
"""Other families' keys for the number of KV heads; one KV head per head would cost many times the cache."""

MLA_NEEDED = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def n_experts_of(config: Config) -> tuple[str, int] | None:
    """Return the key and the number of routed experts; None for a dense model: missing, 0 or 1 expert."""
    named = {config.named(key): config.get(key) for key in N_EXPERTS if _is_many(config.get(key))}
    if len(set(named.values())) > 1:
        got = json.dumps(list(named.values()))
        raise CatalogError(f"{' and '.join(named)} must be the same number of experts, got {got}")
    counts, size = {config.get(key) for key in N_EXPERTS}, config.get("moe_intermediate_size")
    given = [config.named(key) for key in ("moe_intermediate_size", *TOP_K) if config.get(key)]
    is_one = 1 in counts and not named and size not in (None, config.get("intermediate_size"))
    if given and (counts == {None} or is_one):
        keys = " or ".join(map(config.named, N_EXPERTS))
        raise CatalogError(f"{keys} must be at least 2 in a file with {' and '.join(given)}; compare the published one")
    return next(iter(named.items()), None)


def read_experts(config: Config, mlps: Sequence[str]) -> Experts | None:
    """Read the experts of layers with these MLPs; None for a dense model. Raises CatalogError without the path."""
    named = n_experts_of(config)
    if named is None:
        if "experts" in mlps:
            names = " or ".join(map(config.named, N_EXPERTS))
            raise CatalogError(f"{names} is missing; layers with experts need their number")
        return None
    if "dense" in mlps and not config.get("dense_intermediate_size"):
        config.check_needed(["intermediate_size"], "layers without experts have that size")
    key, n_experts = named
    top_key = next((name for name in TOP_K if config.get(name) is not None), TOP_K[0])
    config.check_needed([top_key], f"give the number of the {n_experts} experts of {key} per token")
    top_k = config.get(top_key)
    if top_k > n_experts:
        raise CatalogError(f"{config.named(top_key)} must be at most the {n_experts} experts of {key}, got {top_k}")
    n_shared, shared_size = _shared(config)
    n_zero = config.get("zero_expert_num") or 0  # a token's experts are drawn from these, too
    top_k = max(1, round(top_k * n_experts / (n_experts + n_zero)))
    n_groups, top_groups = _routing_groups(config, n_experts, top_k)
    dense = tuple(layer for layer, mlp in enumerate(mlps) if mlp in ("dense", "matrix"))
    return Experts(
        n_experts=n_experts,
        top_k=top_k,
        expert_size=_expert_size(config),
        n_dense_layers=len(dense),
        dense_at=() if dense == tuple(range(len(dense))) else dense,
        n_zero_experts=n_zero,
        n_shared_experts=n_shared,
        shared_size=shared_size,
        n_groups=n_groups,
        top_groups=top_groups,
        latent_size=config.get("moe_latent_size"),
    )


def read_mla(config: Config) -> Mla | None:
    """Read latent attention; None where keys and values are cached directly. Raises CatalogError without the path."""
    if config.get("o_lora_rank"):
        width, rotated, n_heads = (config.get(key) for key in ("head_dim", "qk_rope_head_dim", "num_attention_heads"))
        n_groups = config.get("o_groups")
        if n_heads % n_groups:
            raise CatalogError(f"o_groups must divide num_attention_heads {n_heads}, got {n_groups}")
        ranks = {key: config.get(key) for key in ("q_lora_rank", "o_lora_rank")}
        return SharedVector(width, width - rotated, rotated, width, group_heads=n_heads // n_groups, **ranks)
    if not any(map(config.get, MLA_NEEDED[:-1])):
        return None
    config.check_needed(MLA_NEEDED, f"latent attention ({', '.join(MLA_NEEDED[:-1])}) needs all its widths")
    return Mla(q_lora_rank=config.get("q_lora_rank"), **{key: config.get(key) for key in MLA_NEEDED})


def read_heads(config: Config) -> Heads:
    """Read the heads of a layer that attends. Raises CatalogError where widths and heads contradict each other."""
    n_heads, hidden, mla = config.get("num_attention_heads"), config.get("hidden_size"), read_mla(config)
    alias = next((key for key in KV_HEADS_ELSEWHERE if config.get(key)), None)
    if alias is not None and config.get("num_key_value_heads") is None:
        remedy = f"give it with {alias}, got {json.dumps(config.get(alias))}"
        raise CatalogError(f"num_key_value_heads is missing; {remedy}")
    if config.get("num_key_value_heads") == 0:
        config.check_needed(config.family.derived["num_key_value_heads"].needs, "layers with attention have it")
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    if n_heads % n_kv_heads:
        names = config.named("num_key_value_heads"), config.named("num_attention_heads")
        raise CatalogError(f"{names[0]} must divide {names[1]} {n_heads}, got {n_kv_heads}; compare both")
    if not config.get("head_dim") and mla is None and hidden % n_heads:
        raise CatalogError(
            f"without head_dim, num_attention_heads must divide hidden_size {hidden}, got {n_heads}; compare both"
        )
    if mla is not None:
        return Heads(n_heads, n_heads, mla.qk_head_dim)
    return Heads(n_heads, n_kv_heads, config.get("head_dim") or hidden // n_heads, config.get("v_head_dim") or None)


def read_indexer(config: Config) -> Indexer | None:
    """Read the indexer of sparse attention; None without one. Raises CatalogError without the path."""
    if not any(config.get(key) for key in INDEXER_KEYS.values()):
        return None
    of_entries = {"n_projected": 4} if config.get("o_lora_rank") else {}  # values and gates, and entries overlap
    if not config.get("kv_lora_rank") and not of_entries:
        raise CatalogError("index_topk: sparse attention without latent vectors (kv_lora_rank) is not supported yet")
    config.check_needed(INDEXER_KEYS.values(), "sparse attention (index_topk) needs all its sizes")
    return Indexer(**{name: config.get(key) for name, key in INDEXER_KEYS.items()}, **of_entries)


def mlp_key(config: Config) -> str:
    """Return the key of the inner size of the MLP: that of the experts, where all layers have them and no other is."""
    has_experts = any(_is_many(config.get(key)) for key in N_EXPERTS)
    if not has_experts and config.family.has.shared_is_mlp:
        return "shared_intermediate_size"
    own, expert = ("dense_intermediate_size",) if has_experts else (), "moe_intermediate_size"
    given = (key for key in (*own, "intermediate_size", expert) if config.get(key))
    return next(given, "intermediate_size" if config.get(expert) is None else expert)


def _routing_groups(config: Config, n_experts: int, top_k: int) -> tuple[int, int]:
    """Return the groups that experts are chosen in, and how many of them a token uses; 1 and 1 without."""
    n_groups, top_groups = config.get("n_group") or 1, config.get("topk_group") or 1
    if n_experts % n_groups:
        raise CatalogError(f"n_group must divide the {n_experts} experts, got {n_groups}")
    if top_groups > n_groups:
        raise CatalogError(f"topk_group must be at most the {n_groups} groups of n_group, got {top_groups}")
    if top_k > n_experts // n_groups * top_groups:
        raise CatalogError(f"topk_group must have at least the {top_k} experts of a token, got {top_groups}")
    return n_groups, top_groups


def _expert_size(config: Config) -> int:
    """Return moe_intermediate_size; Mixtral and gpt-oss, without another MLP, use intermediate_size."""
    has_own = any(map(config.get, ("moe_intermediate_size", "n_routed_experts")))
    key = "moe_intermediate_size" if has_own else "intermediate_size"
    config.check_needed([key], "experts need their inner size")
    size: int = config.get(key)
    return size


def _shared(config: Config) -> tuple[int, int]:
    """Return the number of shared experts and the inner size of one."""
    sizes = [config.get(key) for key in SHARED_SIZE if config.get(key)]
    n_shared = config.get("n_shared_experts")
    if not sizes and (n_shared or config.family.has.shared_expert):
        sizes = [_expert_size(config)]
    return (n_shared or 1, sizes[0]) if sizes else (0, 0)


def _is_many(value: Any) -> bool:
    """Tell whether a value is a number of experts above one; configs of dense models have null or 0."""
    return value not in (None, 0, 1)
