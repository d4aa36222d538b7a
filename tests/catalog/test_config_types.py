"""Each key of a config.json has a type and a range; anything else is refused by its key before arithmetic."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from simserve import catalog
from simserve.catalog.families import family_of
from simserve.errors import CatalogError
from simserve.plugins.validation import problems_of
from tests.catalog.test_hugging_face import load
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario
from tests.fuzz.configs import KEYS, config_of
from tests.fuzz.mutants import json_value

COMPARE = "; compare it with the published file"
BOTH = "; compare both"
EACH = "; a list must have one for each layer, of heads or sizes of MLPs alone"
CAUSAL = "; it must be the config.json of a causal model"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("granitemoehybrid", {"layer_types": ...}, f"layer_types is missing{CAUSAL}"),
    ("nemotron_h", {"hybrid_override_pattern": None}, f"hybrid_override_pattern is missing{CAUSAL}"),
    (
        "qwen2",
        {"use_sliding_window": True, "max_window_layers": "x"},
        f"max_window_layers: must be a whole number, got 'x'{COMPARE}",
    ),
    ("llama4_text", {"no_rope_layers": 1e-300}, f"no_rope_layers: must be a list, got 1e-300{COMPARE}"),
    ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers must name the 32 layers of num_hidden_layers, got 2"),
    ("llama", {"hidden_size": 2147483647}, f"hidden_size: must be at most 1048576, got 2147483647{COMPARE}"),
    (
        "gemma3_text",
        {"sliding_window_pattern": 2.5},
        f"sliding_window_pattern: must be a whole number or text, got 2.5{COMPARE}",
    ),
    (
        "exaone4",
        {"sliding_window_pattern": "LLGL"},
        f"sliding_window_pattern: must be a whole number or must match ^L+G$, got 'LLGL'{COMPARE}",
    ),
    ("llama", {"tie_word_embeddings": "false"}, f"tie_word_embeddings: must be true or false, got 'false'{COMPARE}"),
    ("llama", {"vocab_size": 10**30}, f"vocab_size: must be at most 1073741824, got {10**30}{COMPARE}"),
    ("llama", {"num_attention_heads": float("nan")}, f"num_attention_heads: must be a whole number, got NaN{COMPARE}"),
    ("nemotron_h", {"attention_head_dim": "x"}, f"attention_head_dim: must be a whole number, got 'x'{COMPARE}"),
    ("nemotron_h", {"num_hidden_layers": "x"}, f"num_hidden_layers: must be a whole number, got 'x'{COMPARE}"),
    ("nemotron_h", {"n_groups": 7}, "n_groups must divide mamba_num_heads 64, got 7"),
    ("qwen3_next", {"linear_num_key_heads": 7}, "linear_num_key_heads must divide linear_num_value_heads 32, got 7"),
    (
        "qwen3_next",
        {"mamba_ssm_dtype": "int8"},
        f"mamba_ssm_dtype: must be one of float32, bfloat16, float16 or auto, got 'int8'{COMPARE}",
    ),
    ("qwen3_5_moe", {"moe_intermediate_size": "x"}, f"moe_intermediate_size: must be a whole number, got 'x'{COMPARE}"),
    ("qwen3_5_moe", {"mlp_only_layers": [1]}, "intermediate_size is missing; layers without experts have that size"),
    ("granitemoehybrid", {"mamba_expand": "x"}, f"mamba_expand: must be a whole number, got 'x'{COMPARE}"),
    (
        "granitemoehybrid",
        {"mamba_n_heads": 7},
        f"mamba_n_heads must divide mamba_expand times hidden_size, 8192, got 7{BOTH}",
    ),
    (
        "granitemoehybrid",
        {"num_local_experts": 0, "shared_intermediate_size": ...},
        f"shared_intermediate_size is missing{CAUSAL}",
    ),
    (
        "qwen3_moe",
        {"decoder_sparse_step": 33},
        "decoder_sparse_step must leave experts to one of the 32 layers at least; set no experts",
    ),
    ("qwen3_moe", {"mlp_only_layers": [1000]}, "mlp_only_layers must name some of 32 layers, from 0 on, got 1000"),
    (
        "qwen3_moe",
        {"mlp_only_layers": [0] * 10_001},
        f"mlp_only_layers: must have at most 10000 items, got {str([0] * 99)[:60]}...{COMPARE}",
    ),
    (
        "deepseek_v3",
        {"qk_nope_head_dim": 0},
        "qk_nope_head_dim is 0; "
        "latent attention (kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim) needs all its widths",
    ),
    (
        "llama",
        {"attention_chunk_size": 8},
        "keys of model_type llama that may change sizes or attention are not understood, got attention_chunk_size: 8; "
        "delete them in a copy of the file if they change neither, else choose another model",
    ),
    (
        "llama",
        {"layer_types": [f"kind_{n:02}" for n in range(32)]},
        "layer_types: layers of type kind_00, kind_01, kind_02 are not supported yet; choose another model",
    ),
    (
        "llama",
        {"attn_layer_period": [8] * 1000},
        f"attn_layer_period: state-space and hybrid models are not supported yet, got {str([8] * 99)[:60]}; "
        "choose another model",
    ),
    ("llama", {"num_key_value_heads": [8] * 3}, f"num_key_value_heads: must be a whole number, got [8, 8, 8]{EACH}"),
    (
        "llama",
        {"hidden_size": [4096, 2048] * 2},
        f"hidden_size: must be a whole number, got [4096, 2048, 4096, 2048]{EACH}",
    ),
    (
        "llama",
        {"quantization_config": {"quant_method": "gptq", "bits": 4.5}},
        f"quantization_config.bits: must be a whole number, got 4.5{COMPARE}",
    ),
    (
        "llama",
        {"quantization_config": {"quant_method": "fp8", "ignore": 3}},
        f"quantization_config.ignore: must be a list, got 3{COMPARE}",
    ),
]


@pytest.mark.parametrize(("family", "changes", "text"), REFUSED)
def test_a_refusal_names_file_key_rule_value_and_remedy(
    tmp_path: Path, family: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(CatalogError) as caught:
        load(tmp_path, {**config_of(family), **changes})
    assert str(caught.value) == f"{tmp_path / 'model' / 'config.json'}: {text}"


def explain(folder: Path, config: dict[str, Any], **changes: Any) -> Outcome:
    """Explain a scenario with this config.json."""
    (folder / "config.json").write_text(json.dumps(config))
    return invoke("explain", write_scenario(folder, **changes), "--set", f"model={folder / 'config.json'}")


def test_a_refused_file_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    hybrid = {key: value for key, value in config_of("granitemoehybrid").items() if key != "layer_types"}
    outcome = explain(tmp_path, hybrid)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert f"{tmp_path / 'config.json'}: layer_types is missing" in outcome.err


def test_a_wide_model_of_fewer_layers_than_stages_is_told_that_nothing_holds_it(tmp_path: Path) -> None:
    # Weights of one layer: 3 x 2^19 x 2^20 of the MLP, 3.3 TB in 16 bits; no 8 GPUs have that, so stages are tried.
    wide = {"num_hidden_layers": 3, "hidden_size": 2**19, "intermediate_size": 2**20}
    outcome = explain(tmp_path, {**config_of("llama"), **wide})
    assert outcome.exit_code == 2
    assert "GB are missing on each; no GPU of the catalog holds it: try a smaller weight_dtype" in outcome.err


@pytest.mark.parametrize("family", KEYS)
def test_a_value_of_any_type_is_read_or_refused_by_its_key(tmp_path: Path, family: str) -> None:
    config, random, file = config_of(family), Random(family), tmp_path / "config.json"
    language = config.get("text_config", config)
    for key in sorted(family_of(family, Path()).types.keys() - {"model_type"}):
        value = json_value(random)
        changed = {**language, key: value}
        file.write_text(json.dumps({**config, "text_config": changed} if "text_config" in config else changed))
        try:
            catalog.load_model(str(file))
        except CatalogError as error:
            assert str(error).startswith(f"{file}: ") and key in str(error), (key, value, str(error))


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("llama", "layer_types"),
        ("llama", "mlp_only_layers"),
        ("llama4_text", "moe_layers"),
        ("llama4_text", "no_rope_layers"),
    ],
)
def test_a_list_of_wrong_items_is_one_error_however_long(family: str, key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        family_of(family, Path()).file_type.model_validate({key: [2.5, 2.5, 2.5]})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("whole", [2, 2.0])
def test_a_whole_number_may_have_a_point(tmp_path: Path, whole: float) -> None:
    assert load(tmp_path, num_hidden_layers=whole, num_key_value_heads=whole) == load(
        tmp_path, num_hidden_layers=2, num_key_value_heads=2
    )


def test_parts_that_are_off_may_have_sizes_of_0(tmp_path: Path) -> None:
    off = {"kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    model = load(tmp_path, {**config_of("deepseek_v2"), **off})  # as DeepSeek-OCR has it
    assert (model.mla, model.head_dim) == (None, 128)
    assert load(tmp_path, num_local_experts=0, num_experts_per_tok=0, moe_intermediate_size=0).experts is None
    assert load(tmp_path, num_kv_shared_layers=0).n_layers == 32


def test_a_mistake_in_the_file_beside_a_config_is_told_by_that_file(tmp_path: Path) -> None:
    load(tmp_path)
    extra = tmp_path / "model" / "hf_quant_config.json"
    for content, text in (
        ('{"quantization": {"quant_algo": 3}}', f"quantization.quant_algo: must be text, got 3{COMPARE}"),
        ('{"quantization": {"quant_algo": "W4A8"}}', 'quantization_config: weights quantized as "W4A8" are not supp'),
        ("{}", f"quantization: is missing{COMPARE}"),
    ):
        extra.write_text(content)
        with pytest.raises(CatalogError) as caught:
            load(tmp_path)
        assert str(caught.value).startswith(f"{extra}: {text}")


def test_lightning_attention_is_refused_in_the_family_that_has_none_of_it_too(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="attn_type_list: layers of lightning attention are not supported yet"):
        load(tmp_path, {**config_of("minimax_m2"), "attn_type_list": [1] * 31 + [0]})


def test_all_of_many_wrong_values_are_told_in_a_time_that_grows_with_their_number() -> None:
    data, start_s = ["x"] * 30_000, time.perf_counter()
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[list[int]]).validate_python(data)
    assert [str(problem) for problem in problems_of(caught.value, data)][-1] == "29999: must be a list, got 'x'"
    assert time.perf_counter() - start_s < 20  # pairs of them take minutes


def test_norms_of_a_whole_layer_are_over_all_heads(tmp_path: Path) -> None:
    for kind, over_all in (("per_layer", True), ("per_head", False)):
        assert load(tmp_path, {**config_of("minimax_m2"), "qk_norm_type": kind}).norms_all_heads == over_all
