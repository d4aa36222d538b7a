"""What each kernel computes and moves on one GPU of a tensor-parallel group."""

from dataclasses import replace

import numpy as np
import pytest

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.comm import all_reduce_s
from simserve.cost.ops import Kernel, Shard
from tests.cost.specs import H100, billions

LLAMA = catalog.load_model("llama-3.1-70b")


def test_matrices_are_divided_so_that_all_gpus_together_hold_the_model_once() -> None:
    for tensor in (2, 4, 8):
        assert tensor * Shard(LLAMA, tensor=tensor).layer_weights == Shard(LLAMA).layer_weights
        assert tensor * Shard(LLAMA, tensor=tensor).head_weights == Shard(LLAMA).head_weights
        assert tensor * Shard(LLAMA, tensor=tensor).kv_bytes_per_token == Shard(LLAMA).kv_bytes_per_token


def test_kv_heads_are_replicated_when_there_are_more_gpus() -> None:
    eight, sixteen = Shard(LLAMA, tensor=8), Shard(LLAMA, tensor=16)
    assert (eight.n_kv_heads, sixteen.n_kv_heads) == (1, 1)
    assert sixteen.kv_bytes_per_token == eight.kv_bytes_per_token == 327_680 / 8  # stops shrinking
    assert sixteen.n_heads == 4
    assert sixteen.matrices["qkv"] == (8192, 4 * 128 + 2 * 128)


def test_what_does_not_divide_is_padded_never_dropped() -> None:
    model = replace(billions(1), intermediate_size=10, vocab_size=10)
    shard = Shard(model, tensor=4)
    assert shard.inner_size == 3
    assert shard.head_weights == 3 * 10_000


def test_a_gated_mlp_has_three_matrices_and_a_plain_one_two() -> None:
    plain = billions(1)
    gated = replace(plain, gated_mlp=True)
    assert Shard(plain).layer_weights == 1_000_000_000
    assert Shard(gated).layer_weights == 1_300_000_000


@pytest.mark.parametrize(("dtype", "bytes_per_value"), [("bf16", 2), ("fp8", 1), ("int4", 0.5)])
def test_weights_are_read_in_their_own_dtype_and_activations_in_16_bits(dtype: str, bytes_per_value: float) -> None:
    kernel = Shard(billions(1), weight_dtype=dtype).matmul("down", 7)
    assert kernel.bytes == 30_000 * 10_000 * bytes_per_value + 7 * (30_000 + 10_000) * 2
    assert kernel.flop == 2 * 7 * 30_000 * 10_000


def test_the_cache_is_read_in_its_own_dtype() -> None:
    assert 2 * Shard(LLAMA, kv_dtype="fp8").kv_bytes_per_token == Shard(LLAMA).kv_bytes_per_token


def test_the_lm_head_stays_in_16_bits() -> None:
    assert Shard(LLAMA, weight_dtype="int4").lm_head(3) == Shard(LLAMA).lm_head(3)
    assert Shard(LLAMA).lm_head(3).flop == 2 * 3 * 8192 * 128_256


def test_prefill_attention_is_4_flop_a_pair_head_and_width_and_reads_each_key_once() -> None:
    kernel = Shard(LLAMA).prefill_attention(100, 100 * 101 // 2, 100)
    assert kernel.flop == 4 * 64 * 128 * 5050
    assert kernel.bytes == 100 * (2 * 8 * 128 * 2) + 100 * (2 * 64 * 128 * 2)  # keys, values; queries, outputs


def test_decoding_one_request_costs_what_a_chunk_of_one_token_does() -> None:
    shard = Shard(LLAMA, tensor=2)
    assert shard.decode_attention(1, 500) == shard.prefill_attention(1, 500, 500)


def test_elementwise_work_moves_activations_and_writes_the_keys() -> None:
    norms, rotated, activated = 2 * 4 * 8192, 2 * (64 + 8) * 128, 3 * 28672
    kernel = Shard(LLAMA).elementwise(10)
    assert kernel.bytes == 10 * ((norms + rotated + activated) * 2 + 2 * 8 * 128 * 2)


def test_no_tokens_move_no_weights() -> None:
    assert Shard(LLAMA).matmul("qkv", 0) == Kernel(0, 0)


@pytest.mark.parametrize("model", [LLAMA, billions(2)], ids=lambda model: model.name)
def test_arrays_give_what_scalars_give(model: ModelSpec) -> None:
    shard, counts = Shard(model, tensor=2), np.array([0, 1, 17, 4096])
    for kernels, scalars in (
        (shard.matmul("gate_up", counts), [shard.matmul("gate_up", n) for n in counts.tolist()]),
        (shard.lm_head(counts), [shard.lm_head(n) for n in counts.tolist()]),
        (shard.elementwise(counts), [shard.elementwise(n) for n in counts.tolist()]),
        (shard.decode_attention(counts, 9 * counts), [shard.decode_attention(n, 9 * n) for n in counts.tolist()]),
    ):
        assert kernels.flop.tolist() == [kernel.flop for kernel in scalars]
        assert kernels.bytes.tolist() == [kernel.bytes for kernel in scalars]


def test_an_all_reduce_is_a_latency_and_its_bytes_nearly_twice_over_the_link() -> None:
    assert all_reduce_s(H100, 1, 10**9) == 0
    assert all_reduce_s(H100, 8, 0) == H100.link_latency_s
    assert all_reduce_s(H100, 2, 450e9) == pytest.approx(H100.link_latency_s + 1)
    assert all_reduce_s(H100, 4, 450e9) == pytest.approx(H100.link_latency_s + 1.5)


def test_each_layer_sums_the_hidden_states_of_its_tokens() -> None:
    assert Shard(LLAMA, tensor=4).all_reduce_bytes(10) == 10 * 8192 * 2
