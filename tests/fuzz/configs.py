"""A config.json of every family that simserve understands, with the keys of its published files."""

from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
COMMON: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
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
INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
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
    "num_hidden_layers": 54,
}
GPT_OSS = {
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_local_experts": 128,
    "experts_per_token": 4,
    "num_experts_per_tok": 4,
    "head_dim": 64,
    "sliding_window": 128,
    "initial_context_length": 4096,
    "swiglu_limit": 7.0,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}
FP8_BLOCK = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": INT4}}, "ignore": []}
QWEN_3_MOE = {**QWEN_MOE, **EXPERTS, "norm_topk_prob": True, "router_aux_loss_coef": 0.001}
QWEN_3_5_MOE = {**DELTA_NET, **EXPERTS, "num_experts": 256, "intermediate_size": None}
GEMMA_3 = {**GEMMA, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}

LATENT = {key: DEEPSEEK[key] for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
LINEAR = {key: value for key, value in DELTA_NET.items() if key.startswith("linear_")}
LOCAL = (["sliding_attention"] * 3 + ["full_attention"]) * 8
DELTA = (["linear_attention"] * 3 + ["full_attention"]) * 8

KEYS: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": {"rope_type": "llama3"}, "mlp_bias": False, "pretraining_tp": 1},
    "mistral": {"sliding_window": 4096, "attention_dropout": 0.0},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": {**QWEN, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
    "qwen2_moe": {**QWEN, **QWEN_MOE, **EXPERTS, "shared_expert_intermediate_size": 5632},
    "qwen3": {**QWEN, "attention_bias": False, "quantization_config": COMPRESSED},
    "qwen3_moe": {**QWEN_3_MOE, **FP8_BLOCK},
    "gemma": {"hidden_activation": None},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid"},
    "gemma3": {"text_config": {**GEMMA_3, "model_type": "gemma3_text"}, "vision_config": {"num_channels": 3}},
    "gemma3_text": GEMMA_3,
    "phi3": {"sliding_window": 2047, "resid_pdrop": 0.0, "original_max_position_embeddings": 4096},
    "phimoe": {"num_local_experts": 16, "num_experts_per_tok": 2, "sliding_window": 2047},
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": {**DEEPSEEK, **FP8_BLOCK, "num_nextn_predict_layers": 1},
    "deepseek_v32": {**DEEPSEEK, **INDEXER},
    "kimi_k2": {**DEEPSEEK, "num_nextn_predict_layers": 0},
    "glm4": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "glm4_moe": {**EXPERTS, **GLM_MOE},
    "glm_moe_dsa": {**DEEPSEEK, **INDEXER, "indexer_rope_interleave": True},
    "llama4": {"text_config": {**LLAMA_4, "model_type": "llama4_text"}, "vision_config": {"hidden_size": 1408}},
    "llama4_text": LLAMA_4,
    "cohere": {"logit_scale": 0.0625, "use_qk_norm": False, "layer_norm_eps": 1e-5},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "olmo2": {"attention_bias": False},
    "olmo3": {"sliding_window": 4096, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8},
    "exaone4": {"sliding_window": 4096, "sliding_window_pattern": "LLLG", "reordered_norm": True},
    "gpt_oss": GPT_OSS,
    "granite": GRANITE,
    "granitemoe": {**GRANITE, "num_local_experts": 32, "num_experts_per_tok": 8, "intermediate_size": 512},
    "granitemoehybrid": {**GRANITE, **GRANITE_HYBRID, **EXPERTS, "num_local_experts": 72},
    "mimo": {"num_nextn_predict_layers": 1, "use_sliding_window": False, "max_window_layers": 36},
    "minimax_m2": {**EXPERTS, "num_local_experts": 256, "attn_type_list": [1] * 32, "use_mtp": True},
    "nemotron_h": NEMOTRON_H,
    "qwen3_next": {**QWEN_3_MOE, **DELTA_NET, "shared_expert_intermediate_size": 512},
    "qwen3_5": DELTA_NET,
    "qwen3_5_text": DELTA_NET,
    "qwen3_5_moe": QWEN_3_5_MOE,
    "qwen3_5_moe_text": QWEN_3_5_MOE,
    "smollm3": {"no_rope_layers": [1, 1, 1, 0] * 8, "no_rope_layer_interval": 4, "use_sliding_window": False},
    "starcoder2": {"sliding_window": 4096, "use_bias": True},
    "bloom": {"n_layer": 32, "n_head": 32, "seq_length": 2048, "num_key_value_heads": 32},
    "gpt2": {"n_layer": 32, "n_head": 32, "n_embd": 4096, "n_positions": 1024, "n_inner": None},
    "gpt_neox": {"rotary_pct": 0.25, "use_parallel_residual": True},
    "gptj": {"n_layer": 32, "n_head": 32, "n_embd": 4096, "n_positions": 2048, "n_inner": None},
    "nemotron": {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "opt": {"ffn_dim": 14336, "word_embed_proj_dim": 4096, "do_layer_norm_before": True},
    "phi": {"partial_rotary_factor": 0.4, "qk_layernorm": False},
    "aria_text": {"intermediate_size": 1664, "moe_num_experts": 64, "moe_topk": 6, "moe_num_shared_experts": 2},
    "cohere2_moe": {
        "num_experts": 128,
        "intermediate_size": 1024,
        "num_experts_per_tok": 8,
        "sliding_window": 4096,
        "layer_types": LOCAL,
    },
    "gpt_bigcode": {
        "n_layer": 32,
        "n_head": 32,
        "n_embd": 4096,
        "n_positions": 8192,
        "n_inner": None,
        "multi_query": True,
        "num_key_value_heads": 1,
    },
    "granite_swa": {**GRANITE, "sliding_window": 128, "layer_rope_theta": [0.0, 10000.0] * 16},
    "hunyuan_vl_text": {"attention_head_dim": 128, "org_vocab_size": 128256, "eod_token_id": 3},
    "hy_v3": {**EXPERTS, "num_experts": 192, "num_shared_experts": 1, "router_scaling_factor": 2.8},
    "hyperclovax": {**GRANITE, "use_post_norm": True},
    "jais2": {"hidden_act": "relu2", "mlp_bias": True},
    "lara_mini": {**EXPERTS, **LINEAR, "num_experts": 128, "sliding_window": 512, "layer_types": DELTA},
    "olmo_hybrid": {**LINEAR, "linear_allow_neg_eigval": True, "layer_types": DELTA},
    "youtu": {**LATENT, "q_lora_rank": 1536, "embedding_initializer_range": 0.04},
    "glm4_moe_lite": {**EXPERTS, **GLM_MOE, **LATENT},
    "ernie4_5": {"head_dim": 128},
    "granitemoe_swa": {
        **GRANITE,
        "intermediate_size": 512,
        "num_local_experts": 32,
        "num_experts_per_tok": 8,
        "sliding_window": 128,
    },
    "sarvam_mla": {**EXPERTS, **LATENT, "n_routed_experts": 128, "first_k_dense_replace": 1},
    "vaultgemma": {**GEMMA, "layer_types": LOCAL},
}
"""Keys of each family beyond those of all."""


def config_of(family: str) -> dict[str, Any]:
    """Return the config.json of a family; where its files keep the language model apart, so does this one."""
    own = {**LLAMA, **COMMON, "model_type": family, **KEYS[family]}
    if "text_config" not in own:
        return own
    shared = {key: own.pop(key) for key in (*LLAMA, *COMMON) if key != "model_type"}
    return {**own, "text_config": {**shared, **own["text_config"]}}
