"""Families of a Hugging Face config.json: the keys of each beyond the common ones, and what its files leave out.

Key names and defaults follow the configuration classes of the transformers library. Every other key with a value is an
error, as it may change sizes or attention.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pydantic import create_model

from simserve.catalog.config_keys import (
    BY_LAYER,
    COUNT,
    COUNT_OR_0,
    IGNORED,
    LAYERS,
    READ,
    REFUSED,
    REFUSED_PREFIXES,
    TOKENS_OR_0,
    WIDTH,
    typed,
)
from simserve.catalog.layers import LinearAttention, Mamba2
from simserve.catalog.types import Strict
from simserve.errors import CatalogError
from simserve.plugins.validation import MOST_SHOWN


@dataclass(frozen=True, eq=False)
class Family:
    """A model_type: its keys beyond those of all families, and what its files leave out."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    """Further keys that are understood, and their types; any, for those that do not matter."""
    window_period: int | None = None
    """Every such layer is full, the others have a window, where the file does not list them; 1: all have it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of missing keys, where published files leave them out."""
    n_mtp_layers: int = 0
    """MTP layers of the published checkpoints, where no key counts them."""
    state: type[LinearAttention] | type[Mamba2] | None = None
    """Its layers with a state."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Keys of their sizes, by our names."""
    state_dtype: str = ""
    """The key of the dtype of their states."""
    lists_layers: str | None = None
    """The key that must list its layers; None: there is a rule for files without a list."""

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """The further keys that are understood, and those of sizes, with their types."""
        return {**dict.fromkeys(self.sizes.values(), WIDTH), **self.keys}

    @cached_property
    def schema(self) -> type[Strict]:
        """The types of all keys that are understood."""
        types: dict[str, Any] = {key: (kind | None, None) for key, kind in {**READ, **self.own}.items()}
        return create_model("Config", __base__=Strict, **types)


GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
STATE_DTYPE = Literal["float32", "bfloat16", "float16", "auto"]
GRANITE_HYBRID = Family(
    {
        "mamba_d_head": WIDTH | Literal["auto"],
        "mamba_expand": WIDTH,
        **typed(Any, "mamba_chunk_size mamba_conv_bias mamba_proj_bias time_step_limit"),
        **typed(Any, "init_method normalization_function"),
    },
    defaults={"mamba_n_groups": 1},
    state=Mamba2,
    sizes={
        "n_heads": "mamba_n_heads",
        "head_dim": "mamba_d_head",
        "state_dim": "mamba_d_state",
        "n_groups": "mamba_n_groups",
        "conv_size": "mamba_d_conv",
    },
    lists_layers="layer_types",
)
NEMOTRON_H = Family(
    {
        "hybrid_override_pattern": str,
        "attention_head_dim": WIDTH,
        "mamba_ssm_cache_dtype": STATE_DTYPE,
        **typed(Any, "chunk_size expand mamba_hidden_act mamba_proj_bias mlp_hidden_act num_logits_to_keep"),
        **typed(Any, "rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_limit time_step_max"),
        **typed(Any, "time_step_min time_step_rank use_conv_bias use_mamba_kernels"),
    },
    defaults={"mamba_ssm_cache_dtype": "float32"},  # of the transformers library, and of vLLM for this family
    state=Mamba2,
    sizes={
        "n_heads": "mamba_num_heads",
        "head_dim": "mamba_head_dim",
        "state_dim": "ssm_state_size",
        "n_groups": "n_groups",
        "conv_size": "conv_kernel",
    },
    state_dtype="mamba_ssm_cache_dtype",
    lists_layers="hybrid_override_pattern",
)
QWEN_3_5 = Family(
    {
        "full_attention_interval": COUNT,
        "attn_output_gate": bool,
        "mamba_ssm_dtype": STATE_DTYPE,
        "mtp_num_hidden_layers": COUNT_OR_0,
        "mtp_use_dedicated_embeddings": Any,
    },
    state=LinearAttention,
    sizes={
        "n_key_heads": "linear_num_key_heads",
        "key_head_dim": "linear_key_head_dim",
        "n_value_heads": "linear_num_value_heads",
        "value_head_dim": "linear_value_head_dim",
        "conv_size": "linear_conv_kernel_dim",
    },
    state_dtype="mamba_ssm_dtype",
)
ROTATED = {"no_rope_layers": BY_LAYER, "no_rope_layer_interval": COUNT}
CHUNKED = {"attention_chunk_size": TOKENS_OR_0, "interleave_moe_layer_step": COUNT, "moe_layers": LAYERS}
SPARSE = {"index_n_heads": WIDTH, "index_head_dim": WIDTH, "index_topk": TOKENS_OR_0, "indexer_rope_interleave": Any}
GEMMA_3_FAMILY = Family({"use_bidirectional_attention": Any}, window_period=6, defaults=GEMMA_3)

