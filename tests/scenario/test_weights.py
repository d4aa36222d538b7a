"""What the weights are stored in, and models whose times nobody knows yet."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog, simulate
from simserve.cost.comm import NIC_LATENCY_S, NodeLink
from simserve.scenario.setup import Distortion
from simserve.study.run_seeds import as_text, scenario_of
from tests.scenario.conftest import Load, MessagesOf

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {"quant_method": "awq", "bits": 4}


def config(folder: Path, **changes: Any) -> str:
    """A config.json of a small Llama beside the scenario; its path."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
    others = {"intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 8192}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**sizes, **others, **changes}))
    return f"{folder.name}/config.json"


def with_model(text: str, model: str, more: str = "") -> str:
    """The scenario with another model."""
    return text.replace("model: llama-3.1-8b\n", f"model: {model}\n{more}")


def test_a_quantized_checkpoint_says_what_its_weights_are_stored_in(load: Load, small: str, tmp_path: Path) -> None:
    scenario = load(with_model(small, config(tmp_path / "small-fp8", quantization_config=BLOCKS)))
    assert scenario.weight_dtype == "fp8_block"
    assert scenario.origins["weight_dtype"] == "model small-fp8"
    again = load(scenario.to_yaml())
    assert again == scenario


def test_a_checkpoint_in_16_bits_leaves_the_default(load: Load, small: str, tmp_path: Path) -> None:
    scenario = load(with_model(small, config(tmp_path / "small")))
    assert (scenario.weight_dtype, scenario.origins["weight_dtype"]) == ("bf16", "default")
    quantized_on_load = load(with_model(small, config(tmp_path / "small"), "weight_dtype: fp8\n"))
    assert quantized_on_load.weight_dtype == "fp8"


def test_another_dtype_than_the_checkpoints_is_a_mistake(messages_of: MessagesOf, small: str, tmp_path: Path) -> None:
    path = config(tmp_path / "small-awq", quantization_config=INT4)
    assert messages_of(with_model(small, path, "weight_dtype: bf16\n")) == [
        "a.yaml:4: weight_dtype: the weights of small-awq are in int4, by its quantization_config, got 'bf16'; "
        "leave it out, or give the config.json of a checkpoint in bf16"
    ]


def test_fp8_stands_for_fp8_in_blocks_too(load: Load, small: str, tmp_path: Path) -> None:
    path = config(tmp_path / "small-fp8", quantization_config=BLOCKS)
    scenario = load(with_model(small, path, "weight_dtype: fp8\n"))
    assert (scenario.weight_dtype, scenario.origins["weight_dtype"]) == (
        "fp8_block",
        "fp8 of small-fp8 is scaled in blocks",
    )
    assert load(scenario.to_yaml()) == scenario
    per_tensor = config(tmp_path / "other", quantization_config={"quant_method": "fp8"})
    assert load(with_model(small, per_tensor, "weight_dtype: fp8\n")).weight_dtype == "fp8"


def test_pools_may_have_weights_of_different_dtypes(load: Load, small: str, tmp_path: Path) -> None:
    fp8, int4 = (
        config(tmp_path / name, quantization_config=quantized) for name, quantized in (("fp8", BLOCKS), ("awq", INT4))
    )
    pools = f"cluster:\n  pools:\n    - {{name: a, model: {fp8}}}\n    - {{name: b, model: {int4}}}\n"
    scenario = load(small + pools)
    assert [setup.weight_dtype for setup in scenario.setups] == ["fp8_block", "int4"]
    assert scenario.origins["cluster.pools.1.weight_dtype"] == "model awq"
    assert load(scenario.to_yaml()) == scenario
    weights = [setup.ledger.weights_bytes for setup in scenario.setups]
    assert weights[0] > weights[1]


def test_a_pool_states_a_dtype_of_its_own(load: Load, messages_of: MessagesOf, small: str, tmp_path: Path) -> None:
    """Prefill computes in fp8 and decode in bf16: the KV cache, which crosses the link, is of one dtype."""
    roles = "{name: p, role: prefill, weight_dtype: fp8}", "{name: d, role: decode}"
    text = small + "cluster:\n  pools:\n" + "".join(f"    - {role}\n" for role in roles)
    prefill, decode = load(text).setups
    assert (prefill.weight_dtype, decode.weight_dtype) == ("fp8", "bf16")
    assert prefill.step_cost().decode_line(8)[1] == decode.step_cost().decode_line(8)[1]
    assert prefill.step_cost().tokens_ps(8) < decode.step_cost().tokens_ps(8)
    assert prefill.ledger.block_bytes == decode.ledger.block_bytes
    assert simulate(load(text)).summary["requests"]["finished"] == 100
    path = config(tmp_path / "small-awq", quantization_config=INT4)
    wrong = f"cluster:\n  pools:\n    - {{name: a, model: {path}, weight_dtype: bf16}}\n"
    assert messages_of(small + wrong) == [
        "a.yaml:11: cluster.pools.0.weight_dtype: the weights of small-awq are in int4, by its quantization_config, "
        "got 'bf16'; leave it out, or give the config.json of a checkpoint in bf16"
    ]
    (message,) = messages_of(small + wrong.replace(str(path), "llama-3.1-8b").replace("bf16", "nvfp4"))
    assert "a.yaml:11: cluster.pools.0.weight_dtype: computes in" in message


EXPERT = "cluster.pools.0.parallel.expert"
ROUTING = "cluster.pools.0.expert_routing"
FOUR = "cluster.pools.0.parallel.tensor=4"


def test_a_model_with_experts_routes_as_others_of_its_kind_unless_told_otherwise(load: Load, small: str) -> None:
    text = with_model(small, "qwen3-30b-a3b")
    scenario = load(text)
    assert scenario.setups[0].expert_routing == "lognormal_0.35"
    assert scenario.origins[ROUTING] == "model qwen3-30b-a3b"
    assert load(scenario.to_yaml()) == scenario
    skewed = load(text, f"{ROUTING}=power_law_1.2", FOUR, f"{EXPERT}=4").setups[0]
    assert (skewed.expert_routing, skewed.parallel.expert) == ("power_law_1.2", 4)


def test_a_model_routes_as_measured(load: Load, small: str) -> None:
    text = with_model(small, "gpt-oss-120b", "weight_dtype: mxfp4\n")
    scenario = load(text, FOUR)
    assert (scenario.setups[0].expert_routing, scenario.origins[ROUTING]) == ("lognormal_1.1", "model gpt-oss-120b")
    assert load(scenario.to_yaml()) == scenario
    assert load(text, FOUR, f"{ROUTING}=uniform").setups[0].expert_routing == "uniform"


def test_experts_that_cannot_be_shared_out_are_a_mistake(messages_of: MessagesOf, small: str) -> None:
    text = with_model(small, "qwen3-30b-a3b")
    assert messages_of(text, FOUR, f"{EXPERT}=3") == [
        f"command line --set {EXPERT}=3: must divide parallel.tensor, 4: the GPUs of a replica share the experts, "
        "got 3; use 1 or 4"
    ]


def test_gpus_that_do_not_divide_the_experts_hold_copies_of_some(load: Load, small: str, tmp_path: Path) -> None:
    config(tmp_path / "odd", num_local_experts=6, num_experts_per_tok=2, moe_intermediate_size=512)
    shard = load(with_model(small, "odd/config.json"), FOUR, f"{EXPERT}=4").setups[0].step_cost().shard
    assert (shard.n_experts, shard.expert_layer.n_experts) == (2, 8)


def test_a_dense_model_has_no_experts_to_share_out_or_route_to(messages_of: MessagesOf, small: str) -> None:
    assert messages_of(small, FOUR, f"{EXPERT}=4", f"{ROUTING}=balanced") == [
        f"command line --set {EXPERT}=4: llama-3.1-8b has no experts, got 4; leave it out",
        f"command line --set {ROUTING}=balanced: llama-3.1-8b has no experts, got 'balanced'; leave it out",
    ]


def test_a_routing_that_nobody_knows_is_a_mistake(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(with_model(small, "qwen3-30b-a3b"), f"{ROUTING}=zipf")
    assert "balanced|uniform|(lognormal|power_law)" in message


def test_a_name_of_the_catalog_is_a_shape_in_any_dtype(load: Load, small: str) -> None:
    scenario = load(with_model(small, "gpt-oss-120b", "weight_dtype: bf16\n"), "cluster.pools.0.parallel.tensor=8")
    assert scenario.weight_dtype == "bf16"


def test_short_windows_need_no_limit_to_the_length_of_requests(load: Load, small: str) -> None:
    scenario = load(with_model(small, "gpt-oss-120b", "weight_dtype: mxfp4\n"), "cluster.pools.0.parallel.tensor=4")
    assert scenario.setups[0].model.windowed
    assert scenario.setups[0].max_model_len == 131072


DATA = "cluster.pools.0.parallel.data"
PIPELINE = "cluster.pools.0.parallel.pipeline"


def test_ranks_that_share_experts_fill_nodes_with_whole_experts(messages_of: MessagesOf, small: str) -> None:
    text = with_model(small, "qwen3-30b-a3b")
    assert messages_of(text, FOUR, f"{DATA}=3", f"{EXPERT}=12") == [
        f"command line --set {DATA}=3: ranks that share experts fill one node or several, 8 GPUs each with "
        "parallel.tensor: tokens cross to the same place of another node, got 3"
    ]
    assert messages_of(text, FOUR, f"{DATA}=4", f"{EXPERT}=8") == [
        f"command line --set {EXPERT}=8: must be parallel.tensor times parallel.data, 16, over several nodes: of an "
        "expert divided between them every token would need all parts, got 8; use 16"
    ]
    assert messages_of(text, f"{DATA}=4", f"{EXPERT}=3") == [
        f"command line --set {EXPERT}=3: must divide parallel.tensor times parallel.data, 4: the GPUs of a replica "
        "share the experts, got 3; use 1 or 4"
    ]


NODE_LINK = "cluster.pools.0.parallel.node_link"


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("bytes_per_s", "1e6", "must be at least 100000000"),
        ("bytes_per_s", "1e15", "must be at most 10000000000000"),
        ("latency_s", "-1", "must be at least 0"),
        ("latency_s", "5", "must be at most 1"),
        ("speed", "1", "unknown key"),
    ],
)
def test_a_link_between_nodes_that_cannot_be_is_a_mistake(
    messages_of: MessagesOf, small: str, key: str, value: str, rule: str
) -> None:
    (message,) = messages_of(small, f"{NODE_LINK}={{bytes_per_s: 5e10}}", f"{NODE_LINK}.{key}={value}")
    assert f"{NODE_LINK}.{key}" in message and rule in message


