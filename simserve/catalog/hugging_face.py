"""Read a ModelSpec from a Hugging Face config.json: transformers, dense or MoE, quantized or not.

Keys and defaults follow the configuration classes of the transformers library.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.catalog.layer_parts import dense_size, read_experts, read_mla
from simserve.catalog.quantization import only_experts, read_weight_dtype
from simserve.catalog.specs import SHORT_WINDOW, ModelSpec
from simserve.errors import CatalogError, closest

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

UNGATED_FAMILIES = ("gpt2", "gpt_neox", "gptj", "opt", "falcon", "phi", "starcoder2", "nemotron", "bloom", "mpt")
"""Families with two MLP matrices; all others have gate, up and down."""

KV_HEADS_ELSEWHERE = ("num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query", "multi_query_group_num")
"""Other families' keys for the number of KV heads; one KV head per head would cost many times the cache."""

SPARSE_KEYS = ("index_topk", "sparse_attention_config")

WINDOW_KEYS = ("sliding_window", "attention_chunk_size")
"""Tokens that a local layer attends at most: the last ones, or those of the same chunk (Llama 4)."""

QUANTIZATION_FILE = "hf_quant_config.json"
"""modelopt's file for the weight dtype, next to a config.json without one."""

SHAPES_OF_WINDOWED = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim")
"""Keys of families with different heads in windowed layers (MiMo-V2)."""

LAYER_KINDS = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}
"""Supported entries of layer_types, and whether such a layer has a window."""


def read_config(path: Path) -> ModelSpec:
    """Read a config.json. Raises CatalogError if it is invalid, incomplete, contradictory or not supported."""
    config = _load(path)
    try:
        return _spec(path, config)
    except CatalogError as error:
        raise CatalogError(f"{path}: {error}") from None


def _spec(path: Path, config: Mapping[str, Any]) -> ModelSpec:
    _reject_unsupported(config)
    _check(config)
    n_heads, hidden = config["num_attention_heads"], config["hidden_size"]
    n_window_layers = _n_window_layers(config)
    family = config.get("model_type")
    tied = config.get("tie_word_embeddings")
    experts, mla = read_experts(config), read_mla(config)
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
        sliding_window=_window(config) if n_window_layers else None,
        n_window_layers=n_window_layers,
        experts=experts,
        mla=mla,
        weight_dtype=read_weight_dtype(config),
        only_experts_quantized=experts is not None and only_experts(config),
        source=f"Hugging Face config.json, {path.name}",
    )


def _load(path: Path) -> dict[str, Any]:
    """Read a file's keys; those of an inner text_config take precedence, as only the language model is simulated."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read ({error.strerror}); give a catalog name or a config.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path}: must be a Hugging Face config.json, but is not JSON ({error})") from None
    inner = config.get("text_config") if isinstance(config, dict) else None
    for what, value in (("must be", config), ("text_config must be", {} if inner is None else inner)):
        if not isinstance(value, dict):
            raise CatalogError(f"{path}: {what} a JSON object, got {type(value).__name__}")
    return {**_quantized_by_file(path), **config, **(inner or {})}


def _quantized_by_file(path: Path) -> dict[str, Any]:
    """Return the quantization_config given by a separate file, if there is one."""
    extra = path.with_name(QUANTIZATION_FILE)
    if not extra.is_file():
        return {}
    try:
        return {"quantization_config": json.loads(extra.read_text(encoding="utf-8"))["quantization"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise CatalogError(f"{extra}: must be modelopt's JSON object with the key quantization") from None


def _reject_unsupported(config: Mapping[str, Any]) -> None:
    keys = {
        "layers that differ in shape": next((key for key in _counted(config) if isinstance(config[key], list)), None),
        "state-space and hybrid models": next((key for key in config if key.startswith(("mamba_", "ssm_"))), None),
        "layers with heads of their own": next((key for key in SHAPES_OF_WINDOWED if config.get(key)), None),
        "models with sparse attention": next((key for key in SPARSE_KEYS if config.get(key)), None),
        "encoder-decoder models": "is_encoder_decoder" if config.get("is_encoder_decoder") else None,
    }
    for what, key in keys.items():
        if key is not None:
            raise CatalogError(f"{key}: {what} are not supported yet; choose another model")
    kinds = config.get("layer_types") or []
    unknown = sorted({str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])} - LAYER_KINDS.keys())
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
    n_kv_heads, kinds = config.get("num_key_value_heads") or n_heads, config.get("layer_types")
    if n_heads % n_kv_heads:
        raise CatalogError(f"num_key_value_heads must divide the {n_heads} attention heads, got {n_kv_heads}")
    if not config.get("head_dim") and not config.get("kv_lora_rank") and hidden % n_heads:
        raise CatalogError(f"without head_dim, num_attention_heads must divide hidden_size {hidden}, got {n_heads}")
    if kinds and len(kinds) != n_layers:
        raise CatalogError(f"layer_types must name the {n_layers} layers of num_hidden_layers, got {len(kinds)}")
    if kinds and "sliding_attention" in kinds and not _window(config):
        raise CatalogError("layer_types names layers of sliding_attention, but sliding_window is missing")
    is_given = kinds or config.get("use_sliding_window")  # by max_window_layers
    if not is_given and _uses_window(config) and _window(config) <= SHORT_WINDOW:
        raise CatalogError(f"layer_types is missing; list the layers with the window of {_window(config)} tokens")


def _uses_window(config: Mapping[str, Any]) -> bool:
    """Tell whether the window is on; a config may state one and switch it off."""
    return bool(_window(config)) and config.get("use_sliding_window") is not False


def _window(config: Mapping[str, Any]) -> Any:
    return next((config[key] for key in WINDOW_KEYS if config.get(key)), None)


def _n_window_layers(config: Mapping[str, Any]) -> int:
    """Count the layers with the window.

    With use_sliding_window (Qwen), these are the layers from max_window_layers on. Families that alternate without
    layer_types count as all windowed: requests beyond a window that is not short are rejected in either case.
    """
    n_layers: int = config["num_hidden_layers"]
    if not _uses_window(config):
        return 0
    if config.get("layer_types"):
        return sum(LAYER_KINDS[kind] for kind in config["layer_types"])
    n_full_layers = config.get("max_window_layers") if config.get("use_sliding_window") else None
    return max(0, n_layers - n_full_layers) if isinstance(n_full_layers, int) else n_layers
