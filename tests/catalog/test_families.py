"""Which keys of a config.json are understood, and which are refused rather than taken for full attention."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.catalog.specs import Indexer, LinearAttention, Mamba2
from simserve.errors import CatalogError
from tests.catalog.test_hugging_face import LLAMA, load

COMMON: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0",
    "use_cache": True,
}
"""Keys that most files have."""

EXPERTS = {"num_experts_per_tok": 8, "moe_intermediate_size": 768}
DEEPSEEK = {
    **EXPERTS,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "n_group": 8,
    "topk_group": 3,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "ep_size": 1,
    "pretraining_tp": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096}
LLAMA_4 = {
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "interleave_moe_layer_step": 1,
    "intermediate_size_mlp": 16384,
    "no_rope_layers": [],
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "router_jitter_noise": 0.0,
    "use_qk_norm": True,
}
GLM_MOE = {"n_routed_experts": 128, "n_shared_experts": 1, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1}
QWEN = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
QWEN_MOE = {"num_experts": 128, "decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False}
GRANITE = {"attention_multiplier": 0.1, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.2}

INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
DELTA_NET = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mlp_only_layers": [],
}
GRANITE_HYBRID = {
    "layer_types": (["mamba"] * 7 + ["attention"]) * 4,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "shared_intermediate_size": 1536,
}
NEMOTRON_H = {
    "hybrid_override_pattern": "M-M*-" * 10 + "M*-M",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "attention_head_dim": 128,
    "mlp_hidden_act": "relu2",
}

ACCEPTED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("llama", {"rope_scaling": {"rope_type": "llama3"}, "mlp_bias": False, "pretraining_tp": 1}, ["full"]),
    ("mistral", {"sliding_window": 4096, "attention_dropout": 0.0}, ["windowed"]),
    ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}, ["full"]),
    ("qwen2", QWEN, ["full"]),
    ("qwen2_moe", {**QWEN, **QWEN_MOE, **EXPERTS, "shared_expert_intermediate_size": 5632}, ["full"]),
    ("qwen3", {**QWEN, "attention_bias": False}, ["full"]),
    ("qwen3_moe", {**QWEN_MOE, **EXPERTS, "norm_topk_prob": True, "router_aux_loss_coef": 0.001}, ["full"]),
    ("gemma", {"hidden_activation": None}, ["full"]),
    ("gemma2", {**GEMMA, "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid"}, ["windowed", "full"]),
    ("gemma3_text", {**GEMMA, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}, ["windowed", "full"]),
    ("phi3", {"sliding_window": 2047, "resid_pdrop": 0.0, "original_max_position_embeddings": 4096}, ["windowed"]),
    ("deepseek_v2", DEEPSEEK, ["latent"]),
    ("deepseek_v3", {**DEEPSEEK, "num_nextn_predict_layers": 1}, ["latent"]),
    ("kimi_k2", {**DEEPSEEK, "num_nextn_predict_layers": 0}, ["latent"]),
    ("glm4", {"partial_rotary_factor": 0.5, "attention_bias": True}, ["full"]),
    ("glm4_moe", {**EXPERTS, **GLM_MOE}, ["full"]),
    ("llama4_text", LLAMA_4, ["chunked", "full"]),
    ("cohere", {"logit_scale": 0.0625, "use_qk_norm": False, "layer_norm_eps": 1e-5}, ["full"]),
    ("cohere2", {"sliding_window": 4096, "sliding_window_pattern": 4}, ["windowed", "full"]),
    ("olmo2", {"attention_bias": False}, ["full"]),
    ("granite", GRANITE, ["full"]),
    ("granitemoe", {**GRANITE, "num_local_experts": 32, "num_experts_per_tok": 8}, ["full"]),
    ("deepseek_v32", {**DEEPSEEK, **INDEXER}, ["latent"]),
    ("minimax_m2", {**EXPERTS, "num_local_experts": 256, "attn_type_list": [1] * 32, "use_mtp": True}, ["full"]),
    ("qwen3_5_moe_text", {**DELTA_NET, **EXPERTS, "num_experts": 256, "intermediate_size": None}, ["state", "full"]),
    ("granitemoehybrid", {**GRANITE, **GRANITE_HYBRID, **EXPERTS, "num_local_experts": 72}, ["state", "full"]),
    ("nemotron_h", {**NEMOTRON_H, "num_hidden_layers": 54}, ["state", "full"]),
]


@pytest.mark.parametrize(("family", "keys", "kinds"), ACCEPTED, ids=[family for family, *_ in ACCEPTED])
def test_files_of_common_families_are_read_with_their_kinds_of_layers(
    tmp_path: Path, family: str, keys: dict[str, Any], kinds: list[str]
) -> None:
    model = load(tmp_path, {**LLAMA, **COMMON, **keys, "model_type": family})
    assert [group.kind for group in model.groups] == kinds
    assert model.n_layers == (33 if family == "nemotron_h" else 32)


MIXED = {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 4}
MAMBA = {"mamba_d_state": 128, "mamba_expand": 2}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "minimax_text_01",
        {**MIXED, "layernorm_full_attention_alpha": 3.5},
        "attn_type_list: layers of lightning attenti",
    ),
    (
        "bailing_moe_linear",
        {"layer_group_size": 5, "group_norm_size": 4},
        "layer_group_size: layers of linear attention",
    ),
    (
        "hunyuan",
        {"use_cla": True, "cla_share_factor": 2},
        r"use_cla: layers that share .* not supported yet, got true;",
    ),
    (
        "recurrent_gemma",
        {"block_types": ["recurrent", "attention"], "lru_width": 2560},
        "block_types: recurrent layers",
    ),
    ("jamba", {"attn_layer_period": 8, **MAMBA}, "attn_layer_period: state-space and hybrid models"),
    ("mamba", {"state_size": 16}, "state_size: state-space and hybrid models"),
    ("zamba2", {**MAMBA, "layers_block_type": ["mamba"] * 32}, "mamba_d_state: state-space and hybrid models"),
    ("falcon_h1", {"ssm_multipliers": [1.0], **MAMBA}, "ssm_multipliers: state-space and hybrid models"),
    ("other_h", {"hybrid_override_pattern": "M-M*"}, 'hybrid_override_pattern: .* not supported yet, got "M-M[*]"'),
    (
        "nemotron_h",
        {**NEMOTRON_H, "hybrid_override_pattern": "ME" * 15 + "M*"},
        "hybrid_override_pattern: layers of type E are not supported yet",
    ),
    (
        "nemotron_h",
        {**NEMOTRON_H, "hybrid_override_pattern": "--" * 15 + "M*"},
        "hybrid_override_pattern: layers of type - without a layer to follow are not supported yet",
    ),
    (
        "nemotron_h",
        {**NEMOTRON_H, "hybrid_override_pattern": "M-M*"},
        "hybrid_override_pattern must name the 32 layers of num_hidden_layers, got 4",
    ),
    ("nemotron_h", {**NEMOTRON_H, "ssm_state_size": 0}, "ssm_state_size must be a whole number of at least 1, got 0"),
    ("granitemoehybrid", {**GRANITE_HYBRID, "mamba_n_heads": None}, "mamba_n_heads must be a whole number"),
    ("granite", {"layer_types": ["mamba"] * 32}, "layer_types: layers of type mamba are not supported yet"),
    ("kimi_linear", {"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config: layers of linear attention"),
    ("gemma3n_text", {"num_kv_shared_layers": 15}, "num_kv_shared_layers: layers that share keys and values"),
    ("lfm2", {"full_attn_idxs": [2, 5], "conv_L_cache": 3}, "full_attn_idxs: layers of convolution"),
    ("nemotron-nas", {"block_configs": [{}]}, "block_configs: layers that differ in shape"),
    ("deepseek_v32", {**DEEPSEEK, "index_topk": 2048}, "index_n_heads must be a whole number of at least 1, got null"),
    ("glm_moe_dsa", {**INDEXER, "indexer_types": ["full"]}, r'are not understood, got indexer_types: \["full"\]'),
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
        load(tmp_path, {**LLAMA, **COMMON, **keys, "model_type": family})
        for family, keys, _ in ACCEPTED
        if family in ("qwen3_5_moe_text", "granitemoehybrid", "nemotron_h")
    )
    assert qwen.linear == LinearAttention(16, 128, 32, 128, conv_size=4, state_value_bytes=4)
    assert (qwen.gated_attention, qwen.n_mtp_layers, qwen.n_dense_layers) == (True, 1, 0)
    assert granite.linear == Mamba2(128, 64, 128, n_groups=1, conv_size=4)
    assert granite.experts is not None and granite.experts.shared_size == 1536
    assert nemotron.linear == Mamba2(64, 64, 128, n_groups=8, conv_size=4, state_value_bytes=4)
    assert (nemotron.head_dim, nemotron.gated_mlp, nemotron.n_bare_layers) == (128, False, 12)
    dense = {**LLAMA, **COMMON, **GRANITE, **GRANITE_HYBRID, "num_local_experts": 0, "model_type": "granitemoehybrid"}
    assert load(tmp_path, dense).intermediate_size == 1536
    sparse = load(tmp_path, {**LLAMA, **COMMON, **DEEPSEEK, **INDEXER, "model_type": "deepseek_v32"})
    assert sparse.indexer == Indexer(n_heads=64, head_dim=128, top_k=2048)
