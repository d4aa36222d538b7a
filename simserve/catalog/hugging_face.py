"""Read a ModelSpec from a Hugging Face config.json: of all families with layers that are known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.catalog.config import Config, check_understood, read_keys
from simserve.catalog.families import common_family, family_of
from simserve.catalog.family import Family
from simserve.catalog.layer_parts import mlp_key, read_experts, read_indexer, read_mla
from simserve.catalog.layer_rules import read_groups, read_layers, read_mlps, read_part, read_state
from simserve.catalog.layers import LayerInputs
from simserve.catalog.quantization import QuantizationFile, only_experts, read_weight_dtype
from simserve.catalog.specs import ModelSpec
from simserve.catalog.types import checked
from simserve.errors import CatalogError, closest
from simserve.input_files import SCENARIO_BYTES, read_json

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")

QUANTIZATION_FILE = "hf_quant_config.json"
"""modelopt's file for the weight dtype, next to a config.json without one."""


def read_config(path: Path) -> ModelSpec:
    """Read a config.json. Raises CatalogError if it is invalid, incomplete, contradictory or not supported."""
    given = _load(path)
    family = family_of(given.get("model_type"), path.parent)
    try:
        return _spec(path, family, given)
    except CatalogError as error:
        raise CatalogError(f"{path}: {error}") from None


def _spec(path: Path, family: Family, given: Mapping[str, Any]) -> ModelSpec:
    configs = read_keys(family, given)
    config = next((each for each in configs if each.get(mlp_key(each))), configs[0])
    _check_gate(config, given)
    _check_complete(config, given)
    layers = read_layers(configs)
    heads, groups = read_groups(layers)
    mlps, sized = [mlp for _, mlp, _ in layers], read_mlps(layers)
    parts = {(read_experts(each, mlps), read_mla(each), read_state(each)) for each in configs}
    if len(parts) > 1:
        key = next(key for key in family.by_layer if any(each.get(key) != config.get(key) for each in configs))
        raise CatalogError(f"{key}: experts, latent vectors or states that differ by layer are not supported yet")
    ((experts, mla, state),) = parts
    check_understood(family, given)
    others = next((key for key in family.other_parts if given.get(key)), None)
    return ModelSpec(
        name=path.resolve().parent.name if path.stem == "config" else path.stem,
        n_layers=len(layers),
        hidden_size=config.get("hidden_size"),
        **vars(heads),
        intermediate_size=max((size for size, _ in sized), default=config.get(mlp_key(config))),
        vocab_size=config.get("vocab_size"),
        max_position_embeddings=config.get("max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        gated_mlp=family.has.gated_mlp,
        gated_attention=family.has.gated_attention and config.get("attn_output_gate") is not False,
        norms_all_heads=config.get("qk_norm_type") == "per_layer",
        groups=groups,
        experts=experts,
        mla=mla,
        indexer=read_indexer(config),
        linear=state,
        layer_inputs=read_part(config, family.layer_inputs, LayerInputs),
        mlps=sized if len(sized) > 1 else (),
        n_bare_layers=mlps.count("none"),
        n_mtp_layers=config.get("num_nextn_predict_layers") or 0,
        weight_dtype=read_weight_dtype(config.get("quantization_config")),
        only_experts_quantized=experts is not None and only_experts(config.get("quantization_config")),
        source=f"Hugging Face config.json, {path.name}" + ("" if others is None else f"; its text, without {others}"),
    )


def _load(path: Path) -> dict[str, Any]:
    """Read a file's keys; those of an inner text_config take precedence, as only the language model is simulated."""
    try:
        config = read_json(path, SCENARIO_BYTES)
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read ({error.strerror}); give a catalog name or a config.json") from None
    except ValueError as error:
        raise CatalogError(f"{path}: must be a Hugging Face config.json, but is not JSON ({error})") from None
    inner = (config.get("text_config") or config.get("llm_config")) if isinstance(config, dict) else None
    for what, value in (("must be", config), ("text_config must be", {} if inner is None else inner)):
        if not isinstance(value, dict):
            raise CatalogError(f"{path}: {what} a JSON object, got {type(value).__name__}")
    # Of the keys outside an inner text_config, some are about the language model too.
    of_both = {*common_family().types, *common_family().other_parts}
    outer = config if inner is None else {key: value for key, value in config.items() if key in of_both}
    language = {**outer, **(inner or {})}
    family = language.get("model_type")
    if not isinstance(family, str | None):
        raise CatalogError(f"{path}: model_type must be text, got {json.dumps(family)[:60]}; name the family")
    if "quantization_config" not in language:
        language |= _quantized_by_file(path.with_name(QUANTIZATION_FILE))
    return language


def _quantized_by_file(extra: Path) -> dict[str, Any]:
    """Return the quantization_config given by a separate file, if there is one."""
    if not extra.is_file():
        return {}
    try:
        content = read_json(extra, SCENARIO_BYTES)
        read_weight_dtype(checked(QuantizationFile, content).quantization)
        return {"quantization_config": content["quantization"]}
    except (OSError, ValueError) as error:
        raise CatalogError(f"{extra}: must be modelopt's JSON object with the key quantization ({error})") from None
    except CatalogError as error:
        raise CatalogError(f"{extra}: {error}") from None


def _check_complete(config: Config, given: Mapping[str, Any]) -> None:
    """Check that no key is missing that all files of the family need."""
    needed = [*NEEDED, mlp_key(config), *config.family.needs]
    first = next((key for key in needed if config.get(key) is None), "")
    near = closest(first, [key for key in given if key not in config.family.types and isinstance(given[key], int)])
    remedy = f"{first} may be called {near}" if near else "it must be the config.json of a causal model"
    if first == "intermediate_size" and config.get("mlp_only_layers"):
        remedy = "layers of mlp_only_layers have that size"
    config.check_needed(needed, remedy)


def _check_gate(config: Config, given: Mapping[str, Any]) -> None:
    """Check that it is known whether the MLP of a family has a gate: those of SiLU have one."""
    activation = given.get("hidden_act")
    if not config.family.model_types and activation not in (None, "silu", "swiglu", "gelu_pytorch_tanh"):
        remedy = "say so in a family.yaml beside the file, as has: {gated_mlp: false}, or choose another model"
        rule = f"families of {json.dumps(activation)[:60]} differ in whether their MLP has a gate"
        raise CatalogError(f"hidden_act: {rule}; {remedy}")
