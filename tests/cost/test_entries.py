"""Layers with entries for several tokens beside their window: DeepSeek-V4, by hand from its published file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve import Scenario, simulate
from simserve.catalog import load_model
from simserve.catalog.dtypes import STORED_BYTES
from simserve.catalog.specs import ModelSpec
from simserve.cost.kernels import n_copies
from simserve.cost.kv_groups import kv_layout
from simserve.cost.shard import Shard
from simserve.cost.speculative import one_layer
from simserve.cost.step import StepCost
from simserve.cost.weights import matrices_of, parameters, stages, weights_bytes
from simserve.errors import CatalogError
from simserve.scenario.model_sizes import model_sizes
from simserve.scenario.proposals import SpeculationSetup
from tests.catalog.test_published import CONFIGS, read
from tests.cost.specs import H100, IDEAL
from tests.fuzz.configs import config_of

FLASH = CONFIGS["DeepSeek-V4-Flash"]

ENTRY = 2 * 512
"""Bytes of a vector that is key and value, in 16 bits."""

TOKEN = 21 * (ENTRY + 132) // 4 + 20 * ENTRY // 128
"""Bytes of a token in entries: 21 layers of 4 tokens an entry, with keys of 128 in fp8 for the indexer; 20 of 128."""


@pytest.fixture
def flash(tmp_path: Path) -> ModelSpec:
    """DeepSeek-V4-Flash: 43 layers with a window of 128 tokens, 41 of them with entries beside it."""
    return read(tmp_path, FLASH)


def test_layers_with_entries_are_in_two_groups(flash: ModelSpec) -> None:
    groups = [(group.kind, group.n_layers, group.window, group.ratio) for group in flash.groups]
    assert groups == [("windowed", 43, 128, 1), ("compressed", 21, None, 4), ("compressed", 20, None, 128)]
    assert [index and index.top_k for index in (group.indexer for group in flash.groups)] == [None, 512, None]
    assert (flash.n_attention_layers, flash.n_moe_layers, flash.n_streams) == (43, 43, 4)


def test_a_request_holds_its_window_and_a_part_of_an_entry_per_token(flash: ModelSpec) -> None:
    layout = kv_layout(Shard(flash), 16, 1, 1_048_576)
    window, sparse, dense = layout.parts
    # Blocks of 256 tokens hold whole entries of all 41 layers; 32 tokens of the 43 windows fit one.
    assert {group.tokens: group.n_parts for group in layout.blocks.groups} == {32: 1, 256: 1}
    assert layout.block_bytes == 256 * TOKEN > 32 * 43 * ENTRY == layout.n_layers * layout.layer_bytes
    assert sparse.bytes_per_token + dense.bytes_per_token == TOKEN
    assert sparse.most_bytes(2560) == 2560 * 21 * (ENTRY + 132) / 4
    assert window.most_bytes(100_000) == 5 * 32 * 43 * ENTRY  # 128 tokens lie in five blocks of 32 at most
    assert layout.blocks.held(10_240) == 10_240 // 256 + 4


def test_the_cache_in_8_bits_keeps_the_rotated_part_in_16(flash: ModelSpec) -> None:
    entry = 448 + 2 * 64 + 8
    by_hand = 43 * entry + 21 * (entry + 132) / 4 + 20 * entry / 128
    assert Shard(flash, kv_dtype="fp8").kv_bytes_per_token == by_hand


def test_every_gpu_has_all_entries_and_a_part_of_the_heads(flash: ModelSpec) -> None:
    one, four = Shard(flash), Shard(flash, tensor=4)
    assert n_copies(flash, 4) == 4
    assert four.kv_bytes_per_token == one.kv_bytes_per_token
    assert four.attention_matrices == {
        "qkv_a": (4096, 1024 + 512),
        "q_b": (1024, 16 * 512),
        "output_a": (8 * 512, 2 * 1024),  # two of eight groups of eight heads
        "output": (2 * 1024, 4096),
    }
    assert Shard(flash, tensor=16).attention_matrices["output_a"] == (4 * 512, 1024)  # half a group
    assert matrices_of(four, flash.groups[1]) == {
        "entries": (4096, 2 * 2 * 512),
        "index_q": (1024, 64 * 128),
        "index_k": (4096, 2 * 2 * 128 + 64),
    }
    assert matrices_of(four, flash.groups[2]) == {"entries": (4096, 2 * 512)}


def test_stages_of_a_pipeline_have_their_layers_of_each_group(flash: ModelSpec) -> None:
    layout, parts = kv_layout(Shard(flash), 16, 1), [*stages(flash, 2)]
    assert [stage.n_in_groups for stage in parts] == [(22, 10, 10), (21, 11, 10)]
    assert [stage.n_layers for stage in parts] == [22, 21]
    whole = parameters(Shard(flash))
    assert sum(parameters(Shard(flash), stage).attention for stage in parts) == whole.attention
    assert sum(parameters(Shard(flash), stage).norms for stage in parts) == whole.norms
    entries = [256 * (n * (ENTRY + 132) // 4 + 10 * ENTRY // 128) for n in (10, 11)]
    assert [layout.stage_bytes(stage.n_in_groups) for stage in parts] == [max(entries[0], 22 * 32 * ENTRY), entries[1]]


def test_experts_in_4_bits_leave_attention_in_8(flash: ModelSpec, tmp_path: Path) -> None:
    assert (flash.weight_dtype, flash.dense_dtype) == ("mxfp4", "fp8_block")
    shard, n = Shard(flash, "mxfp4"), parameters(Shard(flash))
    in_16_bits = n.embeddings + n.head + n.norms + n.gates
    by_hand = n.routed_experts * STORED_BYTES["mxfp4"] + n.projections * STORED_BYTES["fp8_block"] + 2 * in_16_bits
    assert weights_bytes(shard) == by_hand
    assert Shard(flash, "bf16").dense_dtype == "bf16"
    in_fp8 = read(tmp_path, {**FLASH, "expert_dtype": "fp8"})
    assert (in_fp8.weight_dtype, in_fp8.dense_dtype) == ("fp8_block", None)
    plain = read(tmp_path, {key: value for key, value in FLASH.items() if key != "quantization_config"})
    assert (plain.weight_dtype, plain.dense_dtype) == (None, None)


def test_decode_reads_the_best_entries_and_scores_or_attends_the_others(flash: ModelSpec) -> None:
    cost, bytes_per_s = StepCost(Shard(flash), H100, IDEAL), H100.hbm_bytes_per_s * IDEAL.memory_efficiency
    flop_per_s = H100.flop_per_s["bf16"] * IDEAL.compute_efficiency
    entry_s = max(ENTRY / bytes_per_s, 2 * 64 * 2 * 512 / flop_per_s)
    score_s = max(132 / bytes_per_s, 2 * 64 * 128 / (H100.flop_per_s["fp8"] * IDEAL.compute_efficiency))
    (of_window,) = cost.window_slopes(8)
    assert of_window * 1e-12 == pytest.approx(43 * entry_s, rel=1e-2)
    intercept, slope = cost.decode_line(8)
    assert slope * 1e-12 == pytest.approx(21 * score_s / 4 + 20 * entry_s / 128, rel=1e-2)
    windows = tuple(group for group in flash.groups if not group.has_entries)
    alone, _ = StepCost(Shard(replace(flash, groups=windows)), H100, IDEAL).decode_line(8)
    assert (intercept - alone) * 1e-12 == pytest.approx(8 * 21 * 512 * entry_s, rel=1e-3)


def test_a_verified_token_chooses_entries_of_its_own(flash: ModelSpec) -> None:
    target = StepCost(Shard(flash), H100, IDEAL)
    proposing = SpeculationSetup("mtp", (0.8,), 0.0).running_cost(target)
    entry_s = ENTRY / (H100.hbm_bytes_per_s * IDEAL.memory_efficiency)
    assert proposing.query_ps * 1e-12 == pytest.approx(21 * 512 * entry_s, rel=1e-3)


def test_prompts_attend_entries_beside_their_windows(flash: ModelSpec) -> None:
    cost, n = StepCost(Shard(flash), H100, IDEAL), 65_536
    pairs, flop_per_s = n * (n + 1) // 2, H100.flop_per_s["bf16"] * IDEAL.compute_efficiency
    pair_s = 2 * 64 * 2 * 512 / flop_per_s
    scores_s = pairs / 4 * 2 * 64 * 128 / (H100.flop_per_s["fp8"] * IDEAL.compute_efficiency)
    by_hand = 21 * (scores_s + n * 512 * pair_s) + 20 * pairs / 128 * pair_s
    assert cost.prefill_ps(n, pairs, n) * 1e-12 == pytest.approx(by_hand, rel=0.01)
    # Groups that divide a prompt compute a half each.
    divided = StepCost(Shard(flash, prefill_context=2), H100, IDEAL)
    assert divided.prefill_ps(n, pairs, n) / cost.prefill_ps(n, pairs, n) == pytest.approx(0.5, rel=0.01)


def test_the_useful_work_of_a_step_counts_entries(flash: ModelSpec) -> None:
    work = StepCost(Shard(flash), H100, IDEAL).work
    assert work.flop_per_pair == 21 * 2 * 64 * 128 / 4 + 20 * 2 * 64 * 2 * 512 / 128
    assert work.kv_bytes_per_token == 21 * 132 / 4 + 20 * ENTRY / 128


def test_a_layer_that_predicts_further_tokens_has_a_window_alone(flash: ModelSpec) -> None:
    draft = one_layer(flash, "mtp")
    assert [(group.kind, group.n_layers, group.window) for group in draft.groups] == [("windowed", 1, 128)]
    layout = kv_layout(Shard(flash), 16, 8, draft=Shard(draft))
    assert layout.n_layers == 44
    assert {group.tokens: group.n_parts for group in layout.blocks.groups if group.n_parts} == {32: 1, 256: 1}


@pytest.mark.parametrize("draft", ["llama-3.2-1b", "phi-4", "gpt-oss-20b"])
def test_blocks_of_another_draft_divide_those_of_entries(flash: ModelSpec, draft: str) -> None:
    layout = kv_layout(Shard(flash), 16, 8, draft=Shard(load_model(draft)))
    *others, entries = sorted(group.tokens for group in layout.blocks.groups)
    assert entries % 256 == 0
    assert not any(entries % tokens for tokens in others)


def test_a_model_alone_prints_its_groups(tmp_path: Path) -> None:
    read(tmp_path, FLASH)
    groups = model_sizes(str(tmp_path / "config.json")).requests[8192]
    kinds = [(group.kind, group.n_layers, group.bytes_per_token) for group in groups]
    assert kinds[1:] == [("compressed 4", 21, 21 * (ENTRY + 132) / 4), ("compressed 128", 20, 20 * ENTRY / 128)]
    assert groups[1].longest_bytes == 8192 * 21 * (ENTRY + 132) / 4


REFUSED: dict[str, dict[str, Any]] = {
    "o_groups must divide num_attention_heads 64, got 7": {"o_groups": 7},
    "index_topk is missing": {"index_topk": None},
    "sliding_window is 0": {"sliding_window": 0},
    "num_key_value_heads: only 1 is supported, got 2": {"num_key_value_heads": 2},
    "compress_ratios: layers of type 16 are not supported yet": {"compress_ratios": [16] * 43},
    "compress_ratios must name the 43 layers": {"compress_ratios": [4] * 42},
    'expert_dtype: only "fp4" or "fp8" is supported, got "fp6"': {"expert_dtype": "fp6"},
}


@pytest.mark.parametrize("error", REFUSED)
def test_what_the_family_does_not_have_is_refused(tmp_path: Path, error: str) -> None:
    with pytest.raises(CatalogError, match=error):
        read(tmp_path, {**FLASH, **REFUSED[error]})


def test_entries_of_other_attention_are_refused(tmp_path: Path) -> None:
    rules = [{"by": "list", "key": "compress_ratios", "kinds": {4: "sparse"}}]
    family = {"source": "mine", "reads": {"layers": "compress_ratios"}, "layers": rules}
    (tmp_path / "family.yaml").write_text(yaml.safe_dump(family))
    config = config_of("llama") | {"sliding_window": 128, "compress_ratios": [4] * 32}
    with pytest.raises(CatalogError, match="o_lora_rank is missing; only attention to one vector for all heads"):
        read(tmp_path, config)


RUNS: dict[str, dict[str, Any]] = {
    "a pipeline": {"pools": [{"parallel": {"tensor": 2, "pipeline": 2}}]},
    "prefixes, and swaps to the host": {
        "pools": [
            {
                "parallel": {"tensor": 4},
                "enable_prefix_caching": True,
                "num_gpu_blocks": 150,
                "host_tier": {"bytes": 2e11, "preemption": "swap", "offload_prefixes": True},
            }
        ]
    },
    "disaggregation": {
        "kv_link": {"bytes_per_s": 5e10, "latency_s": 1e-4},
        "pools": [
            {"name": "prefill", "role": "prefill", "parallel": {"tensor": 4}},
            {"name": "decode", "role": "decode", "parallel": {"tensor": 4}},
        ],
    },
    "speculation": {
        "pools": [{"parallel": {"tensor": 4}, "speculation": {"kind": "mtp", "tokens": 1, "acceptance": 0.8}}]
    },
    "divided contexts": {"pools": [{"parallel": {"tensor": 4, "decode_context": 4}}]},
}


@pytest.mark.parametrize("mechanism", RUNS)
def test_requests_finish_with(tmp_path: Path, mechanism: str) -> None:
    read(tmp_path, FLASH)
    workload = {
        "n_requests": 60,
        "arrivals": {"kind": "poisson", "rate_per_s": 6},
        "lengths": {"kind": "fixed", "prompt_tokens": 300, "output_tokens": 40},
        "prefixes": {"kind": "conversations", "turns": [1, 4], "think_s": {"mean": 1}, "system_tokens": 1000},
    }
    results = simulate(
        Scenario.from_dict(
            {
                "schema": "simserve/1",
                "model": str(tmp_path / "config.json"),
                "gpu": "h200-sxm",
                "engine": "vllm",
                "workload": workload,
                "cluster": RUNS[mechanism],
                "measure": {"replays": 0},
            }
        )
    )
    assert (results.requests["status"] == "finished").all()
    if "prefix" in mechanism:
        assert results.requests["cached_tokens"].max() >= 1024  # whole blocks of 256 tokens
        assert (results.requests["cached_tokens"] % 256 == 0).all()
