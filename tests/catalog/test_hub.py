"""Ids of the Hugging Face hub: shape and precision without a network, or a refusal."""

import json
from pathlib import Path

import pytest

from simserve import catalog
from simserve.catalog.hub import cached_config, is_id
from simserve.cost.shard import Shard
from simserve.cost.weights import weights_bytes
from simserve.errors import CatalogError
from tests.fuzz.configs import LLAMA

KNOWN = {
    "meta-llama/Llama-3.1-8B": ("llama-3.1-8b", None),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", None),
    "meta-llama/Meta-Llama-3.1-8B-Instruct": ("llama-3.1-8b", None),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic": ("llama-3.1-8b", "fp8"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("llama-3.1-8b", "int4"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("llama-3.1-8b", "w8a8"),
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": ("llama-3.1-8b", "int4"),
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4": ("llama-3.1-8b", "int4"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "nvidia/Llama-3.1-8B-Instruct-NVFP4": ("llama-3.1-8b", "nvfp4"),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": ("llama-3.1-8b", None),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama-3.1-70b", None),
    "nvidia/Llama-3.3-70B-Instruct-FP4": ("llama-3.1-70b", "nvfp4"),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": ("llama-3.1-70b", "fp8"),
    "meta-llama/Llama-2-7b-chat-hf": ("llama-2-7b", None),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral-7b", None),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b", None),
    "google/gemma-3-27b-it": ("gemma-3-27b", None),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b", None),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": ("qwen2.5-7b", "int4"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": ("qwen2.5-7b", "int8"),
    "Qwen/Qwen3-32B": ("qwen3-32b", None),
    "Qwen/Qwen3-32B-FP8": ("qwen3-32b", "fp8_block"),
    "Qwen/Qwen3-32B-AWQ": ("qwen3-32b", "int4"),
    "nvidia/Qwen3-32B-NVFP4": ("qwen3-32b", "nvfp4"),
    "Qwen/Qwen3-30B-A3B-FP8": ("qwen3-30b-a3b", "fp8_block"),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "mxfp4"),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek-v3", "fp8_block"),
}
"""Models and precisions by their config.json."""

LONGER = {
    "Qwen/Qwen2.5-7B": ("qwen2.5-7b", None, 131072),
    "Qwen/Qwen2.5-32B": ("qwen2.5-32b", None, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": ("qwen2.5-7b", None, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": ("qwen2.5-32b", None, 131072),
    "Qwen/Qwen3-8B-Base": ("qwen3-8b", None, 32768),
    "Qwen/Qwen3-4B-Instruct-2507": ("qwen3-4b", None, 262144),
    "Qwen/Qwen3-4B-Instruct-2507-FP8": ("qwen3-4b", "fp8_block", 262144),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", None, 262144),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8": ("qwen3-30b-a3b", "fp8_block", 262144),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": ("qwen3-235b-a22b", "fp8_block", 262144),
    "meta-llama/Meta-Llama-3-8B-Instruct": ("llama-3.1-8b", None, 8192),
    "meta-llama/Meta-Llama-3-70B-Instruct": ("llama-3.1-70b", None, 8192),
    "zai-org/GLM-4.6": ("glm-4.5", None, 202752),
    "moonshotai/Kimi-K2-Instruct-0905": ("kimi-k2", "fp8_block", 262144),
}
"""Repositories of a shape of the catalog with a context of their own."""

PARAMETERS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494e9,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.54e9,
    "Qwen/Qwen2.5-3B-Instruct": 3.09e9,
    "Qwen/Qwen2.5-14B-Instruct": 14.77e9,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32.76e9,
    "Qwen/Qwen3-1.7B": 1.72e9,
    "Qwen/Qwen3-4B": 4.02e9,
    "meta-llama/Llama-3.2-3B-Instruct": 3.21e9,
    "mistralai/Mistral-7B-Instruct-v0.2": 7.24e9,
    "microsoft/Phi-4-mini-instruct": 3.84e9,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.10e9,
    "codellama/CodeLlama-34b-Instruct-hf": 33.74e9,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.71e9,
    "google/gemma-3-4b-it": 3.88e9,
}
"""Parameters that the pages of models name, without encoders of images."""

OTHER_SHAPES = (
    *("Qwen/QwQ-32B", "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "mistralai/Mistral-7B-v0.1"),
    *("zai-org/GLM-4.7", "moonshotai/Kimi-K2-Thinking", "mistralai/Mistral-Nemo-Instruct-2407"),
    *("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "meta-llama/Llama-4-Scout-17B-16E"),
    *("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "nvidia/DeepSeek-R1-FP4", "TheBloke/Llama-2-7B-GPTQ"),
)
"""Repositories that differ from the models of similar names, in shape, context or what is quantized."""


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", KNOWN)
def test_a_checkpoint_has_the_shape_and_the_precision_of_its_files(name: str) -> None:
    model, dtype = KNOWN[name]
    spec, own = catalog.load_model(name), catalog.load_model(model)
    assert (spec.name, spec.n_layers, spec.max_position_embeddings) == (
        model,
        own.n_layers,
        own.max_position_embeddings,
    )
    assert spec.weight_dtype == dtype


@pytest.mark.parametrize("name", LONGER)
def test_one_with_another_context_has_the_shape_and_its_own_context(name: str) -> None:
    model, dtype, context = LONGER[name]
    spec, own = catalog.load_model(name), catalog.load_model(model)
    assert (spec.name, spec.n_layers, spec.weight_dtype) == (model, own.n_layers, dtype)
    assert spec.max_position_embeddings == context != own.max_position_embeddings


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_shape_has_the_parameters_that_its_page_names(name: str) -> None:
    n_parameters = weights_bytes(Shard(catalog.load_model(name), "bf16")) / 2
    assert n_parameters == pytest.approx(PARAMETERS[name], rel=0.003)


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_one_that_is_not_known_is_refused_rather_than_taken_for_another(name: str) -> None:
    with pytest.raises(CatalogError, match=r"the catalog knows no checkpoint of that name.*; give the path of its c"):
        catalog.load_model(name)


def test_every_model_of_the_catalog_is_found_by_the_id_of_its_source() -> None:
    for name in catalog.names("models"):
        spec = catalog.load_model(name)
        assert catalog.load_model(spec.source.split(", ")[1]) == spec


def test_the_local_cache_of_the_hub_is_read(hub: Path) -> None:
    folder = hub / "models--someone--Fine-Tune" / "snapshots"
    for revision, n_layers in (("0a", 7), ("0b", 9)):
        (folder / revision).mkdir(parents=True)
        (folder / revision / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": n_layers}))
    (hub / "models--someone--Fine-Tune" / "refs").mkdir()
    (hub / "models--someone--Fine-Tune" / "refs" / "main").write_text("0b")
    spec = catalog.load_model("someone/Fine-Tune")
    assert (spec.name, spec.n_layers) == ("fine-tune", 9)
    assert cached_config("someone/Other") is None


def test_paths_are_no_ids() -> None:
    assert is_id("Qwen/Qwen3-32B-FP8")
    assert not any(map(is_id, ["llama-3.1-8b", "a/b/c", "./model", "../model", "models/config.json", "/model"]))
