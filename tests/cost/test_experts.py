"""Steps of models with experts, latent attention and windows: hand-worked cases, and what was timed as a whole."""

from dataclasses import replace

import numpy as np
import pytest

from simserve import catalog
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import calibration_path, read_calibration
from simserve.cost.forms.mla import MlaDecodeModule, MlaPrefillModule
from simserve.cost.forms.sparse import SparseDecodeModule, SparsePrefillModule, SparseSizes, attended
from simserve.cost.forms.state import StateDecode, StatePrefill
from simserve.cost.kernels import matrices_s
from simserve.cost.model import StepShape, shape_ps
from simserve.cost.roofline import Roofline
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.cost.timed_forms import borrowed
from simserve.scenario.proposals import SpeculationSetup
from simserve.units import to_s
from tests.cost.specs import H100, IDEAL, step_cost

VLLM = catalog.load_engine("vllm")
MIXTRAL, QWEN, OSS, DEEPSEEK = map(catalog.load_model, ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"))
BYTES_PER_S, FLOP_PER_S = H100.hbm_bytes_per_s, H100.flop_per_s["bf16"]
NEXT = catalog.load_model("qwen3-next-80b-a3b")
TIMED = read_calibration(calibration_path("h100-sxm/vllm"))


def timed(model: ModelSpec, dtype: str, tensor: int = 1, expert: int = 1) -> StepCost:
    kernels = Calibrated(H100, TIMED, VLLM)
    return step_cost(model, H100, VLLM, kernels=kernels, weight_dtype=dtype, tensor=tensor, expert=expert)


def test_in_small_steps_shared_experts_only_read_their_weights() -> None:
    beside = timed(DEEPSEEK, "fp8_block", tensor=8)
    after = step_cost(
        DEEPSEEK,
        H100,
        replace(VLLM, shared_beside_tokens=None),
        kernels=beside.kernels,
        weight_dtype="fp8_block",
        tensor=8,
    )
    assert VLLM.shared_beside_tokens == 256
    read_s = 3 * 7168 * (2048 // 8) / (0.8 * BYTES_PER_S)
    alone_s = matrices_s(beside.kernels, "fp8_block", 256, beside.shard.shared_matrices)
    assert after.tokens_s(256) - beside.tokens_s(256) == pytest.approx(58 * (alone_s - read_s))
    assert after.tokens_s(257) == beside.tokens_s(257)


def test_one_token_reads_its_own_experts_and_many_tokens_compute() -> None:
    kernels, shard = Roofline(H100, IDEAL), Shard(MIXTRAL)
    an_expert = 3 * 4096 * 14336
    assert kernels.experts_s(shard, 1) == pytest.approx(2 * an_expert * 2 / BYTES_PER_S)
    assert kernels.experts_s(shard, 8192) == pytest.approx(8192 * 2 * 2 * an_expert / FLOP_PER_S)
    touched = 8 * (1 - 0.75**4)  # each of four tokens misses an expert with 6 / 8
    assert kernels.experts_s(shard, 4) == pytest.approx(touched * an_expert * 2 / BYTES_PER_S)


def test_a_step_has_gate_and_experts_where_a_dense_one_has_its_mlp() -> None:
    cost, kernels = step_cost(MIXTRAL, H100, IDEAL), Roofline(H100, IDEAL)
    shard, n = cost.shard, 100
    bare = step_cost(replace(MIXTRAL, experts=None, intermediate_size=1), H100, IDEAL)
    without_mlp = bare.tokens_s(n) - 32 * sum(
        kernels.matmul_s("bf16", n, n_out, n_in) for n_in, n_out in bare.shard.mlp_matrices.values()
    )
    experts_s = 32 * (kernels.matmul_s("bf16", n, 8, 4096) + kernels.experts_s(shard, n))
    assert cost.tokens_s(n) == pytest.approx(without_mlp + experts_s, rel=1e-3)


def test_work_of_a_token_is_that_of_the_experts_it_goes_through() -> None:
    for model, billions in ((MIXTRAL, 12.75), (QWEN, 3.04), (DEEPSEEK, 36.6)):  # as published, without embeddings
        work = step_cost(model, H100, IDEAL).work
        assert (work.flop_per_token + work.flop_per_sampled) / 2e9 == pytest.approx(billions, rel=0.01)
    least = step_cost(MIXTRAL, H100, IDEAL).work.weight_bytes_per_step
    assert least == pytest.approx(2 * 12.75e9, rel=0.01)  # active, and no embedding of the input


def test_latent_attention_decodes_over_the_cached_vectors() -> None:
    kernels, shard = Roofline(H100, IDEAL), Shard(DEEPSEEK)
    intercept_s, slope_s = kernels.decode_attention(shard, 1)
    assert slope_s == pytest.approx(max((512 + 64) * 2 / BYTES_PER_S, 2 * 128 * (576 + 512) / FLOP_PER_S))
    assert intercept_s >= 128 * 512 * 256 * 2 / BYTES_PER_S  # the expansion is read, and applied to queries instead
    prefill = kernels.prefill_attention(shard)
    a_pair = prefill.seconds(1, 10**9 + 1, 1) - prefill.seconds(1, 10**9, 1)
    assert a_pair == pytest.approx(2 * 128 * (192 + 128) / FLOP_PER_S, rel=1e-3)
    cached = prefill.seconds(100, 10**9, 8192) - prefill.seconds(100, 10**9, 100)
    assert cached == pytest.approx(8092 * 2 * 128 * 512 * 256 / FLOP_PER_S, rel=0.05)  # expanded once more


@pytest.mark.parametrize(("dtype", "tensor"), [("bf16", 1), ("bf16", 8), ("fp8_block", 4), ("fp8_block", 8)])
def test_parts_of_latent_attention_come_to_what_was_timed_as_a_whole(dtype: str, tensor: int) -> None:
    kernels, shard = full_speed(), Shard(DEEPSEEK, dtype, tensor=tensor)
    decode, prefill = (TIMED.form(f"mla_{phase}_module", f"{dtype}/bf16") for phase in ("decode", "prefill"))
    assert isinstance(decode, MlaDecodeModule) and isinstance(prefill, MlaPrefillModule)
    for n in (1, 32, 128):
        whole_s, slope_s = decode.module_line(H100, dtype, shard.n_heads, "bf16", n)
        intercept_s, slope = kernels.decode_attention(shard, n)
        assert slope == pytest.approx(slope_s)
        assert kernels.projections_s(shard, n) + intercept_s == pytest.approx(whole_s, rel=0.1, abs=1.1e-5)
    for n in (4096, 8192):
        whole_s = prefill.module_s(H100, dtype, shard.n_heads, n, n * (n + 1) / 2, n)
        assert parts_of_prefill_s(shard, n) == pytest.approx(whole_s, rel=0.1)


@pytest.mark.parametrize(
    ("tensor", "n", "timed_us"), [(1, 128, 279), (1, 512, 568), (1, 8192, 8385), (8, 512, 188), (8, 16384, 3960)]
)
def test_latent_prefill_takes_what_vllm_took(tensor: int, n: int, timed_us: float) -> None:
    """One prompt of n tokens through a layer of DeepSeek-V3 in bf16 (aiconfigurator-core, vLLM 0.24.0, H100 SXM);
    they were timed launch by launch, which takes 40 us more than the CUDA graphs of a server."""
    shard = Shard(DEEPSEEK, tensor=tensor)
    server_s = (timed_us - 40) * 1e-6
    assert parts_of_prefill_s(shard, n) == pytest.approx(server_s, rel=0.03 if n > 4096 else 0.25)


def full_speed() -> Calibrated:
    return Calibrated(H100, TIMED, replace(VLLM, busy_compute_frac=1.0))


def parts_of_prefill_s(shard: Shard, n: int) -> float:
    kernels = full_speed()
    attention_s = kernels.prefill_attention(shard).seconds(n, n * (n + 1) / 2, n)
    return float(kernels.projections_s(shard, n) + attention_s)


@pytest.mark.parametrize(
    ("model", "dtype", "tensor", "expert"),
    [
        (MIXTRAL, "bf16", 2, 1),
        (QWEN, "fp8_block", 1, 1),
        (QWEN, "fp8_block", 4, 4),
        (OSS, "mxfp4", 2, 1),
        (DEEPSEEK, "fp8_block", 8, 1),
        (DEEPSEEK, "fp8_block", 8, 8),
    ],
)
def test_no_step_of_them_is_faster_than_the_data_sheet_and_none_shrinks(
    model: ModelSpec, dtype: str, tensor: int, expert: int
) -> None:
    real, bare = timed(model, dtype, tensor, expert), step_cost(model, H100, IDEAL, weight_dtype=dtype, tensor=tensor)
    before = 0
    for n in (1, 2, 7, 64, 300, 2048, 9000):
        assert real.tokens_ps(n) > bare.tokens_ps(n) * 0.999
        now = real.mixed_ps(n, n * (n + 1) // 2, n, n, 1000 * n, n)
        assert now > max(before, bare.mixed_ps(n, n * (n + 1) // 2, n, n, 1000 * n, n))
        before = now
    work = bare.work
    assert to_s(real.mixed_ps(0, 0, 0, 1, 1, 1)) > work.weight_bytes_per_step / work.hbm_bytes_per_s


def decoding(cost: StepCost, contexts: list[int]) -> StepShape:
    """Return a step of requests that attend so many tokens."""
    groups = [group for group in cost.shard.model.groups if group.window]
    windows = tuple((0, 0, sum(group.keys(n) for n in contexts)) for group in groups)
    return StepShape(0, 0, 0, len(contexts), sum(contexts), len(contexts), windows)


def prompt_ps(cost: StepCost, first: int, end: int) -> int:
    """Return the attention of the tokens [first, end) of a prompt in all layers."""
    reads = [group.reads(first, end) for group in cost.shard.model.groups if group.window]
    pairs = end * (end + 1) // 2 - first * (first + 1) // 2
    return cost.prefill_ps(end - first, pairs, end) + cost.prefill_windows_ps(end - first, reads)


def test_layers_with_a_window_attend_to_no_more_than_it() -> None:
    every, none = replace(OSS, groups=(LayerGroup("windowed", 36, 128),)), replace(OSS, groups=())
    costs = [step_cost(model, H100, IDEAL, weight_dtype="mxfp4") for model in (none, OSS, every)]
    slopes = [cost.decode_line(10)[1] for cost in costs]
    assert slopes[1] == pytest.approx(slopes[0] / 2, abs=1)
    assert slopes[2] == 0
    shapes = [decoding(cost, [128] * 10) for cost in costs]  # ten full windows cost the same with and without
    assert shape_ps(costs[1], shapes[1]) == pytest.approx(shape_ps(costs[0], shapes[0]), rel=1e-4)
    n = 8192
    long = [prompt_ps(cost, 0, n) for cost in costs]
    assert long[0] - long[1] == pytest.approx(long[1] - long[2], rel=1e-6)
    by_hand = (n * 2 * 64 * 64 * 2 + n * 2 * 8 * 64 * 2) / BYTES_PER_S  # queries and outputs, keys and values
    assert to_s(long[2]) == pytest.approx(36 * by_hand)
    last = (1024 * 2 * 64 * 64 * 2 + (1024 + 127) * 2 * 8 * 64 * 2) / BYTES_PER_S  # the keys of a window before it too
    assert to_s(prompt_ps(costs[2], n - 1024, n)) == pytest.approx(36 * last)
    assert OSS.within(128).windowed is False
    assert OSS.within(129) is OSS


def test_what_was_not_timed_on_a_card_is_borrowed_and_said() -> None:
    a100 = read_calibration(calibration_path("a100-sxm/vllm"))
    assert borrowed(a100, MIXTRAL) == []
    assert borrowed(a100, DEEPSEEK) == ["latent attention"]
    assert borrowed(TIMED, DEEPSEEK) == []
    sparse, states = catalog.load_model("glm-5"), NEXT
    assert borrowed(a100, sparse) == ["sparse attention"]
    assert borrowed(a100, states) == ["layers with a state"]
    assert borrowed(TIMED, sparse) == borrowed(TIMED, states) == []
    assert borrowed(a100, catalog.load_model("nemotron-h-56b")) == []
    card = catalog.load_gpu("a100-sxm")
    here = Calibrated(card, a100, VLLM).decode_attention(Shard(DEEPSEEK), 8)[1]
    there = Calibrated(H100, TIMED, VLLM).decode_attention(Shard(DEEPSEEK), 8)[1]
    assert here > there


def test_ranks_that_share_experts_pay_for_them_together() -> None:
    """What one rank does alone and what all do together come to the step of a replica that does not share."""
    one, shared = (step_cost(MIXTRAL, H100, IDEAL, data=data, expert=data) for data in (1, 4))
    kernels, n = Roofline(H100, IDEAL), 64
    assert one.group_ps(n, n) == 0
    apart_s = one.tokens_s(n) - 32 * kernels.experts_s(one.shard, n)
    assert shared.tokens_s(n) == pytest.approx(apart_s)
    # All four get the tokens of all and give back sums of as many, three quarters of them over the links each way.
    exchange_s = 2 * (H100.link_latency_s + 0.75 * 4 * n * 4096 * 2 / H100.link_bytes_per_s)
    assert shared.group_s(4 * n) == pytest.approx(32 * (kernels.experts_s(shared.shard, 4 * n) + exchange_s))


def test_experts_are_divided_over_all_ranks_in_one_way_or_the_other() -> None:
    split, spread = (Shard(MIXTRAL, tensor=2, data=4, expert=n).expert_layer for n in (1, 8))
    assert (split.tensor, split.expert) == (8, 1)
    assert (spread.tensor, spread.expert) == (1, 8)


def test_timed_collectives_stand_between_ranks() -> None:
    kernels, n_bytes = Calibrated(H100, TIMED, VLLM), 64 * 1024 * 1024
    both_s = kernels.all_gather_s(8, n_bytes) + kernels.reduce_scatter_s(8, n_bytes)
    assert 2 * 7 / 8 * n_bytes / H100.link_bytes_per_s < both_s < 3 * n_bytes / H100.link_bytes_per_s
    assert kernels.all_gather_s(1, n_bytes) == kernels.reduce_scatter_s(1, n_bytes) == 0


def test_ranks_wait_for_each_other_in_a_server() -> None:
    alone, server = (Calibrated(H100, TIMED, replace(VLLM, wait_frac=share)) for share in (0.0, 0.25))
    for collective in (Calibrated.all_reduce_s, Calibrated.all_gather_s, Calibrated.reduce_scatter_s):
        assert collective(server, 4, 1e6) == pytest.approx(1.25 * collective(alone, 4, 1e6))
    assert server.all_reduce_s(1, 1e6) == 0


def test_a_busy_gpu_keeps_another_share_of_its_speed_in_8_bits_than_in_16() -> None:
    engine = replace(VLLM, busy_compute_frac=0.8, busy_fp8_frac=0.95)
    peaks = [Calibrated(H100, TIMED, each).gpu.flop_per_s for each in (engine, replace(engine, busy_fp8_frac=None))]
    for own, share in zip(peaks, (0.95, 0.8), strict=True):
        assert own["bf16"] == 0.8 * H100.flop_per_s["bf16"]
        assert own["fp8"] == pytest.approx(share * H100.flop_per_s["fp8"])


def test_steps_of_more_tokens_may_be_faster_as_kernels_are() -> None:
    """vLLM's fp8 kernels leave most of a pair of tiles empty at 129 rows, and none at 256: timed on an H200, a layer of
    10,240 by 8,192 takes 66.6 and 52.1 µs. A table of step costs that never fell charged both the higher time."""
    gpu = catalog.load_gpu("h200-sxm")
    kernels = Calibrated(gpu, read_calibration(calibration_path("h200-sxm/vllm")), VLLM)
    cost = step_cost(catalog.load_model("llama-3.1-70b"), gpu, VLLM, kernels=kernels, weight_dtype="fp8")
    few, many = (cost.tokens_ps(n) for n in (129, 256))
    assert many < 0.97 * few
    assert few == pytest.approx(1e12 * float(cost.tokens_s(136)), rel=1e-9)  # CUDA graphs pad 129 to 136


def by_group(cost: StepCost, n: int) -> tuple[int, list[int]]:
    """Return the decode attention of n requests without keys, and per key in each group of layers."""
    intercepts, slopes = cost.attention_by_group_ps(np.array([n]))
    return int(intercepts[0]), [int(each[0]) for each in slopes]


def test_a_windowed_layer_decodes_over_the_keys_of_its_window_only() -> None:
    for cost in (step_cost(OSS, H100, IDEAL, weight_dtype="mxfp4"), timed(OSS, "mxfp4")):
        intercept, (windowed, full) = by_group(cost, 10)
        assert windowed == full > 0  # 18 layers of each
        of_all = replace(OSS, groups=())
        plain = step_cost(of_all, H100, cost.engine, kernels=cost.kernels, weight_dtype="mxfp4")
        assert plain.decode_line(10)[0] == intercept
        assert plain.decode_line(10)[1] == pytest.approx(2 * full, abs=1)
        assert (cost.decode_line(10), cost.window_slopes(10)) == ((intercept, full), (windowed,))
        contexts = [50, 128, 5000]
        keys = [sum(group.keys(n) for n in contexts) for group in OSS.groups]
        assert keys == [50 + 128 + 128, 5178]
        intercept, (windowed, full) = by_group(cost, 3)
        rest_ps = cost.tokens_ps(3) + cost.sampled_ps(3)
        assert shape_ps(cost, decoding(cost, contexts)) == rest_ps + intercept + 306 * windowed + 5178 * full


def test_a_chunked_layer_attends_half_a_chunk_of_a_long_prompt() -> None:
    chunked = replace(OSS, groups=(LayerGroup("chunked", 36, 1024),))
    cost, n = step_cost(chunked, H100, IDEAL, weight_dtype="mxfp4"), 8192
    eight_prompts = n * 1025 // 2  # of a chunk each
    alone = step_cost(replace(OSS, groups=()), H100, IDEAL, weight_dtype="mxfp4")
    assert prompt_ps(cost, 0, n) == alone.prefill_ps(n, eight_prompts, n)
    assert prompt_ps(cost, 0, 512) == alone.prefill_ps(512, 512 * 513 // 2, 512)


def test_a_layer_with_a_state_has_its_own_matrices_and_moves_its_state() -> None:
    cost, kernels = step_cost(NEXT, H100, IDEAL), Roofline(H100, IDEAL)
    shard, n = cost.shard, 64
    assert shard.linear_matrices == {"qkvz": (2048, 12_288), "gates": (2048, 64), "output": (4096, 2048)}
    assert shard.attention_matrices["qkv"] == (2048, (2 * 16 + 2 * 2) * 256)  # queries come with gates
    intercept, (of_states, of_keys) = by_group(cost, n)
    of_layer_s = kernels.decode_attention(shard, n)
    assert of_states == 0
    assert to_s(of_keys) == pytest.approx(12 * of_layer_s[1], rel=1e-4)
    states_s = 36 * n * 2 * 1_097_728 / BYTES_PER_S
    assert to_s(intercept) == pytest.approx(12 * of_layer_s[0] + states_s)
    assert cost.decode_line(n) == (intercept, of_keys)
    full = step_cost(replace(NEXT, groups=(), linear=None), H100, IDEAL)
    own_s = sum(kernels.matmul_s("bf16", n, n_out, n_in) for n_in, n_out in shard.linear_matrices.values())
    moved_s = 2 * 12_288 * n * 2 / BYTES_PER_S
    expected_s = full.tokens_s(n) + 36 * (own_s + moved_s - kernels.projections_s(shard, n))
    assert cost.tokens_s(n) == pytest.approx(expected_s)
    assert cost.prefill_ps(512, 512 * 513 // 2, 512) == pytest.approx(full.prefill_ps(512, 512 * 513 // 2, 512) / 4)
    assert 2 * 3.24e9 < cost.work.flop_per_token < 2 * 3.26e9  # 3.25e9 active without embeddings
    assert cost.shard.kv_bytes_per_token == 24_576


def test_selective_state_spaces_have_their_own_matrices_and_some_layers_no_mlp() -> None:
    nemotron = catalog.load_model("nemotron-h-56b")
    cost, kernels, n = step_cost(nemotron, H100, IDEAL, tensor=8), Roofline(H100, IDEAL), 64
    shard = cost.shard
    # A GPU has 2,048 gates and inputs, inputs and outputs of one group of 256, and a step for 32 heads.
    assert shard.linear_matrices == {"input": (8192, 2 * 2048 + 2 * 256 + 32), "output": (2048, 8192)}
    assert shard.state_bytes == (256 * 64 * 256 * 4 + 3 * (16_384 + 2 * 8 * 256) * 2) / 8
    assert to_s(by_group(cost, n)[0]) == pytest.approx(
        10 * 2 * n * 8 * 128 * 2 / BYTES_PER_S + 54 * 2 * n * shard.state_bytes / BYTES_PER_S, rel=1e-3
    )
    whole = step_cost(replace(nemotron, n_bare_layers=0), H100, IDEAL, tensor=8)
    mlp_s = sum(kernels.matmul_s("bf16", n, n_out, n_in) for n_in, n_out in shard.mlp_matrices.values())
    reduce_s = kernels.all_reduce_s(8, n * 8192 * 2)
    activation_s = (64 * 2 * 4096 // 64 - 54 * 2 * 4096 // 64) * 64 * n * 2 / BYTES_PER_S
    assert whole.tokens_s(n) - cost.tokens_s(n) == pytest.approx(10 * (mlp_s + reduce_s) + activation_s)
    assert 54 * mlp_s < cost.tokens_s(n)
    assert Shard(nemotron, tensor=16).linear_matrices["input"][1] == 2 * 1024 + 2 * 256 + 16  # groups are copied


def test_sparse_attention_scores_all_keys_and_attends_the_best() -> None:
    model = catalog.load_model("deepseek-v3.2")
    dense = replace(model, indexer=None)
    sparse, full = (step_cost(each, H100, IDEAL, weight_dtype="fp8_block", tensor=8) for each in (model, dense))
    kernels, n = full.kernels, 16
    line_s = kernels.decode_attention(full.shard, n)
    score_s = max(132 / BYTES_PER_S, 2 * 64 * 128 / H100.flop_per_s["fp8"])
    intercept, (slope,) = by_group(sparse, n)
    assert to_s(slope) == pytest.approx(61 * score_s, rel=1e-5)
    assert to_s(intercept) == pytest.approx(61 * (line_s[0] + n * 2048 * line_s[1]), rel=1e-6)
    assert slope < by_group(full, n)[1][0] / 8
    prompt = (8192, 8192 * 8193 // 2, 8192)
    n_in, n_out = full.shard.attention_matrices["kv_b"]
    expanded_s = kernels.matmul_s("fp8_block", 8192, n_out, n_in)
    attended_s = 8192 * 2048 * 2 * 16 * (576 + 512) / FLOP_PER_S  # 16 heads, over the vectors themselves
    scored_s = prompt[1] * 2 * 64 * 128 / H100.flop_per_s["fp8"] + 8192 * 132 / BYTES_PER_S
    assert to_s(sparse.prefill_ps(*prompt)) == pytest.approx(61 * (expanded_s + attended_s + scored_s), rel=1e-6)
    extra_s = sum(kernels.matmul_s("fp8_block", n, *sizes[::-1]) for sizes in ((1536, 64 * 128), (7168, 128 + 64)))
    written_s = n * 132 / BYTES_PER_S
    assert sparse.tokens_s(n) - full.tokens_s(n) == pytest.approx(61 * (extra_s + written_s))
    assert sparse.work.kv_bytes_per_token == 61 * 132 and sparse.shard.whole.kv_bytes_per_token == 61 * (1152 + 132)
    attended_flop = 61 * 2048 * 2 * 128 * (576 + 512)
    index_flop = 2 * 61 * (1536 * 64 * 128 + 7168 * 192)
    assert sparse.work.flop_per_token - full.work.flop_per_token == pytest.approx(attended_flop + index_flop)
    query_ps, none_ps = (SpeculationSetup("ngram", (0.7,), 0.0).running_cost(each).query_ps for each in (sparse, full))
    assert query_ps == pytest.approx(61 * 2048 * float(kernels.decode_attention(full.shard, 1)[1]) * 1e12)
    assert none_ps == 0


def test_layers_without_attention_or_state_cost_their_mlp_only() -> None:
    without = replace(OSS, groups=(LayerGroup("none", 18), LayerGroup("full", 18)))
    cost, all_full = (
        step_cost(model, H100, IDEAL, weight_dtype="mxfp4") for model in (without, replace(OSS, groups=()))
    )
    projections_s = cost.kernels.projections_s(cost.shard, 100)
    assert cost.tokens_s(100) == pytest.approx(all_full.tokens_s(100) - 18 * projections_s)
    assert by_group(cost, 4)[1][0] == 0


def test_int8_activations_are_quantized_as_fp8_ones_are_and_multiplied_at_the_int8_rate() -> None:
    kernels, slow = Calibrated(H100, TIMED, VLLM), replace(H100, flop_per_s={**H100.flop_per_s, "int8": 1e14})
    shapes = {"m": 4096, "n": 8192, "k": 8192}
    assert kernels.matmul_s("w8a8", **shapes) == kernels.matmul_s("fp8", **shapes)  # an H100 has one rate for both
    assert kernels.matmul_s("w8a8", **shapes) < 0.8 * kernels.matmul_s("int8", **shapes)
    assert Calibrated(slow, TIMED, VLLM).matmul_s("w8a8", **shapes) > 5 * kernels.matmul_s("w8a8", **shapes)


def test_marlin_runs_experts_in_mxfp4_by_the_kernels_timed_for_int4() -> None:
    calibration = read_calibration(calibration_path("h200-sxm/vllm"))
    h200, gpt_oss = catalog.load_gpu("h200-sxm"), catalog.load_model("gpt-oss-120b")
    own, marlin = (
        Calibrated(h200, calibration, catalog.load_engine("vllm", moe_backend=backend)) for backend in (None, "marlin")
    )
    mxfp4, int4 = (Shard(gpt_oss, weight_dtype=dtype) for dtype in ("mxfp4", "int4"))
    assert marlin.experts_s(int4, 8192) == own.experts_s(int4, 8192)
    assert marlin.experts_s(mxfp4, 8192) == pytest.approx(marlin.experts_s(int4, 8192), rel=0.01)
    assert marlin.experts_s(mxfp4, 8192) > 1.5 * own.experts_s(mxfp4, 8192)


def experts_on_b200(engine: EngineSpec, n_tokens: int) -> float:
    kernels = Calibrated(catalog.load_gpu("b200-sxm"), read_calibration(calibration_path("b200-sxm/vllm")), engine)
    return float(kernels.experts_s(Shard(catalog.load_model("gpt-oss-120b"), weight_dtype="mxfp4"), n_tokens))


def test_blackwell_multiplies_mxfp4_by_activations_in_mxfp8() -> None:
    """Kernels that compute in 16 bits are bound by padded rows, these by the weights that they read."""
    own, mxfp8 = (catalog.load_engine("vllm", moe_backend=each) for each in (None, "flashinfer_trtllm_afp8"))
    assert experts_on_b200(own, 64) > 1.4 * experts_on_b200(mxfp8, 64)
    assert experts_on_b200(own, 8192) > 2 * experts_on_b200(mxfp8, 8192)
    # The kernels that the package timed under SGLang and TensorRT-LLM, which the fit has not seen.
    assert experts_on_b200(mxfp8, 128) == pytest.approx(293e-6, rel=0.1)
    assert experts_on_b200(catalog.load_engine("trtllm"), 128) == pytest.approx(279e-6, rel=0.15)


def test_cards_without_timings_for_mxfp8_multiply_in_16_bits() -> None:
    calibration = read_calibration(calibration_path("h200-sxm/trtllm"))
    shard, h200 = Shard(catalog.load_model("gpt-oss-120b"), weight_dtype="mxfp4"), catalog.load_gpu("h200-sxm")
    default, none = (
        Calibrated(h200, calibration, replace(catalog.load_engine("trtllm"), moe_backend=backend))
        for backend in ("flashinfer_trtllm_afp8", None)
    )
    assert catalog.load_engine("trtllm").moe_backend == "flashinfer_trtllm_afp8"
    assert default.experts_s(shard, 64) == none.experts_s(shard, 64)


@pytest.mark.parametrize("name", ["h100-sxm/vllm", "b200-sxm/sglang", "a100-sxm/vllm"])
def test_sparse_attention_takes_what_its_modules_were_timed_with(name: str) -> None:
    calibration = read_calibration(calibration_path(name))
    gpu, engine = catalog.load_gpu(calibration.gpu), catalog.load_engine(calibration.engine)
    kernels, n = Calibrated(gpu, calibration, engine), np.array([1, 16, 256])
    own = calibration if ("sparse_decode_module", "fp8_block/fp8") in calibration.forms else TIMED
    shard = Shard(catalog.load_model("glm-5"), "fp8_block", "fp8", tensor=8)
    form, sizes = own.forms["sparse_decode_module", "fp8_block/fp8"], SparseSizes.of(shard)
    assert isinstance(form, SparseDecodeModule)
    intercept_s, slope_s = kernels.decode_attention(shard, n)
    best_s, key_s = form.best_line(kernels.gpu, sizes, "fp8", n)
    matrices_s = form.expansion_s(kernels.gpu, "fp8_block", sizes.n_weights, n)
    assert kernels.projections_s(shard, n) + intercept_s == pytest.approx(best_s + matrices_s)
    assert slope_s == pytest.approx(key_s)
    assert kernels.scored_s(shard, n) == pytest.approx(form.scored_s(kernels.gpu, sizes, n))
    long = (8192.0, 8192.0 * 8193 / 2, 8192.0)
    prefill = own.forms["sparse_prefill_module", "fp8_block/fp8"]
    assert isinstance(prefill, SparsePrefillModule)
    pairs = attended(*long[:2], 2048)
    module_s = prefill.attention_s(kernels.gpu, sizes, long[0], pairs, long[1], long[2])
    module_s += prefill.matrices_s(kernels.gpu, "fp8_block", sizes.n_weights, long[0])
    whole_s = kernels.prefill_attention(shard).seconds(*long) + kernels.projections_s(shard, long[0])
    assert whole_s == pytest.approx(module_s, rel=0.01)


def test_states_take_what_their_kernels_were_timed_with() -> None:
    kernels, n = Calibrated(H100, TIMED, VLLM), 64
    shard = Shard(NEXT, tensor=2)
    decode, prefill = TIMED.forms["gdn_decode", "bf16"], TIMED.forms["gdn_prefill", "bf16"]
    assert isinstance(decode, StateDecode)
    assert isinstance(prefill, StatePrefill)
    assert kernels.states_s(shard, n) == decode.seconds(kernels.gpu, shard.state_bytes, n)
    cost = StepCost(shard, H100, VLLM, kernels=kernels)
    prompt = (4096, 4096 * 4097 // 2, 4096)
    update_s = prefill.seconds(kernels.gpu, 16 * 128 * 128, 4096, 4096)
    attention_s = kernels.prefill_attention(shard).seconds(*map(float, prompt))
    assert to_s(cost.prefill_ps(*prompt)) == pytest.approx(36 * update_s + 12 * attention_s)
    mamba = Shard(catalog.load_model("nemotron-h-56b"))
    assert kernels.states_s(mamba, n) == kernels.elementwise_s(2 * mamba.state_bytes * n, 1)
    assert kernels.prompt_states(mamba) is None