def test_a_replica_of_several_nodes_has_its_own_link_or_the_cards(load: Load, small: str) -> None:
    text = with_model(small, "qwen3-30b-a3b")
    own, cards = (
        load(text, FOUR, f"{DATA}=4", f"{EXPERT}=16", *more).setups[0]
        for more in ((f"{NODE_LINK}={{bytes_per_s: 25e9, latency_s: 2e-6}}",), ())
    )
    assert own.node_link == NodeLink(25e9, 2e-6)
    assert cards.node_link == NodeLink(50e9, NIC_LATENCY_S)
    assert own.gpus_per_replica == 16
    assert own.step_cost().exchange_ps(100) > cards.step_cost().exchange_ps(100) > 0
    near = load(text, FOUR, f"{DATA}=2", f"{EXPERT}=8").setups[0]
    buffers = own.ledger.reserve_bytes - near.ledger.reserve_bytes
    assert buffers == pytest.approx(4 * 128 * 256 * 2048 * 2 + 2**30)  # low-latency ones of twice two, and 1 GiB
    of_roles = [replace(own, role=role).step_cost().exchange for role in ("prefill", "decode", "both")]
    assert [each and each.kernels for each in of_roles] == ["normal", "low_latency", "by_batch"]
    assert own.distorted(Distortion(link=2)).node_link == NodeLink(12.5e9, 2e-6)


