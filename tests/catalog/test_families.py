"""Which keys of a config.json are understood, and which are refused rather than taken for full attention."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.catalog.families import families
from simserve.catalog.latent import Indexer
from simserve.catalog.states import StateLayers
from simserve.errors import CatalogError
from tests.catalog.test_hugging_face import load
from tests.catalog.test_published import CONFIGS
from tests.fuzz.configs import (
    COMMON,
    DEEPSEEK,
    GRANITE,
    GRANITE_HYBRID,
    INDEXER,
    KEYS,
    LLAMA,
    NEMOTRON_H,
    config_of,
)

KINDS = {
    **dict.fromkeys(("mistral", "phi3", "phimoe", "starcoder2"), "windowed"),
    **dict.fromkeys(("cohere2", "exaone4", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "olmo3"), "windowed full"),
    **dict.fromkeys(("llama4", "llama4_text"), "chunked full"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2"), "latent"),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), "state full"),
    **dict.fromkeys(("granitemoehybrid", "nemotron_h", "lara_mini", "olmo_hybrid"), "state full"),
    **dict.fromkeys(("youtu", "glm4_moe_lite", "sarvam_mla"), "latent"),
    **dict.fromkeys(("cohere2_moe", "vaultgemma"), "windowed full"),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), "full windowed"),
}
"""Kinds of layers of a family, in order of their first; full in all others."""


@pytest.mark.parametrize("family", KEYS)
def test_files_of_all_families_are_read_with_their_kinds_of_layers(tmp_path: Path, family: str) -> None:
    model = load(tmp_path, config_of(family))
    assert " ".join(group.kind for group in model.groups) == KINDS.get(family, "full")
    assert model.n_layers == (33 if family == "nemotron_h" else 32)


def test_every_file_of_a_family_has_a_config_for_the_tests() -> None:
    texts = (config.get("text_config") or config.get("llm_config") or config for config in CONFIGS.values())
    known = {*KEYS, *(text.get("model_type", "mamba_ssm") for text in texts)}
    assert not [family.model_types for family in families().values() if not known & {*family.model_types}]


MIXED = {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 4}
MAMBA = {"mamba_d_state": 128, "mamba_expand": 2}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "other_minimax_text_01",
        {**MIXED, "layernorm_full_attention_alpha": 3.5},
        "attn_type_list: layers of lightning attenti",
    ),
    (
        "other_bailing_moe_linear",
        {"layer_group_size": 5, "group_norm_size": 4},
        "layer_group_size: layers of linear attention",
    ),
    (
        "other_hunyuan",
        {"use_cla": True, "cla_share_factor": 2},
        r"use_cla: layers that share .* not supported yet, got true;",
    ),
    (
        "mllama_text_model",
        {"cross_attention_layers": [3, 8]},
        r"cross_attention_layers: layers of cross attention \(SGLang runs .*\) are not supported yet, got \[3, 8\]",
    ),
    (
        "recurrent_gemma",
        {"block_types": ["recurrent", "attention"], "lru_width": 2560},
        "block_types: recurrent layers",
    ),
    ("other_jamba", {"attn_layer_period": 8, **MAMBA}, "attn_layer_period: state-space and hybrid models"),
    ("other_mamba", {"state_size": 16}, "state_size: state-space and hybrid models"),
    ("other_zamba2", {**MAMBA, "layers_block_type": ["mamba"] * 32}, "mamba_d_state: state-space and hybrid models"),
    ("other_falcon_h1", {"ssm_multipliers": [1.0], **MAMBA}, "ssm_multipliers: state-space and hybrid models"),
    ("other_h", {"hybrid_override_pattern": "M-M*"}, 'hybrid_override_pattern: .* not supported yet, got "M-M[*]"'),
    (
        "nemotron_h",
        {**NEMOTRON_H, "num_hidden_layers": 32, "hybrid_override_pattern": "ME" * 15 + "M*"},
        "num_local_experts or num_experts or n_routed_experts is missing; layers with experts need their number",
    ),
    (
        "nemotron_h",
        {**NEMOTRON_H, "num_hidden_layers": 32, "hybrid_override_pattern": "--" * 15 + "M*"},
        "hybrid_override_pattern: layers of type - without a layer to follow are not supported yet",
    ),
    (
        "nemotron_h",
        {**NEMOTRON_H, "hybrid_override_pattern": "M-M*"},
        "hybrid_override_pattern must name the 54 layers of num_hidden_layers, got 4",
    ),
    ("nemotron_h", {**NEMOTRON_H, "ssm_state_size": 0}, "ssm_state_size: must be at least 1, got 0"),
    (
        "granitemoehybrid",
        {**GRANITE_HYBRID, "mamba_n_heads": None},
        "mamba_n_heads is missing; mamba_d_head follows from mamba_expand and hidden_size",
    ),
    ("granite", {"layer_types": ["mamba"] * 32}, "layer_types: layers of type mamba are not supported yet"),
    (
        "other_kimi_linear",
        {"linear_attn_config": {"kda_layers": [1]}},
        "linear_attn_config: layers of linear attention",
    ),
    ("other_gemma3n_text", {"num_kv_shared_layers": 15}, "num_kv_shared_layers: layers that share keys and values"),
    ("other_lfm2", {"full_attn_idxs": [2, 5], "conv_L_cache": 3}, "full_attn_idxs: layers of convolution"),
    ("other_nas", {"block_configs": [{}]}, r"not understood, got block_configs: \[\{\}\]"),
    (
        "deepseek_v32",
        {**DEEPSEEK, "index_topk": 2048},
        "index_n_heads and index_head_dim are missing; sparse attention",
    ),
    (
        "glm_moe_dsa",
        {**DEEPSEEK, **INDEXER, "indexer_types": ["full", "shared"] * 16},
        "indexer_types: layers of type shared are not supported yet",
    ),
    (
        "nemotron_h",
        {**NEMOTRON_H, "hybrid_override_pattern": None, "layers_block_type": ["linear_attention", "mlp"] * 27},
        r"layers_block_type: lists of layers rather than letters \(hybrid_override_pattern with M, ",
    ),
    ("other_v32", {**DEEPSEEK, **INDEXER}, "index_topk: models with sparse attention are not supported yet, got 2048"),
    ("deepseek_v32", INDEXER, r"index_topk: sparse attention without latent vectors \(kv_lora_rank\) is not"),
]


@pytest.mark.parametrize(("family", "keys", "text"), REFUSED, ids=[family for family, *_ in REFUSED])
def test_what_is_no_plain_attention_is_refused_by_the_name_of_its_key(
    tmp_path: Path, family: str, keys: dict[str, Any], text: str
) -> None:
    with pytest.raises(CatalogError, match=text):
        load(tmp_path, {**LLAMA, **COMMON, **keys, "model_type": family})


def test_a_key_that_nobody_knows_is_an_error_with_its_value_and_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CatalogError) as caught:
        load(tmp_path, attention_stride=4, rare_feature=False)
    assert str(caught.value).endswith(
        "config.json: keys of model_type llama that may change sizes or attention are not understood, "
        "got attention_stride: 4; delete them in a copy of the file if they change neither, else choose another model"
    )
    with pytest.raises(
        CatalogError, match=r"keys of model_type brand_new .*, got a: 1, b: \[2\], c: 3 and 2 more; delet"
    ):
        load(tmp_path, model_type="brand_new", a=1, b=[2], c=3, d=4, e="5")


def test_an_unknown_family_is_read_where_all_its_keys_are_known(tmp_path: Path) -> None:
    assert load(tmp_path, {**LLAMA, **COMMON, "model_type": "brand_new"}).n_layers == 32
    with pytest.raises(CatalogError, match=r"keys of a file without model_type .* got stride: 4"):
        load(tmp_path, model_type=..., stride=4)


def test_a_key_of_one_family_is_unknown_to_others(tmp_path: Path) -> None:
    load(tmp_path, model_type="smollm3", no_rope_layers=[1, 0] * 16)
    with pytest.raises(CatalogError, match=r"keys of model_type llama .* got no_rope_layers"):
        load(tmp_path, no_rope_layers=[1, 0] * 16)


def test_of_a_model_with_images_only_the_language_model_counts(tmp_path: Path) -> None:
    outer = {"model_type": "gemma3", "vision_config": {"num_channels": 3}, "mm_tokens_per_image": 256}
    inner = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    model = load(tmp_path, {**outer, "text_config": {**inner, "model_type": "gemma3_text"}})  # as Gemma 3 4B has it
    assert (model.n_heads, model.n_kv_heads, model.head_dim, model.vocab_size) == (8, 4, 256, 262208)
    assert [(group.n_layers, group.window) for group in model.groups] == [(29, 1024), (5, None)]
    assert model.source == "Hugging Face config.json, config.json; its text, without vision_config"
    with pytest.raises(CatalogError, match="got altup_active_idx: 1"):
        load(tmp_path, {**outer, "text_config": {**inner, "altup_active_idx": 1}})


def test_a_model_in_the_catalog_lists_its_groups_as_plain_data() -> None:
    shown = catalog.describe("models", "gpt-oss-120b")["groups"]
    assert shown == [{"kind": "windowed", "n_layers": 18, "window": 128}, {"kind": "full", "n_layers": 18}]
    assert json.dumps(catalog.describe("models", "qwen3-next-80b-a3b")["linear"])


def test_the_published_file_of_qwen3_next_gives_what_the_catalog_has(tmp_path: Path) -> None:
    sizes = {
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": 5120,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
    }
    linear = {
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
    }
    experts = {
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001,
    }
    read = load(tmp_path, {**COMMON, **sizes, **linear, **experts, "partial_rotary_factor": 0.25, "rope_scaling": None})
    shipped = catalog.load_model("qwen3-next-80b-a3b")
    assert vars(read) == {**vars(shipped), "name": "model", "source": "Hugging Face config.json, config.json"}


def test_layers_of_a_kind_have_the_sizes_of_their_family(tmp_path: Path) -> None:
    qwen, granite, nemotron = (
        load(tmp_path, config_of(family)) for family in ("qwen3_5_moe_text", "granitemoehybrid", "nemotron_h")
    )
    heads = {"n_key_heads": 16, "key_head_dim": 128, "n_value_heads": 32, "value_head_dim": 128}
    assert qwen.linear == StateLayers.of("gated_delta_net", 4, **heads, conv_size=4)
    assert (qwen.gated_attention, qwen.n_mtp_layers, qwen.n_dense_layers) == (True, 1, 0)
    assert granite.linear == StateLayers.of("mamba2", n_heads=128, head_dim=64, state_dim=128, n_groups=1, conv_size=4)
    assert granite.experts is not None and granite.experts.shared_size == 1536
    assert nemotron.linear == StateLayers.of(
        "mamba2", 4, n_heads=64, head_dim=64, state_dim=128, n_groups=8, conv_size=4
    )
    assert (nemotron.head_dim, nemotron.gated_mlp, nemotron.n_bare_layers) == (128, False, 12)
    dense = {**LLAMA, **COMMON, **GRANITE, **GRANITE_HYBRID, "num_local_experts": 0, "model_type": "granitemoehybrid"}
    assert load(tmp_path, dense).intermediate_size == 1536
    sparse = load(tmp_path, {**LLAMA, **COMMON, **DEEPSEEK, **INDEXER, "model_type": "deepseek_v32"})
    assert sparse.indexer == Indexer(n_heads=64, head_dim=128, top_k=2048)
