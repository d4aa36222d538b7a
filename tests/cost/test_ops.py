"""What each kernel computes and moves on one GPU of a tensor-parallel group."""

from dataclasses import replace

import numpy as np
import pytest

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.comm import all_reduce_s
from simserve.cost.matrices import ExpertLayer
from simserve.cost.roofline import Work, decode_work, elementwise_work, prefill_work
from simserve.cost.shard import Shard
from tests.cost.specs import H100, active_weights, billions, cost_of, layer_weights, matrix_work, total_weights

LLAMA = catalog.load_model("llama-3.1-70b")


def test_matrices_are_divided_so_that_all_gpus_together_hold_the_model_once() -> None:
    for tensor in (2, 4, 8):
        assert tensor * layer_weights(Shard(LLAMA, tensor=tensor)) == layer_weights(Shard(LLAMA))
        assert tensor * Shard(LLAMA, tensor=tensor).head_weights == Shard(LLAMA).head_weights
        assert tensor * Shard(LLAMA, tensor=tensor).kv_bytes_per_token == Shard(LLAMA).kv_bytes_per_token


def test_kv_heads_are_replicated_when_there_are_more_gpus() -> None:
    eight, sixteen = Shard(LLAMA, tensor=8), Shard(LLAMA, tensor=16)
    assert (eight.n_kv_heads, sixteen.n_kv_heads) == (1, 1)
    assert sixteen.kv_bytes_per_token == eight.kv_bytes_per_token == 327_680 / 8  # stops shrinking
    assert sixteen.n_heads == 4
    assert sixteen.attention_matrices["qkv"] == (8192, 4 * 128 + 2 * 128)


def test_what_does_not_divide_is_padded_never_dropped() -> None:
    model = replace(billions(1), intermediate_size=10, vocab_size=10)
    shard = Shard(model, tensor=4)
    assert shard.inner_size == 3
    assert shard.head_weights == 3 * 10_000


def test_a_gated_mlp_has_three_matrices_and_a_plain_one_two() -> None:
    plain = billions(1)
    gated = replace(plain, gated_mlp=True)
    assert layer_weights(Shard(plain)) == 1_000_000_000
    assert layer_weights(Shard(gated)) == 1_300_000_000


@pytest.mark.parametrize(("dtype", "bytes_per_value"), [("bf16", 2), ("fp8", 1), ("int4", 0.5)])
def test_weights_are_read_in_their_own_dtype_and_activations_in_16_bits(dtype: str, bytes_per_value: float) -> None:
    kernel = matrix_work(Shard(billions(1), weight_dtype=dtype), "down", 7)
    assert kernel.bytes == 30_000 * 10_000 * bytes_per_value + 7 * (30_000 + 10_000) * 2
    assert kernel.flop == 2 * 7 * 30_000 * 10_000


def test_the_cache_is_read_in_its_own_dtype() -> None:
    assert 2 * Shard(LLAMA, kv_dtype="fp8").kv_bytes_per_token == Shard(LLAMA).kv_bytes_per_token


def test_the_lm_head_stays_in_16_bits() -> None:
    int4, sixteen_bits = (cost_of("llama-3.1-70b", weight_dtype=dtype) for dtype in ("int4", "bf16"))
    assert int4.sampled_s(3) == sixteen_bits.sampled_s(3) > 0
    assert int4.work.flop_per_sampled == sixteen_bits.work.flop_per_sampled == 2 * 8192 * 128_256


