"""Read the weight dtype from the quantization_config of a Hugging Face config.json."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict

from simserve.catalog.types import StopAtFirst, Strict, checked
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


Names = Annotated[list[str], StopAtFirst()]
Numbers = Annotated[list[int], StopAtFirst()]


class Stored(Strict):
    """The numbers of weights or activations, as compressed-tensors describes them."""

    num_bits: int | None = None
    type: str | None = None
    strategy: str | None = None
    group_size: int | None = None
    block_structure: Numbers | str | None = None


class QuantizedLayers(Strict):
    """Layers that are quantized alike."""

    weights: Stored
    input_activations: Stored | None = None


class Quantization(Strict):
    """The keys of a quantization_config that are read; each method has others, which change no size."""

    model_config = ConfigDict(extra="allow")  # so that one of other keys only does not equal an empty one

    quant_method: str | None = None
    quant_algo: str | None = None
    bits: int | None = None
    w_bit: int | None = None
    weight_block_size: Numbers | None = None
    config_groups: dict[str, Any] | None = None
    modules_to_not_convert: Names | None = None
    ignore: Names | None = None
    expert_dtype: str | None = None


class QuantizationFile(Strict):
    """modelopt's hf_quant_config.json."""

    quantization: Quantization


def read_weight_dtype(quantized: Quantization | None) -> str | None:
    """Return the dtype of quantized weights; None for 16 bits. Raises CatalogError without the path."""
    if quantized in (None, Quantization()):
        return None
    method, algorithm = quantized.quant_method, str(quantized.quant_algo).upper()
    if method in ("fp8", "fbgemm_fp8"):
        return _float8("weight_block_size", quantized.weight_block_size)
    if method == "mxfp4":
        return "mxfp4"
    if method in WEIGHT_ONLY:
        return _integer(next((bits for bits in (quantized.bits, quantized.w_bit) if bits is not None), 4))
    if method == "compressed-tensors":
        return _compressed(quantized.config_groups)
    if method in ("modelopt", "modelopt_fp4", None) and algorithm in MODELOPT:
        return MODELOPT[algorithm]
    text = json.dumps(quantized.quant_algo or method)
    raise CatalogError(f"quantization_config: weights quantized as {text} are not supported yet; there are {KNOWN}")


def only_experts(quantized: Quantization | None) -> bool:
    """Tell whether the attention of all layers is left out of the quantization."""
    kept = quantized and (quantized.modules_to_not_convert or quantized.ignore)
    return any("self_attn" in name and "*" in name for name in kept or ())


def _float8(key: str, block: list[int] | str | None) -> str:
    if block is None:
        return "fp8"
    if block != BLOCK:
        raise CatalogError(f"quantization_config: {key} must be {BLOCK}, got {json.dumps(block)}")
    return "fp8_block"


def _integer(bits: int | None) -> str:
    if bits not in INTEGERS:
        raise CatalogError(f"quantization_config: weights must have 4 or 8 bits, got {json.dumps(bits)}")
    return INTEGERS[bits]


def _compressed(groups: Mapping[str, Any] | None) -> str:
    """Return the dtype of compressed-tensors, where each group of layers states its own."""
    if not groups:
        raise CatalogError("quantization_config: config_groups is missing; compressed-tensors needs it")
    path = ("quantization_config", "config_groups")
    dtypes = sorted({_group_dtype(checked(QuantizedLayers, group, (*path, name))) for name, group in groups.items()})
    if len(dtypes) > 1:
        raise CatalogError(f"quantization_config: mixed layer dtypes, {' and '.join(dtypes)}, are not supported yet")
    return dtypes[0]


def _group_dtype(group: QuantizedLayers) -> str:
    weights, inputs = group.weights, group.input_activations
    of_weights = weights.num_bits, weights.type
    of_inputs = None if inputs in (None, Stored()) else (inputs.num_bits, inputs.type)
    if of_weights == (8, "float"):
        return _float8("block_structure", weights.block_structure if weights.strategy == "block" else None)
    if weights.type == "int" and inputs is None:
        return _integer(weights.num_bits)
    if of_weights == of_inputs == (8, "int"):
        return "w8a8"
    if of_weights == of_inputs == (4, "float") and weights.group_size == NVFP4_GROUP:
        return "nvfp4"
    with_inputs = "" if inputs is None else f", activations of {inputs.num_bits} bits and type {inputs.type},"
    raise CatalogError(
        f"quantization_config: weights of {weights.num_bits} bits and type {weights.type}{with_inputs} are not "
        "supported yet"
    )
