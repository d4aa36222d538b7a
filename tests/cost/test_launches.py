"""Kernels launched one by one: counted by hand, and the least time of a step with prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from simserve import catalog
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.scenario.proposals import speculation_setup
from simserve.scenario.speculation import SpeculationSection
from simserve.units import to_ps, to_s
from tests.cost.specs import H100, IDEAL

EAGER_S = 40e-6


def n_launches(shard: Shard, quantizes_before: Sequence[str] = ()) -> int:
    """The kernels of all layers, from the least time of a step with prompts."""
    engine = replace(IDEAL, eager_kernel_s=1.0, quantizes_before=quantizes_before)
    return round(to_s(StepCost(shard, H100, engine).mixed_ps(1, 1, 1, 0, 0, 1)))


def test_a_dense_layer_has_two_norms_four_products_and_what_is_between_them() -> None:
    llama = catalog.load_model("llama-3.1-8b")
    # Norms; product to queries, keys and values, rotation, write, attention, output; gate and up, activation, down.
    assert n_launches(Shard(llama)) == 32 * (2 + 5 + 3)
    assert n_launches(Shard(llama, tensor=2)) == 32 * (2 + 5 + 3 + 2)  # and two all-reduces
    assert n_launches(Shard(llama, weight_dtype="fp8")) == 32 * (2 + 5 + 3 + 4)  # each product after a quantization
    assert n_launches(Shard(llama, weight_dtype="fp8"), ["fp8"]) == n_launches(Shard(llama))  # by the kernel before
    assert n_launches(Shard(llama, weight_dtype="int4")) == n_launches(Shard(llama))  # products in 16 bits


def test_a_layer_with_a_state_launches_the_kernels_of_its_family() -> None:
    experts = 4 + 2 + 1  # gate, choice, sort, sum; two products and the activation
    qwen = Shard(catalog.load_model("qwen3-next-80b-a3b"))
    shared = len(qwen.shared_matrices) + 1 + 1
    state = 2 + 11 + len(qwen.linear_matrices)
    assert n_launches(qwen) == 36 * state + 12 * (2 + 3 + len(qwen.attention_matrices)) + 48 * (experts + shared)
    granite = Shard(catalog.load_model("granite-4.0-h-small"))
    mamba = 2 + 7 + len(granite.linear_matrices)
    others = 4 * (2 + 3 + len(granite.attention_matrices)) + 40 * (experts + len(granite.shared_matrices) + 2)
    assert n_launches(granite) == 36 * mamba + others


def test_norms_over_the_heads_of_all_gpus_add_up_squares() -> None:
    minimax = catalog.load_model("minimax-m2.5")
    plain = replace(minimax, norms_all_heads=False)
    assert minimax.norms_all_heads
    for tensor, launches in ((1, 2), (8, 3)):  # squares, the sum over GPUs, scaling
        assert n_launches(Shard(minimax, tensor=tensor)) - n_launches(Shard(plain, tensor=tensor)) == 62 * launches
    costs = [StepCost(Shard(each, tensor=8), H100, IDEAL) for each in (minimax, plain)]
    links = [cost.kernels.all_reduce_s(8, 100 * 2 * 4) for cost in costs]
    moved_s = 3 * 2 * 100 * (6 + 1) * 128 / H100.hbm_bytes_per_s
    more_s = to_s(costs[0].tokens_ps(100) - costs[1].tokens_ps(100)) / 62
    assert more_s >= links[0] + moved_s - 1e-9
    assert more_s == pytest.approx(links[0] + costs[0].kernels.elementwise_s(3 * 2 * 100 * 7 * 128, 2), rel=1e-3)


def test_layers_of_deepseek_launch_as_many_kernels_as_their_parts_have() -> None:
    deepseek = catalog.load_model("deepseek-v3")
    latent = 4 * 2 + 3 + 4 + 2 + 2  # four products after quantizations, attention, latent parts, norms, all-reduces
    experts = 4 + 2 * 2 + 1  # gate, choice, sort, sum; two products and the activation
    shared = 2 * 2 + 1 + 1
    dense = 2 * 2 + 1
    shard = Shard(deepseek, weight_dtype="fp8_block", tensor=8)
    assert n_launches(shard) == 58 * (latent + experts + shared) + 3 * (latent + dense)
    # Experts that groups share have a time of their own; the gate remains.
    apart = replace(shard, tensor=1, data=8, expert=8)
    assert n_launches(apart) == 58 * (latent - 2 + 1 + shared) + 3 * (latent - 2 + dense)


def eager_cost(shard: Shard, **how: Any) -> StepCost:
    """Steps without CUDA graphs."""
    return StepCost(shard, H100, replace(IDEAL, eager_kernel_s=EAGER_S, enforce_eager=True, **how))


def test_without_graphs_no_step_takes_less_than_its_launches() -> None:
    llama = Shard(catalog.load_model("llama-3.1-8b"))
    eager, graphs = eager_cost(llama), StepCost(llama, H100, IDEAL)
    least_ps = to_ps(320 * EAGER_S)
    assert eager.host_ps(0) == eager.host_ps(256) == eager.eager_ps == least_ps
    for shape in ((0, 0, 0, 4, 4000, 4), (16, 136, 16, 0, 0, 1)):  # the step itself is as long as in a graph
        assert eager.mixed_ps(*shape) == graphs.mixed_ps(*shape) < least_ps
    padded = eager_cost(llama, pads_to_graphs=True)
    assert padded.tokens_ps(9) == eager.tokens_ps(9) < padded.tokens_ps(16)
    host = replace(IDEAL, eager_kernel_s=EAGER_S, enforce_eager=True, exposed_step_s=0.0, request_host_s=1e-3)
    hiding = StepCost(llama, H100, host, hides_host=True)  # the host's work for a step hides its launches, or they it
    assert (hiding.host_ps(12), hiding.host_ps(13)) == (least_ps, to_ps(0.013))


def test_experts_that_groups_share_are_launched_without_graphs() -> None:
    deepseek = Shard(catalog.load_model("deepseek-v3"), weight_dtype="fp8_block", data=8, expert=8)
    experts = 3 + 2 * 2 + 1
    assert eager_cost(deepseek).eager_ps == to_ps((n_launches(deepseek) + 58 * experts) * EAGER_S)


def test_passes_of_a_draft_are_launched_too() -> None:
    target = eager_cost(Shard(catalog.load_model("llama-3.1-8b")))
    for section, n_launches in (
        (SpeculationSection(kind="eagle", tokens=3, acceptance=0.5), 3 * 10),  # a layer
        (SpeculationSection(kind="ngram", tokens=3, acceptance=0.5), 0),
        (SpeculationSection(kind="draft_model", model="llama-3.2-1b", tokens=2, acceptance=0.5), 2 * 16 * 10),
    ):
        how = speculation_setup(section, "bf16", None)
        assert how is not None
        assert how.running_cost(target).host_ps(5) == to_ps((320 + n_launches) * EAGER_S)


def test_a_step_with_prompts_takes_at_least_the_time_of_its_launches() -> None:
    engine = replace(IDEAL, eager_kernel_s=EAGER_S)
    llama = catalog.load_model("llama-3.1-8b")
    eager, graphs = StepCost(Shard(llama), H100, engine), StepCost(Shard(llama), H100, IDEAL)
    least_ps = to_ps(320 * EAGER_S)
    short, long = (16, 136, 16), (8192, 8192 * 8193 // 2, 8192)
    assert graphs.mixed_ps(*short, 0, 0, 1) < least_ps
    assert eager.mixed_ps(*short, 0, 0, 1) == eager.mixed_ps(*short, 4, 4000, 5) == least_ps
    assert eager.mixed_ps(*long, 0, 0, 1) == graphs.mixed_ps(*long, 0, 0, 1) > least_ps
    assert eager.mixed_ps(0, 0, 0, 4, 4000, 4) == graphs.mixed_ps(0, 0, 0, 4, 4000, 4)  # a graph holds decoding