def test_prefill_attention_is_4_flop_a_pair_head_and_width_and_reads_each_key_once() -> None:
    kernel = prefill_work(Shard(LLAMA), 100, 100 * 101 // 2, 100)
    assert kernel.flop == 4 * 64 * 128 * 5050
    assert kernel.bytes == 100 * (2 * 8 * 128 * 2) + 100 * (2 * 64 * 128 * 2)  # keys, values; queries, outputs


def test_decoding_one_request_costs_what_a_chunk_of_one_token_does() -> None:
    shard = Shard(LLAMA, tensor=2)
    assert decode_work(shard, 1, 500) == prefill_work(shard, 1, 500, 500)


def test_elementwise_work_moves_activations_and_writes_the_keys() -> None:
    norms, rotated, activated = 2 * 4 * 8192, 2 * (64 + 8) * 128, 3 * 28672
    kernel = elementwise_work(Shard(LLAMA), 10)
    assert kernel.bytes == 10 * ((norms + rotated + activated) * 2 + 2 * 8 * 128 * 2)


def test_no_tokens_move_no_weights() -> None:
    assert matrix_work(Shard(LLAMA), "qkv", 0) == Work(0, 0)


@pytest.mark.parametrize("model", [LLAMA, billions(2)], ids=lambda model: model.name)
def test_arrays_give_what_scalars_give(model: ModelSpec) -> None:
    shard, counts = Shard(model, tensor=2), np.array([0, 1, 17, 4096])
    for kernels, scalars in (
        (matrix_work(shard, "gate_up", counts), [matrix_work(shard, "gate_up", n) for n in counts.tolist()]),
        (elementwise_work(shard, counts), [elementwise_work(shard, n) for n in counts.tolist()]),
        (decode_work(shard, counts, 9 * counts), [decode_work(shard, n, 9 * n) for n in counts.tolist()]),
    ):
        assert kernels.flop.tolist() == [kernel.flop for kernel in scalars]
        assert kernels.bytes.tolist() == [kernel.bytes for kernel in scalars]


# -- experts and latent attention --------------------------------------------------------------------------------------

MIXTRAL, DEEPSEEK = (catalog.load_model(name) for name in ("mixtral-8x7b", "deepseek-v3"))


def test_experts_are_divided_by_the_group_or_among_its_gpus() -> None:
    for tensor, expert, each, here in ((1, 1, 1, 8), (4, 1, 4, 8), (4, 4, 1, 2), (4, 2, 2, 4), (1, 8, 1, 1)):
        shard = Shard(MIXTRAL, tensor=tensor, expert=expert)
        assert (shard.expert_layer.tensor, shard.expert_layer.expert) == (each, expert)
        assert (shard.expert_columns, shard.n_experts) == (14336 // each, here)


def test_a_cost_form_finds_what_it_asks_for() -> None:
    layer = Shard(DEEPSEEK, tensor=8, expert=8).expert_layer
    assert layer == ExpertLayer(hidden=7168, inter=2048, n_experts=256, top_k=8, tensor=1, expert=8)


def test_latent_vectors_are_projected_whole_and_heads_are_divided() -> None:
    assert Shard(DEEPSEEK, tensor=8).attention_matrices == {
        "qkv_a": (7168, 1536 + 576),
        "q_b": (1536, 16 * 192),
        "kv_b": (512, 16 * 256),
        "output": (16 * 128, 7168),
    }
    assert DEEPSEEK.mla is not None
    whole = replace(DEEPSEEK, mla=replace(DEEPSEEK.mla, q_lora_rank=None))
    direct = Shard(whole, tensor=8).attention_matrices
    assert (direct["q"], direct["kv_a"]) == ((7168, 16 * 192), (7168, 576))


def test_shared_experts_stand_side_by_side_and_are_divided_like_an_mlp() -> None:
    assert Shard(DEEPSEEK, tensor=8).shared_matrices == {"gate_up": (7168, 2 * 256), "down": (256, 7168)}
    assert Shard(MIXTRAL).shared_matrices == {}
    assert Shard(MIXTRAL, tensor=4).router == (4096, 8)


# As the papers and model cards count them: with embeddings and LM head; that of gpt-oss without embeddings.
@pytest.mark.parametrize(
    ("name", "total", "active", "n_vocabularies"),
    [
        ("mixtral-8x7b", 46.7e9, 12.9e9, 2),
        ("qwen3-30b-a3b", 30.5e9, 3.3e9, 2),
        ("qwen3-235b-a22b", 235e9, 22e9, 2),
        ("gpt-oss-120b", 116.8e9, 5.1e9, 1),
        ("deepseek-v3", 671e9, 37e9, 2),
    ],
)
def test_a_token_meets_the_published_number_of_active_parameters(
    name: str, total: float, active: float, n_vocabularies: int
) -> None:
    shard = Shard(catalog.load_model(name))
    assert total_weights(shard) == pytest.approx(total, rel=2e-3)
    assert active_weights(shard) + n_vocabularies * shard.head_weights == pytest.approx(active, rel=0.02)


def test_all_weights_of_a_dense_model_are_active() -> None:
    shard = Shard(LLAMA)
    assert active_weights(shard) == 80 * layer_weights(shard) == total_weights(shard) - 2 * shard.head_weights


def test_a_latent_cache_is_read_once_for_all_heads_and_widens_the_heads_of_decode() -> None:
    shard = Shard(DEEPSEEK, tensor=8)
    prefill, decode = prefill_work(shard, 0, 1000, 0), decode_work(shard, 0, 1000)
    assert prefill.flop == 2 * 16 * (192 + 128) * 1000
    assert decode.flop == 2 * 16 * (576 + 512) * 1000
    assert decode.bytes == 1000 * 576 * 2


def test_attention_is_not_quantized_where_only_experts_are() -> None:
    shard = Shard(catalog.load_model("gpt-oss-120b"), weight_dtype="mxfp4")
    n_in, n_out = shard.attention_matrices["qkv"]
    assert shard.dense_dtype == "bf16"
    assert matrix_work(shard, "qkv", 1).bytes == 2 * (n_in * n_out + n_in + n_out)


def test_the_activation_of_routed_experts_is_their_own_kernels() -> None:
    norms, rotated = 2 * 4 * 4096, 2 * (32 + 8) * 128
    assert elementwise_work(Shard(MIXTRAL), 1).flop == norms + rotated
    of_deepseek = elementwise_work(Shard(DEEPSEEK), 1).flop
    norms, rotated, activated = 2 * 4 * 7168, 2 * (128 + 1) * 64, 3 * (3 * 18432 + 58 * 2048) // 61
    assert of_deepseek == norms + rotated + activated


def test_an_all_reduce_is_a_latency_and_its_bytes_nearly_twice_over_the_link() -> None:
    assert all_reduce_s(H100, 1, 10**9) == 0
    assert all_reduce_s(H100, 8, 0) == H100.link_latency_s
    assert all_reduce_s(H100, 2, 450e9) == pytest.approx(H100.link_latency_s + 1)
    assert all_reduce_s(H100, 4, 450e9) == pytest.approx(H100.link_latency_s + 1.5)


def test_each_layer_sums_the_hidden_states_of_its_tokens() -> None:
    assert Shard(LLAMA, tensor=4).hidden_bytes(10) == 10 * 8192 * 2