def test_ranks_without_deepep_gather_tokens_and_hold_no_buffers_for_it(
    load: Load, messages_of: MessagesOf, small: str
) -> None:
    text, key = with_model(small, "qwen3-30b-a3b"), "cluster.pools.0.parallel.exchange"
    more = (FOUR, f"{DATA}=4", f"{EXPERT}=16")
    deepep, gather = (load(text, *more, f"{key}={how}").setups[0] for how in ("deepep", "gather"))
    of_both = [each.step_cost().exchange for each in (deepep, gather)]
    assert [each and each.kernels for each in of_both] == ["by_batch", "gather"]
    assert deepep.ledger.reserve_bytes - gather.ledger.reserve_bytes > 2**30
    (message,) = messages_of(small, f"{key}=pplx")
    assert "must be one of deepep, gather or all_to_all" in message


TOPOLOGY = "cluster.pools.0.parallel.link_topology"


def test_a_pool_says_whether_its_gpus_have_peer_access(load: Load, messages_of: MessagesOf, small: str) -> None:
    two = ("gpu=rtx-pro-6000", "cluster.pools.0.parallel.tensor=2")
    host, peers = (load(small, *two, *more).setups[0] for more in ((), (f"{TOPOLOGY}=switch",)))
    assert (host.gpu.link_topology, peers.gpu.link_topology) == ("host", "switch")
    assert host.step_cost().tokens_ps(512) > 1.1 * peers.step_cost().tokens_ps(512)
    assert messages_of(small, f"{TOPOLOGY}=host") == [
        f"command line --set {TOPOLOGY}=host: h100-sxm has links of kind nvls; only those on PCIe choose peer access "
        "(switch) or host, got 'host'; leave it out"
    ]
    wide = ["cluster.pools.0.parallel={data: 16, expert: 16}", "model=qwen3-30b-a3b", "gpu=rtx-pro-6000"]
    (message,) = messages_of(small, *wide)
    assert "write to each other's memory, which needs peer access, got 16; use at most 8" in message


