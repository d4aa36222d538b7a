"""What the weights are stored in, and models whose times nobody knows yet."""

import json
from pathlib import Path
from typing import Any

from simserve import catalog
from tests.scenario.conftest import Load, Said

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {"quant_method": "awq", "bits": 4}


def config(folder: Path, **changes: Any) -> str:
    """A config.json of a small Llama beside the scenario; its path."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
    others = {"intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 8192}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**sizes, **others, **changes}))
    return f"{folder.name}/config.json"


def with_model(text: str, model: str, more: str = "") -> str:
    """The scenario with another model."""
    return text.replace("model: llama-3.1-8b\n", f"model: {model}\n{more}")


def test_a_quantised_checkpoint_says_what_its_weights_are_stored_in(load: Load, small: str, tmp_path: Path) -> None:
    scenario = load(with_model(small, config(tmp_path / "small-fp8", quantization_config=BLOCKS)))
    assert scenario.weight_dtype == "fp8_block"
    assert scenario.origins["weight_dtype"] == "model small-fp8"
    again = load(scenario.to_yaml())
    assert again == scenario


def test_a_checkpoint_in_16_bits_leaves_the_default(load: Load, small: str, tmp_path: Path) -> None:
    scenario = load(with_model(small, config(tmp_path / "small")))
    assert (scenario.weight_dtype, scenario.origins["weight_dtype"]) == ("bf16", "default")
    quantised_on_load = load(with_model(small, config(tmp_path / "small"), "weight_dtype: fp8\n"))
    assert quantised_on_load.weight_dtype == "fp8"


def test_another_dtype_than_the_checkpoints_is_a_mistake(said: Said, small: str, tmp_path: Path) -> None:
    path = config(tmp_path / "small-awq", quantization_config=INT4)
    assert said(with_model(small, path, "weight_dtype: bf16\n")) == [
        "a.yaml:4: weight_dtype: the weights of small-awq are in int4, by its quantization_config, got 'bf16'; "
        "leave it out, or give the config.json of a checkpoint in bf16"
    ]


def test_fp8_stands_for_fp8_in_blocks_too(load: Load, small: str, tmp_path: Path) -> None:
    path = config(tmp_path / "small-fp8", quantization_config=BLOCKS)
    assert load(with_model(small, path, "weight_dtype: fp8\n")).weight_dtype == "fp8"


def test_all_pools_have_weights_of_one_dtype(said: Said, small: str, tmp_path: Path) -> None:
    fp8, int4 = (
        config(tmp_path / name, quantization_config=quantised) for name, quantised in (("fp8", BLOCKS), ("awq", INT4))
    )
    pools = f"cluster:\n  pools:\n    - {{name: a, model: {fp8}}}\n    - {{name: b, model: {int4}}}\n"
    assert said(small + pools) == [
        "a.yaml:1: weight_dtype: pools with weights of several dtypes are not there yet: fp8/config.json in fp8_block "
        "and awq/config.json in int4; use one dtype"
    ]


def test_models_of_the_catalog_with_experts_are_shown_but_not_run_yet(said: Said, small: str) -> None:
    with_experts = [name for name in catalog.names("models") if catalog.load_model(name).experts]
    assert len(with_experts) == 5
    wide = ("gpu=b200-sxm", "cluster.pools.0.parallel.tensor=4")
    assert said(with_model(small, "qwen3-30b-a3b"), *wide) == [
        "a.yaml:3: model: the times of models with experts are not there yet, got 'qwen3-30b-a3b'; choose a dense model"
    ]
    assert said(with_model(small, "deepseek-v3"), "gpu=b200-sxm", "cluster.pools.0.parallel.tensor=8") == [
        "a.yaml:3: model: the times of models with experts and latent attention (MLA) are not there yet, "
        "got 'deepseek-v3'; choose a dense model"
    ]


def test_a_pools_own_model_is_refused_where_it_stands(said: Said, small: str) -> None:
    pools = "cluster:\n  pools:\n    - {name: a}\n    - {name: b, model: mixtral-8x7b, parallel: {tensor: 4}}\n"
    assert [line.split(": the times")[0] for line in said(small + pools)] == ["a.yaml:12: cluster.pools.1.model"]


def test_a_name_of_the_catalog_is_a_shape_in_any_dtype(said: Said, small: str) -> None:
    messages = said(with_model(small, "gpt-oss-120b", "weight_dtype: bf16\n"), "cluster.pools.0.parallel.tensor=8")
    assert not any("weight_dtype" in message for message in messages)
