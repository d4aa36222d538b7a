"""The ledger: every byte of a GPU is weights, activations, reserve, KV blocks, or left alone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.memory import MemoryLedger, ledger, weights_bytes
from simserve.cost.ops import Shard
from tests.cost.specs import H100, IDEAL, billions

LLAMA = catalog.load_model("llama-3.1-8b")
VLLM = catalog.load_engine("vllm")
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}
"""As the model cards on Hugging Face count them (safetensors)."""


def memory(model: ModelSpec = LLAMA, **changes: Any) -> MemoryLedger:
    """The ledger of a model on an H100 under vLLM, with some things changed."""
    knobs: dict[str, Any] = {
        "gpu": H100,
        "engine": VLLM,
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "tensor": 1,
        "gpu_memory_utilization": 0.9,
        "block_size": 16,
        "max_num_batched_tokens": 8192,
    }
    knobs |= changes
    return ledger(model, knobs.pop("gpu"), knobs.pop("engine"), **knobs)


def test_every_model_of_the_catalog_has_its_published_number_of_parameters() -> None:
    assert sorted(PARAMETERS) == catalog.names("models")
    for name, n_parameters in PARAMETERS.items():
        counted = weights_bytes(Shard(catalog.load_model(name))) / 2
        assert counted == pytest.approx(n_parameters, rel=5e-5), name  # biases and the norms of queries are left out


def test_llamas_have_exactly_their_published_number_of_parameters() -> None:
    for name in (name for name in PARAMETERS if name.startswith(("llama", "mistral"))):
        assert weights_bytes(Shard(catalog.load_model(name))) == 2 * PARAMETERS[name]


def test_llama_3_1_8b_on_an_h100_by_hand() -> None:
    ours = memory()
    assert ours.total_bytes == 81_559 * 2**20
    assert ours.usable_bytes == pytest.approx(76.97e9, rel=1e-4)
    assert ours.weights_bytes == 2 * PARAMETERS["llama-3.1-8b"]
    assert ours.activations_bytes == 8192 * (2 * 4096 + 3 * 14336) * 2 + 256 * 128_256 * 24
    assert ours.block_bytes == 16 * 131_072
    left = ours.usable_bytes - ours.weights_bytes - ours.activations_bytes - VLLM.reserve_bytes
    assert ours.n_blocks == left // (16 * 131_072)
    assert ours.kv_tokens == 16 * ours.n_blocks
    assert not ours.verified
    assert ours.missing_bytes == 0


@settings(deadline=None)
@given(
    st.sampled_from(sorted(PARAMETERS)),
    st.sampled_from(catalog.names("gpus")),
    st.sampled_from([1, 2, 4]),
    st.floats(0.1, 1.0),
    st.sampled_from([1, 16, 32]),
    st.integers(1, 16_384),
)
def test_the_parts_fit_in_what_may_be_used_or_the_missing_bytes_are_told(
    name: str, gpu: str, tensor: int, share: float, block_size: int, n_tokens: int
) -> None:
    ours = memory(
        catalog.load_model(name),
        gpu=catalog.load_gpu(gpu),
        tensor=tensor,
        gpu_memory_utilization=share,
        block_size=block_size,
        max_num_batched_tokens=n_tokens,
    )
    taken = ours.weights_bytes + ours.activations_bytes + ours.reserve_bytes + ours.kv_bytes
    if ours.n_blocks:
        assert ours.missing_bytes == 0
        assert taken <= ours.usable_bytes < taken + ours.block_bytes
    else:
        assert ours.missing_bytes == pytest.approx(taken + ours.block_bytes - ours.usable_bytes)
        assert ours.missing_bytes > 0


def test_a_gpu_with_the_missing_bytes_more_holds_one_block() -> None:
    short = memory(catalog.load_model("llama-3.1-70b"))
    assert 60e9 < short.missing_bytes < 80e9
    enough = replace(H100, hbm_bytes=H100.hbm_bytes + short.missing_bytes / 0.9 + 1)
    assert memory(catalog.load_model("llama-3.1-70b"), gpu=enough).n_blocks == 1


def test_blocks_that_a_server_reported_are_taken_as_they_are() -> None:
    ours = memory(num_gpu_blocks=1000)
    assert (ours.n_blocks, ours.kv_tokens, ours.verified) == (1000, 16_000, True)


def test_an_fp8_cache_holds_twice_the_tokens_and_fp8_weights_take_half() -> None:
    assert memory(kv_dtype="fp8").n_blocks in (2 * memory().n_blocks, 2 * memory().n_blocks + 1)
    vocabulary = 2 * 128_256 * 4096 + 65 * 4096  # and the norms of 32 layers and the last one: these stay in 16 bits
    layers = PARAMETERS["llama-3.1-8b"] - vocabulary
    assert memory(weight_dtype="fp8").weights_bytes == layers + 2 * vocabulary


def test_tied_embeddings_are_held_once() -> None:
    tied = replace(LLAMA, tie_word_embeddings=True)
    assert memory().weights_bytes - memory(tied).weights_bytes == 2 * 128_256 * 4096


def test_an_ideal_engine_reserves_nothing() -> None:
    assert memory(billions(1), engine=IDEAL).reserve_bytes == 0