def test_a_pipeline_has_a_layer_for_each_stage(messages_of: MessagesOf, small: str) -> None:
    assert messages_of(small, f"{PIPELINE}=33") == [
        f"command line --set {PIPELINE}=33: must be at most the 32 layers of llama-3.1-8b, got 33"
    ]


def test_a_model_too_large_for_a_node_is_told_of_a_pipeline(messages_of: MessagesOf, small: str) -> None:
    (problem,) = messages_of(with_model(small, "deepseek-v3"), "weight_dtype=fp8_block")
    assert problem.endswith("are missing on each; try parallel.tensor 8 with parallel.pipeline 2")


def test_lanes_of_a_pipeline_share_out_the_blocks_of_its_stages(load: Load, small: str) -> None:
    alone, staged = (load(small, f"{PIPELINE}={n}").setups[0] for n in (1, 4))
    assert staged.gpus_per_replica == 4
    # A stage has a quarter of the layers, so its blocks take a quarter of the memory, and there are as many lanes.
    assert staged.ledger.block_bytes == alone.ledger.block_bytes / 4
    assert staged.ledger.lane_blocks == staged.ledger.n_blocks // 4
    assert staged.ledger.lane_tokens > alone.ledger.kv_tokens  # and the weights are spread over four GPUs


def test_data_parallel_ranks_of_a_dense_model_hold_all_of_it_and_share_nothing(load: Load, small: str) -> None:
    alone, two = (load(small, f"{DATA}={n}").setups[0] for n in (1, 2))
    assert (two.ledger, two.n_sharing, two.ranks_per_replica) == (alone.ledger, 1, 2)


def test_data_parallel_ranks_hold_their_part_of_the_experts(load: Load, small: str) -> None:
    text = with_model(small, "qwen3-30b-a3b")
    alone, four = (load(text, f"{DATA}={n}", f"{EXPERT}={n}").setups[0] for n in (1, 4))
    in_experts = 48 * 128 * 3 * 2048 * 768 * 2  # layers, experts, matrices, sizes, bytes
    assert alone.ledger.weights_bytes - four.ledger.weights_bytes == 0.75 * in_experts


def test_weights_and_activations_need_a_rate_of_the_card(messages_of: MessagesOf, load: Load, small: str) -> None:
    assert load(small, "weight_dtype=w8a8").setups[0].weight_dtype == "w8a8"
    assert load(small, "weight_dtype=nvfp4", "gpu=b200-sxm").weight_dtype == "nvfp4"
    assert messages_of(small, "weight_dtype=nvfp4") == [
        "command line --set weight_dtype=nvfp4: computes in fp4, for which h100-sxm has no rate by its data sheet, "
        "got 'nvfp4'; use mxfp4, which is weight-only, or another gpu"
    ]
    pools = "cluster.pools=[{name: a, gpu: b200-sxm}, {name: b, gpu: l40s}]"
    assert "for which l40s has no rate" in messages_of(small, "weight_dtype=nvfp4", pools)[0]


