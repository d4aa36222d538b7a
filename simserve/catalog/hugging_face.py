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
from simserve.catalog.layers import LayerInputs, SharedBlocks
from simserve.catalog.quantization import QuantizationFile, only_experts, read_weight_dtype
from simserve.catalog.specs import ModelSpec
from simserve.catalog.types import checked
from simserve.errors import CatalogError, closest
from simserve.input_files import SCENARIO_BYTES, read_json

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")

TIED = "tie_word_embeddings"

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of the text part of a model with images or sound; a thinker's is in one of the others (Qwen3-Omni)."""

QUANTIZATION_FILE = "hf_quant_config.json"
"""modelopt's file for the weight dtype, next to a config.json without one."""


def read_config(path: Path) -> ModelSpec:
    """Read a config.json. Raises CatalogError if it is invalid, incomplete, contradictory or not supported."""
    given = _load(path)
    family = family_of(given.get("model_type", "mamba_ssm" if "ssm_cfg" in given else None), path.parent)
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
    dtype = read_weight_dtype(quantized := config.get("quantization_config"))
    dense_dtype = dtype if dtype and (quantized.expert_dtype or config.get("expert_dtype")) == "fp4" else None
    others = ", ".join(key for key in family.other_parts if given.get(key))
    return ModelSpec(
        name=path.resolve().parent.name if path.stem == "config" else path.stem,
        n_layers=len(layers),
        hidden_size=config.get("hidden_size"),
        **vars(heads),
        intermediate_size=max((size for size, _ in sized), default=config.get(mlp_key(config)) * ("experts" in mlps)),
        vocab_size=config.get("draft_vocab_size") or config.get("vocab_size"),
        max_position_embeddings=config.get("max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        gated_mlp=family.has.gated_mlp,
        gated_attention=family.has.gated_attention and config.get("attn_output_gate") is not False,
        query_rank=config.get("share_q_dim"),
        norms_all_heads=config.get("qk_norm_type") == "per_layer",
        groups=groups,
        experts=experts,
        mla=mla,
        indexer=None if config.get("o_lora_rank") else read_indexer(config),
        linear=state,
        layer_inputs=read_part(config, family.layer_inputs, LayerInputs),
        shared_blocks=read_part(config, family.shared_blocks, SharedBlocks),
        mlps=sized if len(sized) > 1 else (),
        n_bare_layers=mlps.count("none"),
        n_mtp_layers=config.get("num_nextn_predict_layers") or 0,
        mtp_layer=family.mtp_layer,
        weight_dtype=dtype if dense_dtype is None else "mxfp4",
        dense_dtype=dense_dtype,
        n_streams=config.get("hc_mult") or 1,
        only_experts_quantized=experts is not None and only_experts(quantized),
        source=f"Hugging Face config.json, {path.name}" + (others and f"; its text, without {others}"),
    )


def _load(path: Path) -> dict[str, Any]:
    """Read the keys of a file's language model, which alone is simulated."""
    try:
        config = read_json(path, SCENARIO_BYTES)
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read ({error.strerror}); give a catalog name or a config.json") from None
    except ValueError as error:
        raise CatalogError(f"{path}: must be a Hugging Face config.json, but is not JSON ({error})") from None
    language = _text_of(config, f"{path}:")
    family = language.get("model_type")
    if not isinstance(family, str | None):
        raise CatalogError(f"{path}: model_type must be text, got {json.dumps(family)[:60]}; name the family")
    if "quantization_config" not in language:
        language |= _quantized_by_file(path.with_name(QUANTIZATION_FILE))
    return language


def _text_of(part: Any, place: str) -> dict[str, Any]:
    """Return the keys of the language model: those of its part, and of those outside it which may be about both."""
    if not isinstance(part, dict):
        raise CatalogError(f"{place} must be a JSON object, got {type(part).__name__}")
    inner = next((key for key in TEXT_PARTS if part.get(key)), None)
    if inner is None:
        return part
    of_both = {*common_family().types, *common_family().other_parts}
    outer = {key: value for key, value in part.items() if key in of_both}
    text = _text_of(part[inner], f"{place} {inner}")
    if [part.get(TIED), text.get(TIED)] in ([True, False], [False, True]):
        remedy = "set both to false if the checkpoint has lm_head.weight, else to true"
        raise CatalogError(f"{place} {TIED} must be the same in {inner} and outside it; {remedy}")
    return {**outer, **text}


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
    config.check_needed(needed, remedy)


def _check_gate(config: Config, given: Mapping[str, Any]) -> None:
    """Check that it is known whether the MLP of a family has a gate: those of SiLU have one."""
    activation = given.get("hidden_act")
    if not config.family.model_types and activation not in (None, "silu", "swiglu", "gelu_pytorch_tanh"):
        remedy = "say so in a family.yaml beside the file, as has: {gated_mlp: false}, or choose another model"
        rule = f"families of {json.dumps(activation)[:60]} differ in whether their MLP has a gate"
        raise CatalogError(f"hidden_act: {rule}; {remedy}")
