"""Layers with heads of their own, shared keys, experts in another width, and layers with inputs of their own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simserve
from simserve.catalog.specs import ModelSpec
from simserve.cost.kv_groups import kv_layout
from simserve.cost.matrices import n_weights
from simserve.cost.shard import Shard
from simserve.cost.speculative import one_layer
from simserve.cost.step import StepCost
from simserve.cost.weights import parameters, stages, weights_bytes
from simserve.errors import CatalogError
from tests.catalog.test_published import CONFIGS, read
from tests.cost.specs import H100, IDEAL

GPUS = {
    "MiMo-V2-Flash": ("h200-sxm", 4),
    "Gemma-3n-E4B-it": ("h200-sxm", 1),
    "Falcon-H1-7B-Instruct": ("h200-sxm", 1),
    "Kimi-Linear-48B-A3B": ("h200-sxm", 1),
    "Hunyuan-Large": ("h200-sxm", 8),
    "Step-3": ("h200-sxm", 8),
    "LongCat-Flash-Chat": ("b200-sxm", 8),
    "Zamba2-2.7B": ("h200-sxm", 1),
}
"""GPUs that hold a model."""


@pytest.fixture
def mimo(tmp_path: Path) -> ModelSpec:
    """MiMo-V2-Flash: 9 full layers of 4 KV heads, 39 with a window of 128 and 8; keys of 192 and values of 128."""
    return read(tmp_path, CONFIGS["MiMo-V2-Flash"])


def test_layers_with_half_the_bytes_a_token_have_blocks_of_twice_the_tokens(mimo: ModelSpec) -> None:
    layout = kv_layout(Shard(mimo), 16, 2048)
    assert {group.tokens: group.n_parts for group in layout.blocks.groups} == {16: 5, 32: 1}  # 39 layers in blocks of 9
    assert layout.block_bytes == 9 * 16 * 8 * (192 + 128) * 2
    # 1,024 tokens: 32 blocks of full layers; the window and a step of 2,048 tokens hold all 64 blocks of the others.
    assert layout.blocks.most(1024) == 1024 // 32 + 5 * 1024 // 16
    whole, windowed = layout.parts
    assert whole.bytes_per_token == 9 * 4 * 320 * 2
    assert windowed.bytes_per_token == 39 * 8 * 320 * 2


def test_attention_costs_the_keys_of_each_layers_own_heads(mimo: ModelSpec) -> None:
    cost = StepCost(Shard(mimo), H100, IDEAL)
    _, slope = cost.decode_line(1)
    (window_slope,) = cost.window_slopes(1)
    # Memory bounds both: bytes a key over the bandwidth; a layer with a window reads twice the bytes.
    assert window_slope / 39 == pytest.approx(2 * slope / 9, rel=1e-3)


def test_shared_keys_take_no_memory_but_are_attended(tmp_path: Path) -> None:
    model = read(tmp_path, CONFIGS["Gemma-3n-E4B-it"])
    assert {group.kind: (group.n_layers, group.n_keeping) for group in model.groups} == {
        "windowed": (28, 16),
        "full": (7, 4),
    }
    layout = kv_layout(Shard(model), 16, 2048)
    assert sum(part.bytes_per_token for part in layout.parts) == 20 * 2 * 2 * 256 * 2
    without = StepCost(Shard(model.within(1)), H100, IDEAL).decode_line(1)[1]
    assert without / 35 == pytest.approx(StepCost(Shard(model), H100, IDEAL).decode_line(1)[1] / 7, rel=1e-3)


def test_layers_that_share_keys_project_none(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["Hunyuan-Large"]))  # every other of 64 layers attends the keys before it
    (own, n_own), (sharing, n_sharing) = shard.by_heads
    assert (n_own, n_sharing) == (32, 32)
    queries = {"qkv": (6400, 80 * 80), "output": (80 * 80, 6400)}
    assert sharing.attention_matrices == queries
    assert own.attention_matrices == {**queries, "qkv": (6400, (80 + 2 * 8) * 80)}
    assert parameters(shard).attention == 32 * n_weights(own.attention_matrices) + 32 * n_weights(queries)
    halves = [parameters(shard, stage).attention for stage in stages(shard.model, 2)]
    assert halves == [parameters(shard).attention / 2] * 2
    every = [StepCost(each, H100, IDEAL).tokens_s(1) for each in (shard, Shard(replace(shard.model, groups=())))]
    per_token = 2 * 8 * 80 * 6400 * 2 / (H100.hbm_bytes_per_s * IDEAL.memory_efficiency)
    assert every[1] - every[0] == pytest.approx(32 * per_token, rel=1e-2)


def test_queries_by_way_of_a_short_vector_have_two_matrices(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["Step-3"]), tensor=8)
    assert shard.attention_matrices == {
        "qkv": (7168, 2048 + 2 * 256),  # whole on every GPU, as is the one KV head
        "q_b": (2048, 64 // 8 * 256),
        "output": (64 // 8 * 256, 7168),
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_attention_groups": 2}, "num_attention_groups: only 1 is supported, got 2"),
        ({"share_q_dim": None}, "share_q_dim is missing"),
        ({"share_expert_dim": None}, "share_expert_dim is missing"),
        ({"share_q_dim": "2048"}, "share_q_dim: must be a whole number"),
    ],
)
def test_what_such_queries_need_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    given = CONFIGS["Step-3"]
    with pytest.raises(CatalogError, match=text):
        read(tmp_path, {**given, "text_config": {**given["text_config"], **changes}})


def test_a_layer_of_two_attentions_has_experts_besides(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["LongCat-Flash-Chat"]))
    model = shard.model
    assert (model.n_attention_layers, model.n_dense_layers, model.n_moe_layers) == (2 * 28, 2 * 28, 28)
    halves = [*stages(model, 2)]
    assert [(half.n_dense_layers, half.n_moe_layers, half.n_in_groups) for half in halves] == [(28, 14, (28, 14))] * 2
    assert sum(weights_bytes(shard, half) for half in halves) == pytest.approx(weights_bytes(shard), rel=1e-12)
    draft = one_layer(model, "mtp")
    assert [(stage.n_dense_layers, stage.n_moe_layers) for stage in stages(draft)] == [(1, 0)]


def test_layers_that_share_a_block_have_its_weights_once_and_its_work_each(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["Zamba2-7B"]), tensor=2)
    own = {"change_in": (3584, 128), "change_out": (128, 2 * 14336 // 2), "added": (3584, 3584)}
    block = {"qkv": (7168, 3 * 16 * 224), "output": (16 * 224, 3584)}  # hidden states beside embeddings
    assert shard.attention_matrices == {**block, **own}
    held, met = parameters(shard), parameters(shard, is_active=True)
    assert held.attention == 2 * n_weights(block) + 13 * n_weights(own)
    assert held.mlp == 2 * n_weights(shard.mlp_matrices)
    assert met.attention == 13 * n_weights(shard.attention_matrices)
    assert met.mlp == 13 * n_weights(shard.mlp_matrices)
    assert (shard.model.n_state_layers, shard.model.n_bare_layers, shard.model.n_dense_layers) == (81, 81, 13)
    first, last = (parameters(shard, stage) for stage in stages(shard.model, 2))
    assert first.attention + last.attention == held.attention + 2 * n_weights(block)  # either stage has both blocks
    assert first.mlp + last.mlp == 2 * held.mlp


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layers_block_type": None}, "layers_block_type is missing"),
        ({"layers_block_type": ["mamba"] * 53}, "layers_block_type must name the 54 layers"),
        ({"layers_block_type": ["mamba"] * 53 + ["rwkv"]}, "layers_block_type: .* are not supported yet"),
        ({"use_shared_attention_adapter": True}, "use_shared_attention_adapter: only false is supported, got true"),
        ({"use_long_context": True}, "use_long_context: only false is supported, got true"),
        ({"adapter_rank": 0}, "adapter_rank: must be at least 1, got 0"),
    ],
)
def test_what_shared_blocks_need_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CatalogError, match=text):
        read(tmp_path, {**CONFIGS["Zamba2-2.7B"], **changes})


def test_what_a_file_of_shared_blocks_leaves_out_follows_from_its_widths(tmp_path: Path) -> None:
    given = CONFIGS["Zamba2-2.7B"]
    follows = (
        "attention_hidden_size",
        "attention_head_dim",
        "mamba_headdim",
        "intermediate_size",
        "num_key_value_heads",
    )
    short = read(tmp_path, {key: value for key, value in given.items() if key not in follows})
    assert short == read(tmp_path, given)


def test_zero_experts_are_outputs_of_the_router_that_take_their_share_of_a_tokens_experts(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["LongCat-Flash-Chat"]))
    assert shard.router == (6144, 512 + 256)
    assert (shard.expert_layer.n_experts, shard.expert_layer.top_k) == (512, 12 * 512 // 768)
    active = parameters(shard, is_active=True)
    assert active.routed_experts == 28 * 8 * 3 * 6144 * 2048
    assert sum(vars(active).values()) == pytest.approx(27e9, rel=0.01)  # in the mean, says the report


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"zero_expert_type": "drop"}, 'zero_expert_type: only "identity" is supported, got "drop"'),
        ({"attention_method": "MHA"}, 'attention_method: only "MLA" is supported, got "MHA"'),
        ({"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"n_routed_experts": None}, "n_routed_experts is missing"),
        ({"zero_expert_num": -1}, "zero_expert_num: must be at least 0"),
    ],
)
def test_what_such_layers_need_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CatalogError, match=text):
        read(tmp_path, {**CONFIGS["LongCat-Flash-Chat"], **changes})


def test_stages_have_the_dense_layers_among_those_with_experts(tmp_path: Path) -> None:
    jamba = read(tmp_path, CONFIGS["Jamba-1.5-Large"])  # every other of 72 layers has experts
    assert [(stage.n_dense_layers, stage.n_moe_layers) for stage in stages(jamba, 4)] == [(9, 9)] * 4
    falcon = read(tmp_path, CONFIGS["Falcon-H1-7B-Instruct"])  # every other of 88 layers has a state and no MLP
    assert [(stage.n_dense_layers, stage.n_in_groups) for stage in stages(falcon, 2)] == [(22, (22, 22))] * 2
    step = read(tmp_path, CONFIGS["Step-3"])  # the first four layers are dense, and the last
    assert [stage.n_dense_layers for stage in stages(step, 2)] == [4, 1]


def test_inputs_of_layers_are_weights_and_products_in_each(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["Gemma-3n-E4B-it"]))
    assert n_weights(shard.input_matrices) == 3 * 2048 * 256 + 2 * 2048 * 64
    both = parameters(shard)
    assert both.layer_inputs == 35 * n_weights(shard.input_matrices)
    assert both.embeddings == 35 * 262_144 * 256  # the vocabulary itself is tied to the head


def test_experts_of_another_width_have_projections_around_them(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["Nemotron-3-Super-120B-A12B"]))
    assert shard.latent_matrices == {"latent_in": (4096, 1024), "latent_out": (1024, 4096)}
    assert shard.expert_weights == 2 * 1024 * 2688  # without a gate
    assert shard.expert_layer.hidden == 1024


@pytest.mark.parametrize("max_model_len", [100, 4096])
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", ["plain", "roles", "stages", "draft"])
def test_such_models_run_with_other_mechanisms(tmp_path: Path, name: str, max_model_len: int, kind: str) -> None:
    read(tmp_path, CONFIGS[name])
    pool: dict[str, Any] = {
        "name": "serve",
        "parallel": {"tensor": GPUS[name][1], "pipeline": 2 if kind == "stages" else 1},
        "max_model_len": max_model_len,
    }
    if kind == "draft":
        pool["speculation"] = {"kind": "eagle", "tokens": 2, "acceptance": 0.6}
    roles = ("prefill", "decode") if kind == "roles" else ("both",)
    scenario = {
        "schema": "simserve/1",
        "name": "own-heads",
        "seed": 0,
        "model": str(tmp_path / "config.json"),
        "gpu": GPUS[name][0],
        "engine": "vllm",
        "cluster": {"pools": [{**pool, "name": role, "role": role} for role in roles]},
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 20},
            "lengths": {"kind": "uniform", "prompt_tokens": [2, max_model_len // 2], "output_tokens": [1, 40]},
            "n_requests": 60,
        },
    }
    results = simserve.simulate(json.loads(json.dumps(scenario)))
    assert results.summary["requests"]["finished"] == 60
