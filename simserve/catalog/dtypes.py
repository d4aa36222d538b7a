"""Dtypes: bytes of a value, and the rate at which a card multiplies weights, by dtype."""

from collections.abc import Mapping
from types import MappingProxyType

BYTES_PER_VALUE: Mapping[str, float] = MappingProxyType(
    {
        "bf16": 2.0,
        "fp16": 2.0,
        "fp8": 1.0,
        "fp8_block": 1.0,
        "w8a8": 1.0,
        "int8": 1.0,
        "int4": 0.5,
        "mxfp4": 0.5,
        "mxfp4_mxfp8": 0.5,
        "nvfp4": 0.5,
    }
)
"""Bytes per number by dtype, without the scales of quantized blocks (see STORED_BYTES). mxfp4_mxfp8 is mxfp4 as kernels
multiply it that quantize activations to mxfp8; no scenario names it."""

SCALE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "fp8_block": 4 / (128 * 128),  # a 32-bit scale for 128 x 128 weights (DeepSeek-V3, section 3.3)
        "int4": 2 / 128,  # a 16-bit scale for a group of 128 (GPTQ, AWQ, compressed-tensors)
        "mxfp4": 1 / 32,  # an 8-bit exponent for a block of 32 (OCP Microscaling 1.0, section 5.2)
        "nvfp4": 1 / 16,  # an 8-bit scale for a block of 16 (NVIDIA, "Introducing NVFP4", 2025)
    }
)
"""Bytes of scales per weight; one scale per channel or tensor (fp8, w8a8, int8) is negligible."""

STORED_BYTES: Mapping[str, float] = MappingProxyType(
    {dtype: n_bytes + SCALE_BYTES.get(dtype, 0.0) for dtype, n_bytes in BYTES_PER_VALUE.items()}
)
"""Bytes per weight in memory, including its share of the scales."""

COMPUTES_IN: Mapping[str, str] = MappingProxyType(
    {"fp8": "fp8", "fp8_block": "fp8", "mxfp4_mxfp8": "fp8", "w8a8": "int8", "nvfp4": "fp4", "fp16": "fp16"}
)
"""The rate of a card that multiplies weights of a dtype; all others are unpacked to 16 bits (weight-only)."""

NEEDS_RATE: Mapping[str, str] = MappingProxyType({"w8a8": "int8", "nvfp4": "mxfp4"})
"""Dtypes of weights and activations that only run on cards with their rate, each with a weight-only one of its size."""
