"""Read the weight dtype from the quantization_config of a Hugging Face config.json."""

import json
from collections.abc import Mapping
from typing import Any

from simserve.errors import CatalogError

WEIGHT_ONLY = ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round")
"""Methods that quantize weights to integers, with `bits`."""

BLOCK = [128, 128]
"""The only block of weights with one scale that engines have kernels for."""

NVFP4_GROUP = 16
"""Weights with one scale in NVFP4."""

INTEGERS = {4: "int4", 8: "int8"}

KNOWN = "fp8, fbgemm_fp8, modelopt (FP8 and NVFP4), compressed-tensors, mxfp4, gptq and awq"

MODELOPT = {"FP8": "fp8", "NVFP4": "nvfp4"}
"""Algorithms of modelopt, which quantize activations too."""


def read_weight_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the dtype of quantized weights; None for 16 bits. Raises CatalogError without the path."""
    quantized = config.get("quantization_config")
    if not quantized:
        return None
    if not isinstance(quantized, dict):
        raise CatalogError(f"quantization_config must be a JSON object, got {type(quantized).__name__}")
    method = quantized.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return _float8(quantized.get("weight_block_size"))
    if method == "mxfp4":
        return "mxfp4"
    if method in WEIGHT_ONLY:
        return _integer(quantized.get("bits", quantized.get("w_bit", 4)))
    if method == "compressed-tensors":
        return _compressed(quantized)
    algorithm = str(quantized.get("quant_algo")).upper()
    if method in ("modelopt", "modelopt_fp4", None) and algorithm in MODELOPT:
        return MODELOPT[algorithm]
    text = json.dumps(quantized.get("quant_algo") or method)
    raise CatalogError(f"quantization_config: weights quantized as {text} are not supported yet; there are {KNOWN}")


def only_experts(config: Mapping[str, Any]) -> bool:
    """Tell whether the attention of all layers is left out of the quantization."""
    quantized = config.get("quantization_config") or {}
    kept = quantized.get("modules_to_not_convert") or quantized.get("ignore") or []
    return any("self_attn" in str(name) and "*" in str(name) for name in kept)


def _float8(block: object) -> str:
    if block is None:
        return "fp8"
    if block != BLOCK:
        raise CatalogError(f"quantization_config: weight_block_size must be {BLOCK}, got {json.dumps(block)}")
    return "fp8_block"


def _integer(bits: object) -> str:
    if bits not in INTEGERS:
        raise CatalogError(f"quantization_config: weights must have 4 or 8 bits, got {json.dumps(bits)}")
    return INTEGERS[int(str(bits))]


def _compressed(quantized: Mapping[str, Any]) -> str:
    """Return the dtype of compressed-tensors, where each group of layers states its own."""
    groups = quantized.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CatalogError("quantization_config: config_groups is missing; compressed-tensors needs it")
    dtypes = sorted({_group_dtype(name, group) for name, group in groups.items()})
    if len(dtypes) > 1:
        raise CatalogError(f"quantization_config: mixed layer dtypes, {' and '.join(dtypes)}, are not supported yet")
    return dtypes[0]


def _group_dtype(name: str, group: object) -> str:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise CatalogError(f"quantization_config: config_groups.{name}.weights is missing; it says num_bits and type")
    bits, kind = weights.get("num_bits"), weights.get("type")
    inputs = group.get("input_activations") or {}
    of_inputs = inputs.get("num_bits"), inputs.get("type")
    if kind == "float" and bits == 8:
        return _float8(weights.get("block_structure") if weights.get("strategy") == "block" else None)
    if kind == "int" and not inputs:
        return _integer(bits)
    if (bits, kind) == of_inputs == (8, "int"):
        return "w8a8"
    if (bits, kind) == of_inputs == (4, "float") and weights.get("group_size") == NVFP4_GROUP:
        return "nvfp4"
    with_inputs = f", activations of {of_inputs[0]} bits and type {of_inputs[1]}," if inputs else ""
    raise CatalogError(
        f"quantization_config: weights of {bits} bits and type {kind}{with_inputs} are not supported yet"
    )
