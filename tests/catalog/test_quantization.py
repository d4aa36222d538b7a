"""What a quantization_config says of the weights."""

from pathlib import Path
from typing import Any

import pytest

from simserve.errors import CatalogError
from tests.catalog.test_hugging_face import load

INT4_GROUP = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
FP8_CHANNEL = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
FP8_BLOCK = {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}


def compressed(**groups: Any) -> dict[str, Any]:
    """As compressed-tensors writes it."""
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("quantized", "dtype"),
    [
        (None, None),
        ({}, None),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "bits": 4, "zero_point": True}, "int4"),
        ({"quant_method": "awq", "w_bit": 4}, "int4"),
        (compressed(group_0=FP8_CHANNEL), "fp8"),
        (compressed(group_0=FP8_BLOCK), "fp8_block"),
        (compressed(group_0=INT4_GROUP, group_1=INT4_GROUP), "int4"),
        (compressed(group_0={"weights": {"num_bits": 8, "type": "int"}}), "int8"),
        (compressed(group_0={"weights": INT8, "input_activations": {**INT8, "dynamic": True}}), "w8a8"),
        (compressed(group_0={"weights": FP4, "input_activations": FP4}), "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ],
)
def test_methods_are_told_as_the_dtypes_of_a_scenario(tmp_path: Path, quantized: Any, dtype: str | None) -> None:
    assert load(tmp_path, quantization_config=quantized).weight_dtype == dtype


def test_attention_may_stay_in_16_bits(tmp_path: Path) -> None:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    kept = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    assert load(tmp_path, **experts, quantization_config=kept).only_experts_quantized
    assert not load(tmp_path, **experts, quantization_config={"quant_method": "mxfp4"}).only_experts_quantized
    ignored = {**compressed(group_0=INT4_GROUP), "ignore": ["lm_head", "re:.*self_attn.*"]}
    assert load(tmp_path, **experts, quantization_config=ignored).only_experts_quantized


@pytest.mark.parametrize(
    ("quantized", "text"),
    [
        ([1], r"quantization_config: must be a mapping, got \[1\]; compare"),
        (
            {"quant_method": "fp8", "weight_block_size": [1, 32]},
            r"weight_block_size must be \[128, 128\], got \[1, 32\]",
        ),
        ({"quant_method": "gptq", "bits": 3}, "weights must have 4 or 8 bits, got 3"),
        ({"quant_method": "bitsandbytes"}, 'weights quantized as "bitsandbytes" are not supported yet; there are fp8'),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, 'weights quantized as "W4A8" are not supported yet'),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing; compressed-tensors needs it"),
        (compressed(group_0={}), r"quantization_config.config_groups.group_0.weights: is missing"),
        (compressed(a=FP8_CHANNEL, b=INT4_GROUP), "mixed layer dtypes, fp8 and int4, are not supported yet"),
        (
            compressed(a={"weights": {"num_bits": 4, "type": "float"}}),
            "weights of 4 bits and type float are not supported yet",
        ),
        (
            compressed(a={**INT4_GROUP, "input_activations": INT8}),
            "weights of 4 bits and type int, activations of 8 bits and type int, are not supported yet",
        ),
    ],
)
def test_what_nobody_knows_is_refused(tmp_path: Path, quantized: Any, text: str) -> None:
    with pytest.raises(CatalogError, match=text) as caught:
        load(tmp_path, quantization_config=quantized)
    assert str(caught.value).startswith(str(tmp_path / "model" / "config.json"))


def test_a_file_beside_the_config_says_it_too(tmp_path: Path) -> None:
    load(tmp_path)
    extra = tmp_path / "model" / "hf_quant_config.json"
    extra.write_text('{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}')
    assert load(tmp_path).weight_dtype == "fp8"
    assert load(tmp_path, quantization_config={"quant_method": "awq", "bits": 4}).weight_dtype == "int4"
    extra.write_text('{"quantization": {"quant_algo": "W4A8_AWQ"}}')
    with pytest.raises(CatalogError, match='weights quantized as "W4A8_AWQ" are not supported yet'):
        load(tmp_path)
    extra.write_text("{")
    with pytest.raises(CatalogError, match=r"hf_quant_config\.json: must be modelopt's JSON object"):
        load(tmp_path)