def test_a_card_without_an_int8_rate_refuses_int8_activations(
    messages_of: MessagesOf, load: Load, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    h100 = catalog.load_gpu("h100-sxm")
    without = replace(h100, flop_per_s={key: rate for key, rate in h100.flop_per_s.items() if key != "int8"})
    monkeypatch.setattr(catalog, "load_gpu", lambda name: without)
    assert messages_of(small, "weight_dtype=w8a8") == [
        "command line --set weight_dtype=w8a8: computes in int8, for which h100-sxm has no rate by its data sheet, "
        "got 'w8a8'; use int8, which is weight-only, or another gpu"
    ]
    assert load(small, "weight_dtype=int8").weight_dtype == "int8"


def test_int8_activations_make_prompts_faster_where_int8_weights_do_not(load: Load, small: str) -> None:
    plain, weight_only, both = (load(small, f"weight_dtype={dtype}").setups[0] for dtype in ("bf16", "int8", "w8a8"))
    prompt = 4096
    assert both.step_cost().tokens_ps(prompt) < 0.8 * weight_only.step_cost().tokens_ps(prompt)
    assert both.ledger.weights_bytes == weight_only.ledger.weights_bytes < plain.ledger.weights_bytes


def test_states_raise_the_block_size_and_take_blocks_of_their_own(load: Load, small: str) -> None:
    layout = load(with_model(small, "qwen3-next-80b-a3b"), FOUR).setups[0].ledger.layout
    assert layout.block_size == 272  # a quarter of a state beside one of two KV heads
    assert (layout.blocks.filled(1), layout.blocks.n_states, layout.blocks.windows) == (1, 3, ())


def test_a_config_with_a_key_that_is_not_understood_is_a_mistake_at_the_model(
    messages_of: MessagesOf, small: str, tmp_path: Path
) -> None:
    path = config(tmp_path / "odd", model_type="other", use_cla=True, cla_share_factor=2)
    (problem,) = messages_of(with_model(small, path))
    assert problem.startswith("a.yaml:3: model: ")
    assert problem.endswith(
        "use_cla: layers that share keys and values (CLA) are not supported yet, got true; choose another model"
    )


def test_marlin_is_for_experts_in_mxfp4(load: Load, messages_of: MessagesOf, small: str) -> None:
    marlin = with_model(small, "gpt-oss-20b", "engine: {name: vllm, moe_backend: marlin}\n")
    assert load(marlin + "weight_dtype: mxfp4\n").setups[0].engine.moe_backend == "marlin"
    rule = "engine.moe_backend: needs experts in mxfp4; those in int4 run by Marlin anyway, got 'marlin'; leave it out"
    (message,) = messages_of(marlin + "weight_dtype: bf16\n")
    assert rule in message
    (message,) = messages_of(marlin.replace("gpt-oss-20b", "llama-3.1-8b"))
    assert rule in message
    hopper = marlin.replace("moe_backend: marlin", "moe_backend: flashinfer_trtllm_afp8") + "weight_dtype: mxfp4\n"
    (message,) = messages_of(hopper)
    assert "multiplies blocks with scales, as cards with a rate for fp4 do, and h100-sxm has none" in message
    assert load(hopper, "gpu=b200-sxm").setups[0].engine.moe_backend == "flashinfer_trtllm_afp8"
    (message,) = messages_of(marlin.replace("marlin", "cutlass") + "weight_dtype: mxfp4\n")
    assert "moe_backend" in message and "'cutlass'" in message


def test_only_ranks_that_step_together_wait_for_balance(load: Load, messages_of: MessagesOf, small: str) -> None:
    text, balance = with_model(small, "qwen3-30b-a3b"), "cluster.pools.0.parallel.balance"
    held = load(text, FOUR, f"{DATA}=4", f"{EXPERT}=16", f"{balance}={{timeout_iters: 60}}").setups[0].parallel.balance
    assert held is not None
    assert (held.timeout_iters, held.batching_wait_iters) == (60, 10)
    assert load(text, FOUR, f"{DATA}=4", f"{EXPERT}=16").setups[0].parallel.balance is None
    for scenario, more in ((text, ()), (small, (f"{DATA}=2",))):
        (message,) = messages_of(scenario, *more, f"{balance}={{}}")
        assert "this pool has none" in message


def test_a_study_resolves_a_scenario_anew_where_a_file_that_it_names_has_changed(
    load: Load, small: str, tmp_path: Path
) -> None:
    n_layers = []
    for changes in ({}, {"num_hidden_layers": 6}, {}):
        scenario = load(with_model(small, config(tmp_path / "small", **changes)))
        n_layers.append(scenario_of(as_text(scenario)).setups[0].model.n_layers)
    assert n_layers == [8, 6, 8]
