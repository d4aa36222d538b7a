"""The cost and memory of models whose layers differ in shape, against those of models of one shape and by hand."""

from dataclasses import replace

import pytest

from simserve import catalog
from simserve.catalog.layers import Heads, LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.cost.kv_groups import kv_layout
from simserve.cost.roofline import Roofline, key_flop
from simserve.cost.shard import Shard
from simserve.cost.speculative import one_layer
from simserve.cost.step import StepCost
from simserve.cost.weights import parameters, stages, weights_bytes
from tests.cost.specs import H100, IDEAL, step_cost

LLAMA = catalog.load_model("llama-3.1-8b")
FEW = Heads(16, 4, 128)
SMALL = replace(LLAMA, n_heads=16, n_kv_heads=4)
HEADS = replace(LLAMA, groups=(LayerGroup("full", 24), LayerGroup("full", 8, heads=FEW)))
SIZES = replace(LLAMA, mlps=((14336, 16), (7168, 16)))
WINDOWED = replace(HEADS, groups=(LayerGroup("windowed", 8, 1024), *HEADS.groups), n_layers=40)
MATRICES = replace(
    LLAMA, groups=(LayerGroup("full", 16), LayerGroup("matrix", 16)), mlps=((14336, 16), (0, 8)), n_bare_layers=8
)
MODELS = {"heads": HEADS, "sizes": SIZES, "windowed": WINDOWED, "matrices": MATRICES}


def tokens_s(model: ModelSpec, tensor: int = 1) -> float:
    """A step of 256 tokens, without attention."""
    return float(step_cost(model, H100, IDEAL, tensor=tensor).tokens_s(256))


@pytest.mark.parametrize("tensor", [1, 4])
def test_layers_of_two_shapes_take_the_time_of_each(tensor: int) -> None:
    small = replace(LLAMA, intermediate_size=7168)
    assert tokens_s(SIZES, tensor) == pytest.approx((tokens_s(LLAMA, tensor) + tokens_s(small, tensor)) / 2)
    in_part = tokens_s(LLAMA, tensor) + (tokens_s(SMALL, tensor) - tokens_s(LLAMA, tensor)) / 4
    assert tokens_s(HEADS, tensor) == pytest.approx(in_part)


def test_attention_of_two_shapes_takes_the_time_of_each() -> None:
    one, few, both = (step_cost(model, H100, IDEAL) for model in (LLAMA, SMALL, HEADS))

    def mean(of: float, of_few: float) -> float:
        return (3 * of + of_few) / 4

    work = 512, 512 * 513 // 2, 512
    assert both.prefill_ps(*work) == pytest.approx(mean(one.prefill_ps(*work), few.prefill_ps(*work)))
    for place in (0, 1):
        lines = [cost.decode_line(64)[place] for cost in (one, few, both)]
        assert lines[2] == pytest.approx(mean(lines[0], lines[1]), abs=1)
    assert both.work.flop_per_pair == mean(one.work.flop_per_pair, few.work.flop_per_pair)
    assert both.work.kv_bytes_per_token == 2 * 2 * 128 * (24 * 8 + 8 * 4)
    assert key_flop(both.shard) == mean(key_flop(one.shard), key_flop(few.shard))


def test_layers_exchange_over_divided_contexts_by_their_heads() -> None:
    shards = (Shard(model, tensor=16, decode_context=2) for model in (LLAMA, SMALL, HEADS))
    one, few, both = (StepCost(shard, H100, IDEAL) for shard in shards)
    assert one.context.step_s(256, 64) > few.context.step_s(256, 64) > 0
    mean_s = (3 * one.context.step_s(256, 64) + few.context.step_s(256, 64)) / 4
    assert both.context.step_s(256, 64) == pytest.approx(mean_s)
    lines = [cost.decode_line(64)[0] for cost in (one, few, both)]
    assert lines[2] == pytest.approx((3 * lines[0] + lines[1]) / 4)


