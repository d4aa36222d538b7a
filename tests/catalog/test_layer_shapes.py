"""Layers that differ in shape: heads, sizes of MLPs, and parts that some layers lack, by layer of a config.json."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from simserve.catalog.layers import Heads, LayerGroup
from simserve.cost.shard import Shard
from simserve.cost.weights import parameters
from simserve.errors import CatalogError
from tests.catalog.test_published import CONFIGS, read
from tests.fuzz.configs import config_of

SUPER, ELM = CONFIGS["Llama-3_3-Nemotron-Super-49B-v1"], CONFIGS["OpenELM-3B"]
LLAMA = {**config_of("llama"), "num_key_value_heads": [8, 4] * 16, "intermediate_size": [14336] * 8 + [7168] * 24}

EACH = "; a list must have one for each layer, of heads or sizes of MLPs alone"

Change = Callable[[dict[str, Any]], None]


def changed(config: dict[str, Any], change: Change) -> dict[str, Any]:
    """A config.json with a change; blocks alike in it are none in the change."""
    copy: dict[str, Any] = {
        key: [deepcopy(each) for each in value] if isinstance(value, list) else value for key, value in config.items()
    }
    change(copy)
    return copy


def in_block(part: str, layer: int = 3, **keys: Any) -> Change:
    """Keys of the attention or MLP of a layer of Nemotron-NAS."""
    return lambda config: config["block_configs"][layer][part].update(keys)


def entry(key: str, value: Any) -> Change:
    """The fourth entry of a list."""
    return lambda config: config[key].__setitem__(3, value)


def test_blocks_without_attention_and_mlps_of_six_sizes_make_nemotron_super(tmp_path: Path) -> None:
    model = read(tmp_path, SUPER)
    assert model.groups == (LayerGroup("full", 49), LayerGroup("none", 31))
    sizes = {28672: 49, 17920: 1, 14336: 6, 7168: 10, 5632: 8, 2816: 6}
    assert (dict(model.mlps), model.intermediate_size, model.n_bare_layers) == (sizes, 28672, 0)
    assert (model.n_heads, model.n_kv_heads, model.head_dim) == (64, 8, 128)
    attention, norms = 49 * (8192 * 80 * 128 + 8192 * 8192), (80 + 49 + 1) * 8192
    mlps = sum(3 * 8192 * size * n for size, n in sizes.items())
    assert sum(vars(parameters(Shard(model))).values()) == 2 * 128_256 * 8192 + attention + mlps + norms


def test_a_square_matrix_may_be_instead_of_attention_or_an_mlp_and_nothing_instead_of_both(tmp_path: Path) -> None:
    def linear(config: dict[str, Any]) -> None:
        in_block("attention", 0, n_heads_in_group=None, replace_with_linear=True)(config)
        in_block("ffn", 1, ffn_mult=None, replace_with_linear=True)(config)
        in_block("ffn", 6, ffn_mult=None, no_op=True)(config)

    plain, model = read(tmp_path, SUPER), read(tmp_path, changed(SUPER, linear))
    assert model.groups == (LayerGroup("matrix", 1), LayerGroup("full", 48), LayerGroup("none", 31))
    assert (dict(model.mlps)[0], model.n_bare_layers, sum(n for _, n in model.mlps)) == (1, 1, 79)
    before, after = parameters(Shard(plain)), parameters(Shard(model))
    assert after.attention == before.attention - 8192 * 80 * 128  # of which the output is as large
    assert after.mlp == before.mlp - 3 * 8192 * (28672 + 14336) + 8192 * 8192


def test_newer_files_have_the_size_of_an_mlp_in_place_of_its_ratio(tmp_path: Path) -> None:
    def newer(config: dict[str, Any]) -> None:
        for each in config["block_configs"]:
            size = -(-int(2 * each["ffn"].pop("ffn_mult") * 8192 / 3) // 256) * 256
            each["ffn"] |= {"intermediate_size": size, "gated": True, "hidden_act": "silu", "moe": None}

    assert read(tmp_path, changed(SUPER, newer)) == read(tmp_path, SUPER)


def test_lists_of_heads_and_sizes_by_layer_are_read_in_any_family(tmp_path: Path) -> None:
    model = read(tmp_path, LLAMA)
    assert model.groups == (LayerGroup("full", 16), LayerGroup("full", 16, heads=Heads(32, 4, 128)))
    assert (model.mlps, model.n_kv_heads) == (((14336, 8), (7168, 24)), 8)
    assert Shard(model).kv_bytes_per_token == 16 * (8 + 4) * 2 * 2 * 128
    elm = read(tmp_path, ELM)
    assert [(group.n_layers, group.heads and group.heads.n_kv_heads) for group in elm.groups] == [
        (4, 3), (14, 4), (12, 5), (6, None),
    ]  # fmt: skip
    assert (elm.mlps[0], elm.mlps[6], elm.mlps[-1]) == ((1536, 1), (3328, 1), (12288, 1))  # 3072 x 1.1 is 3379.2
    gemma = CONFIGS["Gemma-3n-E4B-it"]["text_config"]
    sizes = [8192] * 10 + [16384] * (gemma["num_hidden_layers"] - 10)
    config = {"model_type": "gemma3n", "text_config": {**gemma, "intermediate_size": sizes}}
    assert read(tmp_path, config).mlps == ((8192, 10), (16384, len(sizes) - 10))


def test_experts_of_a_list_must_be_alike(tmp_path: Path) -> None:
    hunyuan = CONFIGS["Hunyuan-A13B-Instruct"]
    assert read(tmp_path, {**hunyuan, "moe_topk": [8] * 32}) == read(tmp_path, {**hunyuan, "moe_topk": 8})
    with pytest.raises(CatalogError, match=rf"moe_topk: must be a whole number, got .*{EACH}"):
        read(tmp_path, {**hunyuan, "moe_topk": [8] * 31 + [1]})


REFUSED: list[tuple[dict[str, Any], Change, str]] = [
    (SUPER, in_block("attention", stride=4), r"got block_configs.attention.stride: \[null, null, null, 4,"),
    (SUPER, in_block("ffn", sparsify="2:4"), r"not understood, got block_configs.ffn.sparsify: "),
    (SUPER, in_block("attention", window_length=8), "not understood, got block_configs.attention.window_length: "),
    (SUPER, lambda config: config["block_configs"].pop(), f"block_configs.* got .*{EACH}"),
    (SUPER, entry("block_configs", 5), "block_configs.attention.n_heads_in_group is missing; layers with attention"),
    (
        SUPER,
        in_block("attention", n_heads_in_group=7),
        "block_configs.attention.n_heads_in_group must divide num_attention_heads, 64, got 7; compare both",
    ),
    (SUPER, in_block("attention", n_heads_in_group=None), "n_heads_in_group is missing; layers with attention have it"),
    (SUPER, in_block("attention", no_op=3), "block_configs.attention.no_op: must be true or false, got 3; compare it"),
    (SUPER, in_block("ffn", ffn_mult=None), "block_configs.ffn.intermediate_size is 0; layers with an MLP need its"),
    (SUPER, in_block("ffn", ffn_mult=-1), "block_configs.ffn.ffn_mult: must be more than 0, got -1; compare it"),
    (SUPER, in_block("ffn", gated=False), "block_configs.ffn.gated: only true is supported, got false; choose another"),
    (ELM, lambda config: config["num_kv_heads"].pop(), f"num_kv_heads: must be a whole number, got .*{EACH}"),
    (ELM, lambda config: config["ffn_multipliers"].pop(), f"ffn_multipliers: must be a number, got .*{EACH}"),
    (ELM, entry("num_kv_heads", 5), "num_kv_heads must divide num_query_heads 12, got 5; compare both"),
    (ELM, lambda config: config.pop("num_kv_heads"), "num_kv_heads is missing; "),
    (LLAMA, entry("intermediate_size", None), "intermediate_size is missing; layers with an MLP need its inner size"),
    (
        {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8},
        lambda config: None,
        "intermediate_size: experts, latent vectors or states that differ by layer are not supported yet",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "change", "text"), REFUSED, ids=[text[:40] for *_, text in REFUSED])
def test_wrong_lists_and_blocks_are_refused_by_key_rule_value_and_remedy(
    tmp_path: Path, config: dict[str, Any], change: Change, text: str
) -> None:
    with pytest.raises(CatalogError, match=text):
        read(tmp_path, changed(config, change))


def test_a_list_by_layer_in_a_family_of_letters_is_refused(tmp_path: Path) -> None:
    nemotron = CONFIGS["Nemotron-H-56B"]
    sizes = [32768] * 117 + [1024]
    with pytest.raises(CatalogError, match=f"intermediate_size: must be a whole number, got .*{EACH}"):
        read(tmp_path, {**nemotron, "intermediate_size": sizes})
