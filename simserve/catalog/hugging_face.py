"""A ModelSpec from a Hugging Face config.json: dense and grouped-query transformers."""

import json
from pathlib import Path
from typing import Any

from simserve.catalog.specs import ModelSpec
from simserve.errors import CatalogError
from simserve.plugins.flaws import did_you_mean

NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
UNGATED = ("gelu", "gelu_new", "relu", "gelu_pytorch_tanh")
"""Activations of models with two MLP matrices, for the families below."""
UNGATED_FAMILIES = ("gpt2", "gpt_neox", "opt", "falcon", "phi", "starcoder2", "bloom", "mpt")


def read_config(path: Path) -> ModelSpec:
    """Raises CatalogError for a file that is no config.json, lacks keys, contradicts itself, or is not modelled yet."""
    config = _load(path)
    config = {**config, **config.get("text_config", {})}
    _refuse_what_comes_later(path, config)
    for key in NEEDED:
        if key not in config:
            raise CatalogError(f"{path}: {key} is missing; {did_you_mean(key, config)}")
        _positive(path, config, key)
    n_heads, hidden = config["num_attention_heads"], config["hidden_size"]
    n_kv_heads = _positive(path, config, "num_key_value_heads") if config.get("num_key_value_heads") else n_heads
    if n_heads % n_kv_heads:
        raise CatalogError(f"{path}: num_key_value_heads must divide the {n_heads} attention heads, got {n_kv_heads}")
    if not config.get("head_dim") and hidden % n_heads:
        raise CatalogError(
            f"{path}: num_attention_heads must divide hidden_size {hidden}, got {n_heads}; or give head_dim"
        )
    window, n_window_layers = _windows(config)
    return ModelSpec(
        name=config.get("_name_or_path") or path.parent.name or path.stem,
        n_layers=config["num_hidden_layers"],
        hidden_size=hidden,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=config.get("head_dim") or hidden // n_heads,
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        gated_mlp=config.get("model_type") not in UNGATED_FAMILIES,
        sliding_window=window,
        n_window_layers=n_window_layers,
        source=str(path),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read ({error.strerror}); give a catalog name or a config.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path}: must be a Hugging Face config.json, but is no JSON ({error})") from None
    if not isinstance(config, dict):
        raise CatalogError(f"{path}: must be a JSON object, got {type(config).__name__}")
    return config


def _positive(path: Path, config: dict[str, Any], key: str) -> int:
    value = config[key]
    if type(value) is not int or value < 1:
        raise CatalogError(f"{path}: {key} must be a whole number of at least 1, got {value!r}")
    return value


def _refuse_what_comes_later(path: Path, config: dict[str, Any]) -> None:
    later = {
        "mixture-of-experts models": next((key for key in EXPERTS if (config.get(key) or 0) > 1), None),
        "models with latent attention (MLA)": "kv_lora_rank" if config.get("kv_lora_rank") else None,
        "quantised checkpoints": "quantization_config" if config.get("quantization_config") else None,
    }
    for what, key in later.items():
        if key is not None:
            remedy = (
                "remove it and set weight_dtype in the scenario"
                if key == "quantization_config"
                else "use a dense model"
            )
            raise CatalogError(f"{path}: {key}: {what} are not there yet; {remedy}")
    kinds = set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise CatalogError(f"{path}: layer_types: layers of kind {', '.join(sorted(kinds))} are not there yet")


def _windows(config: dict[str, Any]) -> tuple[int | None, int]:
    """The window, and how many layers have it; a model may state one and not use it."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return None, 0
    kinds = config.get("layer_types")
    n_layers = kinds.count("sliding_attention") if kinds else config["num_hidden_layers"]
    return (window, n_layers) if n_layers else (None, 0)