def test_a_square_matrix_takes_the_time_of_its_product() -> None:
    shard, kernels, n = Shard(LLAMA, tensor=4), Roofline(H100, IDEAL), 256
    bare = replace(MATRICES, mlps=(), n_bare_layers=16)
    none = replace(bare, groups=(LayerGroup("full", 16), LayerGroup("none", 16)))
    matrix_s = kernels.matmul_s("bf16", n, 4096, 1024)
    reduce_s = kernels.all_reduce_s(4, n * 4096 * 2)
    assert tokens_s(bare, 4) - tokens_s(none, 4) == pytest.approx(16 * (matrix_s + reduce_s))
    assert tokens_s(MATRICES, 4) - tokens_s(bare, 4) == pytest.approx(8 * (matrix_s + reduce_s))
    attention, mlps = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096, 3 * 4096 * 14336
    counted = parameters(Shard(MATRICES))
    assert (counted.attention, counted.mlp) == (16 * (attention + 4096**2), 16 * mlps + 8 * 4096**2)
    assert Shard(replace(LLAMA, intermediate_size=0), tensor=4).mlp_matrices == {"matrix": (1024, 4096)}
    assert shard.mlp_matrices.keys() == {"gate_up", "down"}


@pytest.mark.parametrize("name", MODELS)
def test_stages_hold_the_model_once_and_each_nearly_as_much(name: str) -> None:
    shard = Shard(MODELS[name], tensor=2)
    parts = list(stages(shard.model, 4))
    assert sum(weights_bytes(shard, stage) for stage in parts) == pytest.approx(weights_bytes(shard), rel=1e-9)
    for counts, sizes in zip(
        zip(*(stage.n_in_groups for stage in parts), strict=True), shard.model.groups, strict=True
    ):
        assert sum(counts) == sizes.n_layers and max(counts) - min(counts) <= 1
    n_in_mlps = [stage.n_dense_layers for stage in parts]
    assert max(n_in_mlps) - min(n_in_mlps) <= 1 and sum(n_in_mlps) == shard.model.n_dense_layers


def test_a_block_holds_the_same_tokens_of_all_layers_whatever_their_heads() -> None:
    held = kv_layout(Shard(HEADS), 16, 8192)
    assert held.block_bytes == 16 * Shard(HEADS).kv_bytes_per_token == 16 * 2 * 2 * 128 * (24 * 8 + 8 * 4)
    assert (held.block_size, held.blocks.is_plain, held.blocks.most(1000)) == (16, True, 63)
    assert sum(part.most_bytes(1000) for part in held.parts) == 63 * held.block_bytes
    on_stages = [held.stage_bytes(stage.n_in_groups) for stage in stages(HEADS, 4)]
    assert on_stages == [held.block_bytes / 4] * 4
    both = kv_layout(Shard(HEADS), 16, 8192, draft=Shard(LLAMA))
    assert both.block_bytes == held.block_bytes + 16 * Shard(LLAMA).kv_bytes_per_token


def test_beside_windows_blocks_of_fewer_heads_hold_more_tokens() -> None:
    blocks = kv_layout(Shard(WINDOWED), 16, 8192, 8192).blocks
    assert [(group.tokens, group.n_parts) for group in blocks.groups] == [(16, 1), (16, 3), (32, 1)]


def test_a_draft_of_one_layer_has_an_mlp_of_the_model() -> None:
    layer = one_layer(SIZES, "mtp")
    assert (layer.mlps, layer.intermediate_size, layer.n_dense_layers) == ((), 14336, 1)
    assert isinstance(step_cost(layer, H100, IDEAL), StepCost)


def test_windows_that_are_never_filled_are_full_beside_layers_with_heads_of_their_own() -> None:
    groups = (LayerGroup("full", 32, n_sharing=0), LayerGroup("full", 8, heads=FEW))
    assert WINDOWED.within(512).groups == groups
