"""StepCost: monotone, additive, never faster than the data sheet, and the same for scalars and arrays."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.cost.model import StepShape, shape_ps
from simserve.cost.roofline import Roofline
from simserve.cost.shard import ACTIVATION_BYTES, Shard
from simserve.cost.step import StepCost
from simserve.units import to_ps, to_s
from tests.cost.specs import H100, IDEAL, billions, cost_of, matrix_work, step_cost

COSTS = st.builds(
    cost_of,
    st.sampled_from(["llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "qwen3-32b"]),
    st.sampled_from(["h100-sxm", "a100-sxm", "rtx-4090", "mi300x"]),
    st.sampled_from(["ideal", "vllm"]),
    weight_dtype=st.sampled_from(["bf16", "fp8", "int4"]),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
    tensor=st.sampled_from([1, 2, 4]),
)
CHUNKS = st.lists(st.tuples(st.integers(0, 8000), st.integers(1, 2000)), max_size=4)
"""(keys cached, tokens computed) of each prompt chunk."""
CONTEXTS = st.lists(st.integers(1, 30_000), max_size=64)


def shape_of(chunks: Sequence[tuple[int, int]], contexts: Sequence[int]) -> StepShape:
    """A step, counted by brute force; every chunk completes its prompt."""
    return StepShape(
        prefill_tokens=sum(q for _, q in chunks),
        prefill_pairs=sum(sum(c + 1 + i for i in range(q)) for c, q in chunks),
        prefill_context_tokens=sum(c + q for c, q in chunks),
        decode_requests=len(contexts),
        kv_tokens=sum(contexts),
        sampled_rows=len(contexts) + len(chunks),
    )


@given(COSTS, st.integers(0, 9000), st.integers(1, 500))
def test_more_tokens_and_more_sampled_rows_never_take_less(cost: StepCost, n: int, more: int) -> None:
    assert cost.tokens_ps(n) <= cost.tokens_ps(n + more)
    assert cost.sampled_ps(n) <= cost.sampled_ps(n + more)
    assert cost.sampled_ps(0) == 0 < cost.sampled_ps(1)


@given(COSTS, st.integers(1, 8000), st.integers(0, 10**8), st.integers(0, 10**6), st.integers(0, 10**6))
def test_prefill_attention_grows_with_tokens_pairs_and_context(
    cost: StepCost, n: int, pairs: int, context: int, more: int
) -> None:
    least = cost.prefill_ps(n, pairs, context)
    assert least <= min(
        cost.prefill_ps(n + more, pairs, context),
        cost.prefill_ps(n, pairs + more, context),
        cost.prefill_ps(n, pairs, context + more),
    )
    assert cost.prefill_ps(0, 0, 0) == 0


@given(COSTS, CONTEXTS.filter(len), st.integers(1, 1000))
def test_a_longer_context_or_one_request_more_never_takes_less(cost: StepCost, contexts: list[int], more: int) -> None:
    least = shape_ps(cost, shape_of([], contexts))
    assert least <= shape_ps(cost, shape_of([], [*contexts[:-1], contexts[-1] + more]))
    assert least <= shape_ps(cost, shape_of([], [*contexts, more]))


@given(COSTS, CHUNKS, CONTEXTS)
def test_a_step_is_the_sum_of_its_parts(cost: StepCost, chunks: list[tuple[int, int]], contexts: list[int]) -> None:
    shape = shape_of(chunks, contexts)
    intercept, slope = cost.decode_line(len(contexts))
    parts = [
        cost.tokens_ps(shape.prefill_tokens + len(contexts)),
        cost.sampled_ps(shape.sampled_rows),
        cost.prefill_ps(shape.prefill_tokens, shape.prefill_pairs, shape.prefill_context_tokens),
        intercept + slope * sum(contexts) if contexts else 0,
    ]
    assert shape_ps(cost, shape) == sum(parts)
    assert all(type(part) is int for part in parts)  # Python's, never numpy's, which overflow


@given(COSTS, CHUNKS, CONTEXTS.filter(len))
def test_no_step_is_faster_than_the_data_sheet_allows(
    cost: StepCost, chunks: list[tuple[int, int]], contexts: list[int]
) -> None:
    shape, work = shape_of(chunks, contexts), cost.work
    flop = work.flop_per_token * (shape.prefill_tokens + shape.decode_requests)
    flop += work.flop_per_pair * (shape.prefill_pairs + shape.kv_tokens) + work.flop_per_sampled * shape.sampled_rows
    n_bytes = work.weight_bytes_per_step + work.kv_bytes_per_token * (shape.prefill_context_tokens + shape.kv_tokens)
    roof_s = max(flop / work.peak_flop_per_s, n_bytes / work.hbm_bytes_per_s)
    assert to_s(shape_ps(cost, shape)) >= roof_s * (1 - 1e-4)  # the slope is rounded to whole picoseconds


def padded_to_graph(n_tokens: int) -> int:
    """Return the tokens of the next graph that vLLM captures; those of the step where it is larger than all."""
    graphs = [0, 1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return next((each for each in graphs if each >= n_tokens), n_tokens)


@pytest.mark.parametrize("engine", ["ideal", "vllm"])
@pytest.mark.parametrize("tensor", [1, 4])
def test_tables_hold_what_the_formula_gives_for_each_count_alone(engine: str, tensor: int) -> None:
    cost = cost_of("llama-3.1-8b", engine=engine, tensor=tensor)
    counts = np.arange(305)
    in_order = [cost.tokens_s(n) for n in range(305)]
    assert cost.tokens_s(counts).tolist() == in_order
    assert cost.sampled_s(counts).tolist() == [cost.sampled_s(n) for n in range(305)]
    ends = [n if engine == "ideal" else padded_to_graph(n) for n in range(300)]
    assert [cost.tokens_ps(n) for n in range(300)] == [max(map(to_ps, in_order[: end + 1])) for end in ends]


def test_small_steps_are_padded_to_the_next_captured_graph() -> None:
    plain, cost = (step_cost(billions(1), H100, replace(IDEAL, pads_to_graphs=pads)) for pads in (False, True))
    for n in range(600):
        assert cost.tokens_ps(n) == plain.tokens_ps(padded_to_graph(n))
    assert cost.sampled_ps(9) == plain.sampled_ps(9)  # the LM head runs after the graph


def test_a_table_that_has_grown_still_holds_its_first_entries() -> None:
    cost = step_cost(billions(1), H100, IDEAL)
    first = [cost.tokens_ps(n) for n in (0, 1, 4095)]
    assert cost.tokens_ps(50_000) > first[-1]
    assert [cost.tokens_ps(n) for n in (0, 1, 4095)] == first


def test_launches_and_host_time_come_on_top_of_the_roofs() -> None:
    rate = 1e30  # a GPU on which nothing takes any time
    gpu = replace(H100, flop_per_s={"bf16": rate}, hbm_bytes_per_s=rate, link_bytes_per_s=rate, link_latency_s=0.0)
    engine = replace(IDEAL, launch_s=0.001, step_host_s=5.0, request_host_s=0.01)
    cost = step_cost(billions(3), gpu, engine)
    assert cost.tokens_s(10) == pytest.approx(5.0 + 3 * (4 + 3) * 0.001)  # four matrices, three fused kernels a layer
    assert cost.sampled_s(10) == pytest.approx(0.001 + 10 * 0.01)
    assert to_s(cost.prefill_ps(10, 55, 10)) == pytest.approx(3 * 0.001)
    assert to_s(cost.decode_line(10)[0]) == pytest.approx(3 * 0.001)


def test_host_time_that_hides_behind_kernels_is_a_bound_instead() -> None:
    engine = replace(IDEAL, step_host_s=0.005, request_host_s=0.001, exposed_step_s=0.0005)
    plain, bare = step_cost(billions(3), H100, engine), step_cost(billions(3), H100, IDEAL)
    hiding = step_cost(billions(3), H100, engine, hides_host=True)
    assert (plain.host_ps(7), hiding.host_ps(7)) == (0, to_ps(0.0005 + 0.005 + 7 * 0.001))
    assert hiding.tokens_s(10) == pytest.approx(bare.tokens_s(10) + 0.0005)
    assert hiding.sampled_s(10) == pytest.approx(bare.sampled_s(10))
    assert plain.sampled_s(10) == pytest.approx(bare.sampled_s(10) + 10 * 0.001)
    unknown = replace(engine, exposed_step_s=None)  # what was fitted to servers that plan ahead is what they wait for
    assert step_cost(billions(3), H100, unknown, hides_host=True).sampled_s(10) == plain.sampled_s(10)


def test_efficiencies_divide_each_roof() -> None:
    engine = replace(IDEAL, compute_efficiency=0.5, memory_efficiency=0.25)
    ideal, real = (Roofline(H100, each) for each in (IDEAL, engine))
    for m, factor in ((8192, 2), (1, 4)):  # right of the ridge, and left of it
        slower = real.matmul_s("bf16", m, 30_000, 10_000) / ideal.matmul_s("bf16", m, 30_000, 10_000)
        assert slower == pytest.approx(factor)


def test_one_matrix_turns_from_memory_bound_to_compute_bound_at_the_ridge() -> None:
    shard = Shard(billions(1))
    for n, bound_by_compute in ((200, False), (400, True)):  # activations move the ridge of 295 up a little
        kernel = matrix_work(shard, "qkv", n)
        assert kernel.flop == 2 * n * 10_000 * 30_000
        assert kernel.bytes == (10_000 * 30_000 + n * 40_000) * ACTIVATION_BYTES
        roofs = kernel.bytes / 3.35e12, kernel.flop / 989.4e12
        assert Roofline(H100, IDEAL).matmul_s("bf16", n, 30_000, 10_000) == roofs[bound_by_compute] == max(roofs)


def test_decode_attention_takes_the_higher_of_its_two_slopes() -> None:
    heads = {"n_heads": 100, "n_kv_heads": 100}
    model = replace(billions(1), **heads)  # type: ignore[arg-type]
    by_memory = step_cost(model, H100, IDEAL).decode_line(1)[1]
    assert by_memory == pytest.approx(2 * 100 * 100 * 2 / 3.35e12 * 1e12, abs=1)
    slow = replace(H100, flop_per_s={"bf16": 1e12})
    assert step_cost(model, slow, IDEAL).decode_line(1)[1] == 4 * 100 * 100  # FLOP a key, at one a picosecond


def test_weights_that_a_gpu_cannot_multiply_are_unpacked_to_16_bits() -> None:
    a100 = cost_of("llama-3.1-8b", "a100-sxm").gpu
    assert H100.peak_flop_per_s("fp8") == H100.peak_flop_per_s("fp8_block") == H100.flop_per_s["fp8"]
    assert a100.peak_flop_per_s("fp8") == 312e12
    for weight_only in ("int8", "int4", "mxfp4"):
        assert H100.peak_flop_per_s(weight_only) == 989.4e12


def test_quantized_activations_are_multiplied_at_the_rate_of_their_dtype() -> None:
    a100, b200 = (cost_of("llama-3.1-8b", gpu).gpu for gpu in ("a100-sxm", "b200-sxm"))
    assert a100.peak_flop_per_s("w8a8") == 624e12 == 2 * a100.peak_flop_per_s("int8")
    assert (H100.peak_flop_per_s("w8a8"), b200.peak_flop_per_s("nvfp4")) == (1979e12, 9e15)
    assert (a100.multiplies("w8a8"), H100.multiplies("nvfp4"), b200.multiplies("nvfp4")) == (True, False, True)
    n, size = 8192, 8192
    seconds = [Roofline(a100, IDEAL).matmul_s(dtype, n, size, size) for dtype in ("bf16", "int8", "w8a8")]
    assert seconds[0] == pytest.approx(seconds[1])  # compute-bound; weight-only saves bytes alone
    assert seconds[2] == pytest.approx(seconds[0] / 2)
    one = [Roofline(a100, IDEAL).matmul_s(dtype, 1, size, size) for dtype in ("bf16", "int8", "w8a8")]
    assert one[1] == one[2] == pytest.approx(one[0] / 2, rel=1e-3)  # memory-bound


def test_work_is_of_the_whole_replica_and_does_not_count_replicated_kv_heads() -> None:
    model = replace(billions(1), n_heads=8, n_kv_heads=2)
    alone, group = (step_cost(model, H100, IDEAL, tensor=n).work for n in (1, 8))
    assert group == replace(alone, peak_flop_per_s=8 * alone.peak_flop_per_s, hbm_bytes_per_s=8 * alone.hbm_bytes_per_s)
