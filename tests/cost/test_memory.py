"""The ledger: every byte of a GPU is weights, activations, reserve, KV blocks, or left alone."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.memory import DRIVER_BYTES, MemoryLedger
from simserve.cost.shard import Shard
from simserve.cost.weights import stages, weights_bytes
from tests.cost.specs import H100, IDEAL, active_weights, billions, layer_weights, ledger_of, total_weights

LLAMA = catalog.load_model("llama-3.1-8b")
VLLM = catalog.load_engine("vllm")
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "deepseek-v3": 671_026_419_200,
}
"""As the model cards on Hugging Face count them (safetensors); those with a layer for multi-token
prediction without it, Qwen3-0.6B without the second copy of its tied embeddings."""

ROUNDED: dict[str, tuple[float, float | None, int]] = {
    "deepseek-v3.2": (671.9, 37, 61 * (576 * 2 + 132)),
    "glm-5": (744, 40, 78 * (576 * 2 + 132)),
    "gemma-2-9b": (9.24, None, 344_064),
    "gemma-2-27b": (27.2, None, 376_832),
    "gemma-3-1b": (1.0, None, 26_624),
    "gemma-3-12b": (11.8, None, 393_216),
    "gemma-3-27b": (27.0, None, 507_904),
    "glm-4.5": (355, 32, 376_832),
    "glm-4.5-air": (106, 12, 188_416),
    "gpt-oss-20b": (20.9, 3.6, 49_152),
    "granite-4.0-h-small": (32.2, 9, 16_384),
    "granite-4.0-h-tiny": (6.94, None, 8_192),
    "kimi-k2": (1026, 32, 70_272),
    "kimi-k2.5": (1026, 32, 70_272),
    "llama-4-maverick": (400.7, 17, 196_608),
    "llama-4-scout": (107.8, 17, 196_608),
    "minimax-m2.5": (228.7, 10, 253_952),
    "mistral-large-2411": (122.6, None, 360_448),
    "mistral-small-3.2-24b": (23.6, None, 163_840),
    "nemotron-h-56b": (56.3, None, 40_960),
    "phi-4": (14.7, None, 204_800),
    "qwen3.5-27b": (26.9, None, 65_536),
    "qwen3.5-35b-a3b": (34.7, 3, 20_480),
    "qwen3.5-122b-a10b": (122.1, 10, 24_576),
    "qwen3.5-397b-a17b": (396.3, 17, 30_720),
    "codellama-34b": (33.74, None, 196_608),
    "gemma-3-4b": (3.88, None, 139_264),
    "llama-3.2-3b": (3.21, None, 114_688),
    "phi-4-mini": (3.84, None, 131_072),
    "qwen2.5-0.5b": (0.494, None, 12_288),
    "qwen2.5-1.5b": (1.54, None, 28_672),
    "qwen2.5-3b": (3.09, None, 36_864),
    "qwen2.5-14b": (14.77, None, 196_608),
    "qwen2.5-32b": (32.76, None, 262_144),
    "qwen3-1.7b": (1.72, None, 114_688),
    "qwen3-4b": (4.02, None, 147_456),
    "smollm2-1.7b": (1.71, None, 196_608),
    "tinyllama-1.1b": (1.1, None, 22_528),
    "mistral-7b-v0.2": (7.24, None, 131_072),
}
"""Billions of parameters of the language model and active ones, as model cards and reports round them; bytes of a token
in 16 bits: 2 * layers that attend * KV heads * width, or latent vectors."""


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
    return ledger_of(model, knobs.pop("gpu"), knobs.pop("engine"), **knobs)


def test_every_model_of_the_catalog_has_its_published_number_of_parameters() -> None:
    assert sorted({**PARAMETERS, **ROUNDED}) == catalog.names("models")
    for name, n_parameters in PARAMETERS.items():
        counted = total_weights(Shard(catalog.load_model(name)))
        assert counted == pytest.approx(n_parameters, rel=4e-4), name  # biases and norms are left out


@pytest.mark.parametrize("name", ROUNDED)
def test_a_models_sizes_are_as_published(name: str) -> None:
    shard = Shard(catalog.load_model(name))
    billions, active, kv_bytes = ROUNDED[name]
    assert total_weights(shard) / 1e9 == pytest.approx(billions, rel=0.01)
    assert shard.kv_bytes_per_token == kv_bytes
    if active is not None:  # with an embedding or without, as each vendor counts
        assert (active_weights(shard) + shard.head_weights) / 1e9 == pytest.approx(active, rel=0.11)


def test_llamas_have_exactly_their_published_number_of_parameters() -> None:
    for name in (name for name in PARAMETERS if name.startswith(("llama", "mistral"))):
        assert weights_bytes(Shard(catalog.load_model(name))) == 2 * PARAMETERS[name]


def test_llama_3_1_8b_on_an_h100_by_hand() -> None:
    ours = memory()
    assert ours.total_bytes == 81_559 * 2**20
    assert ours.usable_bytes == 0.9 * (81_559 * 2**20 - DRIVER_BYTES)
    assert ours.weights_bytes == 2 * PARAMETERS["llama-3.1-8b"]
    in_layers, sampling = 8192 * (2 * 4096 + 3 * 14336) * 2, 8192 * 4096 * 2 + 256 * 128_256 * 14.9
    assert ours.activations_bytes == in_layers > sampling
    assert ours.block_bytes == 16 * 131_072
    left = ours.usable_bytes - ours.weights_bytes - ours.activations_bytes - VLLM.reserve_bytes
    assert ours.n_blocks == left // (16 * 131_072)
    assert ours.kv_tokens == 16 * ours.n_blocks
    assert not ours.verified
    assert ours.missing_bytes == 0


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
    least = ours.layout.blocks.most(1)
    if ours.n_blocks >= least:
        assert ours.missing_bytes == 0
        assert taken <= ours.usable_bytes < taken + ours.block_bytes
    else:
        assert ours.missing_bytes == pytest.approx(taken - ours.kv_bytes + least * ours.block_bytes - ours.usable_bytes)
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


def test_buffers_of_exchanges_come_from_where_activations_do() -> None:
    for inside in (True, False):
        engine = replace(VLLM, profiles_activations=inside)
        without, with_them = (memory(engine=engine, buffer_bytes=n_bytes) for n_bytes in (0.0, 1e9))
        assert with_them.reserve_bytes - without.reserve_bytes == (1e9 if inside else 0.0)


def test_tied_embeddings_are_held_once() -> None:
    tied = replace(LLAMA, tie_word_embeddings=True)
    assert memory().weights_bytes - memory(tied).weights_bytes == 2 * 128_256 * 4096


def test_the_activation_peak_is_in_the_layers_or_where_rows_are_sampled() -> None:
    few, many = memory(max_num_seqs=1), memory(max_num_seqs=1024)
    assert few.activations_bytes == 8192 * (2 * 4096 + 3 * 14336) * 2
    assert many.activations_bytes == 8192 * 4096 * 2 + 1024 * 128_256 * 14.9
    assert memory(max_num_seqs=10**6).activations_bytes == memory(max_num_seqs=8192).activations_bytes


def test_scales_are_stored_with_quantized_weights() -> None:
    layers = layer_weights(Shard(LLAMA)) * 32
    in_16_bits = memory().weights_bytes - 2 * layers
    for dtype, n_bytes in {"fp8_block": 1 + 4 / 16384, "int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32, "int8": 1}.items():
        assert memory(weight_dtype=dtype).weights_bytes == layers * n_bytes + in_16_bits


# -- experts and latent attention --------------------------------------------------------------------------------------


def test_experts_are_divided_one_by_one_or_among_the_gpus() -> None:
    mixtral = catalog.load_model("mixtral-8x7b")
    each = 3 * 4096 * 14336
    whole = weights_bytes(Shard(mixtral))
    halves, quarters = (weights_bytes(Shard(mixtral, tensor=2, expert=n)) for n in (1, 2))
    assert halves == quarters  # four halves of 8 experts, or 4 whole ones
    norms_and_gates = 2 * (65 * 4096 + 32 * 8 * 4096)
    assert 2 * halves == whole + norms_and_gates  # which both have
    rank = weights_bytes(Shard(mixtral, tensor=1, expert=4))  # of four data-parallel ranks: two experts of each layer
    assert whole - rank == 2 * 32 * 6 * each


def test_what_experts_do_not_divide_is_held_by_the_fullest_gpu() -> None:
    assert Shard(catalog.load_model("mixtral-8x7b"), expert=3).n_experts == 3


def test_only_the_experts_of_gpt_oss_are_quantized_and_their_kernels_pad_them() -> None:
    model = catalog.load_model("gpt-oss-120b")
    whole, mxfp4 = weights_bytes(Shard(model)), weights_bytes(Shard(model, "mxfp4"))
    n_experts, hidden = 36 * 128, 2880
    assert whole - mxfp4 == pytest.approx(n_experts * 3 * hidden * (2 * 2880 - (0.5 + 1 / 32) * 3072))
    assert mxfp4 == pytest.approx(64.38 * 2**30, rel=0.003)  # "Model loading took": vllm-project/vllm#33155


def test_a_latent_cache_is_one_vector_a_layer_on_every_gpu() -> None:
    model = catalog.load_model("deepseek-v3")
    for tensor in (1, 8):
        assert Shard(model, "fp8_block", tensor=tensor).kv_bytes_per_token == 61 * (512 + 64) * 2
    assert Shard(model, kv_dtype="fp8").kv_bytes_per_token == 61 * 576


def test_the_weights_of_deepseek_v3_on_eight_gpus_by_hand() -> None:
    model = catalog.load_model("deepseek-v3")
    queries = 7168 * 1536 + 1536 * 16 * 192  # 128 heads over 8 GPUs; the low ranks are whole on each
    keys = 7168 * 576 + 512 * 16 * 256
    attention = 61 * (queries + keys + 16 * 128 * 7168)
    experts = 58 * 3 * 7168 * (256 * 2048 // 8 + 2048 // 8)  # 256 routed, one shared
    dense = 3 * 3 * 7168 * 18432 // 8
    gates, norms, vocabulary = 58 * 7168 * 256, 123 * 7168, 2 * 7168 * 129280 // 8
    absorbed = 61 * 512 * 16 * 256  # kv_b once more, for decode
    stored = (attention + experts + dense) * (1 + 4 / 16384) + 2 * (gates + norms + vocabulary + absorbed)
    assert weights_bytes(Shard(model, "fp8_block", tensor=8)) == pytest.approx(stored, rel=1e-12)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_deals_out_its_layers_and_the_last_stage_has_the_rest() -> None:
    assert [stage.n_layers for stage in stages(catalog.load_model("qwen3-235b-a22b"), 4)] == [23, 24, 24, 23]
    first, *_, last = stages(catalog.load_model("deepseek-v3"), 4)
    assert (first.n_dense_layers, first.n_moe_layers, first.is_first, first.is_last) == (3, 12, True, False)
    assert (last.n_dense_layers, last.n_moe_layers, last.is_first, last.is_last) == (0, 15, False, True)


def test_the_stages_together_hold_the_model_once() -> None:
    for name in ("llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b"):
        shard = Shard(catalog.load_model(name), tensor=2)
        parts = [weights_bytes(shard, stage) for stage in stages(shard.model, 4)]
        assert sum(parts) == pytest.approx(weights_bytes(shard), rel=1e-12)


def test_the_stage_with_the_least_room_decides_for_all() -> None:
    two = memory(catalog.load_model("llama-3.1-70b"), pipeline=2, tensor=2, max_num_seqs=1024)
    assert two.block_bytes == 16 * 40 * 2 * 4 * 128 * 2  # 40 layers, 4 KV heads here
    assert two.activations_bytes == 8192 * 8192 * 2 + 1024 * 128_256 * 14.9  # the last, which samples
    assert memory(pipeline=2).n_blocks > 1.9 * memory().n_blocks


def test_a_model_that_does_not_fit_in_stages_says_what_the_worst_one_lacks() -> None:
    worst = memory(catalog.load_model("qwen3-235b-a22b"), pipeline=2)
    alone = memory(catalog.load_model("qwen3-235b-a22b"))
    assert worst.n_blocks == 0 and 0 < worst.missing_bytes < alone.missing_bytes / 2


# -- engines -----------------------------------------------------------------------------------------------------------


def test_engines_share_out_memory_by_different_rules() -> None:
    total = H100.hbm_bytes - DRIVER_BYTES
    vllm, sglang, trtllm = (memory(engine=catalog.load_engine(name)) for name in ("vllm", "sglang", "trtllm"))
    assert vllm.usable_bytes == 0.9 * total
    free = total - sglang.reserve_bytes  # before weights are loaded
    assert (sglang.usable_bytes, sglang.activations_bytes) == (sglang.reserve_bytes + 0.9 * free, 0)
    held = trtllm.weights_bytes + trtllm.activations_bytes + trtllm.reserve_bytes
    assert trtllm.usable_bytes == held + 0.9 * (total - held)


def test_gpus_that_work_together_over_fast_links_hold_buffers() -> None:
    alone, together = memory(), memory(tensor=2)
    assert together.reserve_bytes - alone.reserve_bytes == VLLM.group_reserve_bytes
    over_pcie = memory(tensor=2, gpu=catalog.load_gpu("l40s"))
    assert over_pcie.reserve_bytes - alone.reserve_bytes < 0.1 * VLLM.group_reserve_bytes


def test_an_ideal_engine_reserves_nothing() -> None:
    assert memory(billions(1), engine=IDEAL).reserve_bytes == 0
