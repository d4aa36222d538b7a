"""The numbers that everybody works out on the back of an envelope, and the sums over operations they leave out."""

from dataclasses import replace

import pytest

from simserve import catalog
from simserve.cost.model import StepShape, shape_ps
from simserve.cost.roofline import Roofline
from simserve.cost.shard import Shard
from simserve.units import to_s
from tests.cost.specs import H100, IDEAL, billions, cost_of, layer_weights, step_cost

DENSE_70B = step_cost(billions(70), H100, IDEAL)


def test_the_peaks_of_an_h100_are_decimal_teras_and_its_ridge_is_295_flop_a_byte() -> None:
    assert H100.flop_per_s["fp16"] == 989.4 * 10**12  # not 2**40
    assert H100.hbm_bytes_per_s == 3.35 * 10**12
    assert H100.peak_flop_per_s("fp16") / H100.hbm_bytes_per_s == pytest.approx(295, abs=0.5)


def test_a_rule_of_thumb_model_has_the_parameters_of_its_name() -> None:
    assert layer_weights(Shard(billions(70))) * 70 == 70_000_000_000
    assert DENSE_70B.work.weight_bytes_per_step == pytest.approx(140e9, rel=1e-6)


def test_prefill_of_4096_tokens_is_573_tflop_and_takes_at_least_0_58_s() -> None:
    work = DENSE_70B.work
    assert 4096 * work.flop_per_token == pytest.approx(573e12, rel=1e-3)
    assert 4096 * work.flop_per_token / work.weight_bytes_per_step == pytest.approx(4093, rel=1e-3)  # far right of 295
    shard, kernels = DENSE_70B.shard, Roofline(H100, IDEAL)
    shapes = [*shard.attention_matrices.values(), *shard.mlp_matrices.values()]
    matrices_s = 70 * sum(kernels.matmul_s("bf16", 4096, n_out, n_in) for n_in, n_out in shapes)
    assert matrices_s == pytest.approx(0.58, abs=0.001)
    assert to_s(DENSE_70B.tokens_ps(4096)) > matrices_s


def test_a_decode_step_reads_every_weight_once_in_41_8_ms() -> None:
    step_s = to_s(DENSE_70B.tokens_ps(1))
    assert step_s == pytest.approx(41.8e-3, rel=1e-3)
    assert 1 / step_s == pytest.approx(24, abs=0.1)


def test_a_batch_of_32_shares_the_weights_and_makes_nearly_766_tokens_a_second() -> None:
    tokens_per_s = 32 / to_s(DENSE_70B.tokens_ps(32))
    assert 0.98 * 766 < tokens_per_s < 766  # activations are 1% of the traffic


def test_int4_weights_take_a_quarter_of_the_time() -> None:
    int4 = step_cost(billions(70), H100, IDEAL, weight_dtype="int4")
    assert to_s(int4.tokens_ps(1)) == pytest.approx(10.4e-3, rel=1e-2)


def test_8_billion_parameters_at_2_tb_a_second_make_125_tokens_a_second() -> None:
    cost = step_cost(billions(8), replace(H100, hbm_bytes_per_s=2e12), IDEAL)
    assert to_s(cost.tokens_ps(1)) == pytest.approx(8e-3, rel=1e-3)
    assert 1 / to_s(cost.tokens_ps(1)) == pytest.approx(125, rel=1e-3)


def test_the_kv_cache_of_a_70b_llama_is_327680_bytes_a_token() -> None:
    for name in ("llama-2-70b", "llama-3.1-70b"):
        kv_bytes = Shard(catalog.load_model(name)).kv_bytes_per_token
        assert kv_bytes == 2 * 8 * 128 * 2 * 80 == 327_680
        assert kv_bytes * 4096 == pytest.approx(1.34e9, rel=2e-3)


def test_without_grouped_queries_a_batch_of_32_fills_54_gb() -> None:
    kv_bytes = Shard(catalog.load_model("llama-2-13b")).kv_bytes_per_token
    assert kv_bytes * 32 * 2048 == pytest.approx(54e9, rel=1e-2)


# Llama-2-70B, worked by hand: hidden 8,192; 64 heads and 8 KV heads of 128; MLP 28,672; 80 layers; vocabulary 32,000.
LAYER = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
HEAD = 8192 * 32000
PAIRS = 4096 * 4097 // 2


def test_prefill_of_llama_2_70b_is_583_tflop_summed_over_its_operations() -> None:
    work = cost_of("llama-2-70b").work
    by_hand = 80 * (2 * LAYER * 4096 + 4 * 64 * 128 * PAIRS) + 2 * HEAD
    assert by_hand == pytest.approx(583e12, rel=1e-3)
    assert 4096 * work.flop_per_token + PAIRS * work.flop_per_pair + work.flop_per_sampled == by_hand


def test_a_decode_step_of_llama_2_70b_reads_its_weights_in_41_0_ms() -> None:
    cost = cost_of("llama-2-70b")
    by_hand = 2 * (80 * LAYER + HEAD)  # the embedding is looked up, not read
    assert cost.work.weight_bytes_per_step == by_hand
    assert by_hand / 3.35e12 == pytest.approx(41.0e-3, rel=1e-3)
    step = StepShape(decode_requests=1, kv_tokens=0, sampled_rows=1)
    assert to_s(shape_ps(cost, step)) == pytest.approx(41.0e-3, rel=2e-3)


def test_a_decode_step_at_4096_keys_adds_the_reading_of_the_cache() -> None:
    cost = cost_of("llama-2-70b")
    shapes = [StepShape(decode_requests=1, kv_tokens=keys, sampled_rows=1) for keys in (0, 4096)]
    without, with_cache = (to_s(shape_ps(cost, shape)) for shape in shapes)
    assert with_cache - without == pytest.approx(327_680 * 4096 / 3.35e12, rel=1e-4)