FAMILIES: Mapping[str, Family] = {
    "cohere2": Family({"order_of_interleaved_layers": Any}, window_period=4),
    "deepseek_v32": Family(SPARSE),
    "exaone4": Family({"reordered_norm": Any}, window_period=4),
    "gemma2": Family(window_period=2),
    "gemma3": GEMMA_3_FAMILY,
    "gemma3_text": GEMMA_3_FAMILY,
    "glm_moe_dsa": Family(SPARSE),
    "gpt_oss": Family({"initial_context_length": Any}, window_period=2),
    "granitemoehybrid": GRANITE_HYBRID,
    **dict.fromkeys(("llama4", "llama4_text"), Family(ROTATED | CHUNKED)),
    "minimax_m2": Family(typed(Any, "qk_norm_type use_mtp num_mtp_modules mtp_transformer_layers")),
    **dict.fromkeys(("mistral", "mixtral", "phimoe", "starcoder2"), Family(window_period=1)),
    "nemotron_h": NEMOTRON_H,
    "olmo3": Family(window_period=4),
    "phi3": Family(typed(Any, "full_attn_mod interpolate_factor"), window_period=1),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"), QWEN_3_5),
    "qwen3_next": replace(QWEN_3_5, n_mtp_layers=1),
    "smollm3": Family(ROTATED),
}
"""Families with keys or rules of their own; all others have the common keys only."""

OTHER = Family()

MOST_NAMED = 3
"""Keys that an error names."""


def family_of(config: Mapping[str, Any]) -> Family:
    """Return what is known of a file's model_type."""
    return FAMILIES.get(str(config.get("model_type")), OTHER)


def check_refused(config: Mapping[str, Any]) -> None:
    """Raise CatalogError for a key of what is not simulated."""
    for key in _on(config):
        if _is_refused(key, config) and config[key] != 0:
            what, got = REFUSED.get(key, "state-space and hybrid models"), _quoted(config[key])
            raise CatalogError(f"{key}: {what} are not supported yet, got {got}; choose another model")


def check_understood(config: Mapping[str, Any]) -> None:
    """Raise CatalogError for keys that may change the arithmetic and are not understood."""
    known = {**READ, **IGNORED, **family_of(config).own}
    unknown = [key for key in _on(config) if key not in known and not _is_refused(key, config)]
    if unknown:
        named = ", ".join(f"{key}: {_quoted(config[key])}" for key in unknown[:MOST_NAMED])
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        of = f"model_type {config['model_type']}" if config.get("model_type") else "a file without model_type"
        raise CatalogError(
            f"keys of {of} that may change sizes or attention are not understood, got {named}{more}; "
            "delete them in a copy of the file if they change neither, else choose another model"
        )


def _quoted(value: object) -> str:
    return json.dumps(value)[:MOST_SHOWN]


def _is_refused(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a key is of what is not simulated, in a file of this family."""
    return (key in REFUSED or key.startswith(REFUSED_PREFIXES)) and key not in family_of(config).own


def _on(config: Mapping[str, Any]) -> list[str]:
    """List the keys that are not off: null, false and empty values switch nothing on."""
    return [key for key, value in config.items() if _is_on(key, value)]


def _is_on(key: str, value: object) -> bool:
    if key == "attn_type_list" and isinstance(value, list):  # MiniMax: 1 is full attention
        return any(kind != 1 for kind in value)
    return value is not None and value is not False and value not in ("", [], {})
