"""Layers that propose: those of MTP as checkpoints have them, and heads of EAGLE, by hand arithmetic."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.catalog.layers import Heads, LayerGroup
from simserve.cost.kv_groups import kv_layout
from simserve.cost.shard import Shard
from simserve.cost.speculative import one_layer
from simserve.cost.step import StepCost
from simserve.scenario.proposals import SpeculationSetup
from tests.catalog.test_published import CONFIGS, read
from tests.cost.specs import H100, IDEAL

MTP = SpeculationSetup("mtp", (0.8,) * 3, 0.0)

EAGLE = SpeculationSetup("eagle", (0.8,) * 3, 0.0)

# Queries, keys and values, output; gate, up and down; the matrix that merges two vectors into one; two norms.
WEIGHTS = {
    "MiMo-V2-Flash": 4096 * (64 * 192 + 8 * 192 + 8 * 128 + 64 * 128) + 3 * 4096 * 16384 + 2 * 4096**2 + 2 * 4096,
    "Step-3.5-Flash": 4096 * (2 * 96 + 2 * 8) * 128 + 3 * 4096 * 11264 + 2 * 4096**2 + 2 * 4096,
    "ERNIE-4.5-21B-A3B": 2560 * (2 * 20 + 2 * 4) * 128 + 3 * 2560 * 12288 + 2 * 2560**2 + 2 * 2560,
    "K-EXAONE-236B-A23B": 6144 * (2 * 64 + 2 * 8) * 128 + 3 * 6144 * 18432 + 2 * 6144**2 + 2 * 6144,
}

SWA = {
    "MiMo-V2-Flash": LayerGroup("windowed", 1, 128, Heads(64, 8, 192, 128)),
    "Step-3.5-Flash": LayerGroup("windowed", 1, 512, Heads(96, 8, 128)),
    "K-EXAONE-236B-A23B": LayerGroup("windowed", 1, 128),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_layers_of_mtp_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    """Dense, although the model has experts, and with a window but for ERNIE."""
    model = replace(read(tmp_path, CONFIGS[name]), weight_dtype=None, only_experts_quantized=False)
    memory = MTP.extra_memory(Shard(model))
    assert memory.weights_bytes == 2 * WEIGHTS[name]
    assert memory.draft is not None
    assert memory.draft.model.groups == (SWA.get(name, LayerGroup("full", 1)),)


def test_a_window_of_mtp_lies_in_blocks_of_the_models_windows(tmp_path: Path) -> None:
    """39 layers with a window take five blocks of nine, and so do 40."""
    shard = Shard(read(tmp_path, CONFIGS["MiMo-V2-Flash"]))
    alone, held = (kv_layout(shard, 16, 2048, n_states=4, draft=each) for each in (None, MTP.shard(shard)))
    assert held.blocks.most(8192) == alone.blocks.most(8192)
    assert held.block_bytes == alone.block_bytes
    (of_draft,) = (part for part in held.parts if part.is_draft)
    assert of_draft.bytes_per_token == 8 * (192 + 128) * 2


def test_nemotrons_layer_of_mtp_is_attention_and_experts_in_their_width(tmp_path: Path) -> None:
    shard = Shard(read(tmp_path, CONFIGS["Nemotron-3-Super-120B-A12B"]))
    layer = replace(shard, model=one_layer(shard.model, "mtp"), weight_dtype="bf16")
    assert (layer.model.n_layers, layer.model.n_moe_layers, layer.model.n_bare_layers) == (1, 1, 0)
    attention = 4096 * (2 * 32 + 2 * 2) * 128
    experts = 512 * 2 * 1024 * 2688 + 2 * 4096 * 1024 + 2 * 4096 * 5376 + 4096 * 512
    expected = attention + experts + 2 * 4096 + 2 * 4096**2
    assert MTP.extra_memory(replace(shard, weight_dtype="bf16")).weights_bytes == 2 * expected


@pytest.mark.parametrize(("name", "width"), [("kimi-k2", 18432), ("gpt-oss-120b", 4 * 2880), ("llama-3.1-8b", 14336)])
def test_a_head_of_eagle_is_dense_and_in_16_bits(name: str, width: int) -> None:
    model = catalog.load_model(name)
    shard = EAGLE.shard(Shard(model, "fp8", tensor=8))
    assert shard is not None
    assert (shard.model.experts, shard.model.intermediate_size, shard.weight_dtype) == (None, width, "bf16")


def test_a_head_of_eagle_has_no_inputs_of_layers(tmp_path: Path) -> None:
    """Gemma 3n: 262,144 embeddings of 256 belong to the model's layers alone."""
    model = read(tmp_path, CONFIGS["Gemma-3n-E4B-it"])
    attention, mlp = 2048 * (2 * 8 + 2 * 2) * 256, 3 * 2048 * 16384
    assert EAGLE.extra_memory(Shard(model)).weights_bytes == 2 * (attention + mlp + 2 * 2048 + 2 * 2048**2)


def test_a_head_has_the_widths_of_its_own_config(tmp_path: Path) -> None:
    """A head of gpt-oss-120b with a reduced vocabulary: its MLP and LM head are its own, embeddings the target's."""
    keys: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 2880,
        "intermediate_size": 17280,
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "draft_vocab_size": 32000,
        "max_position_embeddings": 2048,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]},
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(keys))
    head = catalog.load_model(str(tmp_path / "config.json"))
    how = replace(EAGLE, model=head)
    target = Shard(catalog.load_model("gpt-oss-120b"), "mxfp4")
    attention, mlp = 2880 * (2 * 64 + 2 * 8) * 64, 3 * 2880 * 17280
    expected = attention + mlp + 2880 * 32000 + 3 * 2880 + 2 * 2880**2
    assert how.extra_memory(target).weights_bytes == 2 * expected


@pytest.mark.parametrize("name", ["Qwen3.5-27B", "Falcon-H1-7B-Instruct", "LFM2-1.2B", "Kimi-Linear-48B-A3B"])
def test_a_state_after_each_verified_token_is_written(tmp_path: Path, name: str) -> None:
    """A step reads a request's state once and writes four; plain decoding reads and writes one."""
    target = StepCost(Shard(read(tmp_path, CONFIGS[name])), H100, IDEAL)
    ngram = SpeculationSetup("ngram", (0.7,) * 3, 0.0).running_cost(target)
    state_ps = target.shard.model.n_state_layers * target.shard.state_bytes / H100.hbm_bytes_per_s * 1e12
    assert ngram.query_ps == pytest.approx(state_ps, abs=1)


def test_states_hold_inputs_of_the_convolution_for_each_verified_token(tmp_path: Path) -> None:
    """LFM2: two inputs of 2,048 channels, and three more; and four such states."""
    shard = Shard(read(tmp_path, CONFIGS["LFM2-1.2B"]))
    held = kv_layout(shard, 16, 2048, n_states=4)
    states = next(part for part in held.parts if part.group.kind == "state")
    assert states.bytes_per_request == 10 * (2 + 3) * 2048 * 2
    assert states.blocks.n_states == 4
