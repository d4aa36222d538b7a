"""Families of a Hugging Face config.json: which keys are understood, which do not matter, and what a family leaves out.

Key names and defaults follow the configuration classes of the transformers library. Every other key with a value is an
error, as it may change sizes or attention.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import CatalogError


def _words(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


READ = _words(
    """
    model_type hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size
    intermediate_size_mlp dense_intermediate_size vocab_size max_position_embeddings tie_word_embeddings
    quantization_config sliding_window use_sliding_window max_window_layers layer_types sliding_window_pattern
    num_local_experts num_experts n_routed_experts num_experts_per_tok experts_per_token moe_intermediate_size
    n_shared_experts shared_expert_intermediate_size shared_intermediate_size first_k_dense_replace moe_layer_freq
    decoder_sparse_step mlp_only_layers kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    num_nextn_predict_layers num_kv_heads n_kv_heads n_head_kv multi_query multi_query_group_num is_encoder_decoder
    n_group topk_group
    """
)
"""Keys that the reader uses, whatever the family."""

IGNORED = _words(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation
    auto_map for_llm_compressor torch_dtype dtype transformers_version transformers.js_config unsloth_fixed
    unsloth_version use_cache cache_implementation use_flash_attn use_fast_attn model_name name_or_path license

    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id image_token_id
    image_token_index video_token_id vision_start_token_id vision_end_token_id vision_token_id audio_token_id
    boi_token_index eoi_token_index tokenizer_class prefix id2label label2id finetuning_task problem_type
    task_specific_params num_labels

    add_cross_attention bad_words_ids begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id is_decoder length_penalty max_length max_new_tokens min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_scores pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    suppress_tokens temperature tf_legacy_loss tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16

    attention_dropout attn_pdrop classifier_dropout dropout embd_pdrop embedding_dropout ffdropout hidden_dropout
    hidden_dropout_prob output_dropout resid_pdrop residual_dropout initializer_range initializer_factor init_std
    pretraining_tp

    rope_theta rope_scaling rope_parameters rope_local_base_freq rope_interleave rope_ratio rope_pct rotary_dim
    rotary_pct rotary_base rotary_emb_base partial_rotary_factor original_max_position_embeddings
    max_sequence_length model_max_length seq_length n_ctx mrope_section use_mrope position_embedding_type
    attn_temperature_tuning attn_scale floor_scale long_factor short_factor

    hidden_act hidden_activation activation_function hidden_size_per_head rms_norm_eps layer_norm_eps norm_eps norm_type
    norm_epsilon layer_norm_epsilon layer_norm_bias use_qk_norm qk_norm qk_layernorm use_bias bias attention_bias
    attention_out_bias mlp_bias qkv_bias use_qkv_bias lm_head_bias use_parallel_residual parallel_residual
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar clip_qkv logit_scale logits_scaling
    attention_multiplier embedding_multiplier residual_multiplier scale_emb scale_depth dim_model_base mup_denominator

    aux_loss_alpha aux_loss_coef ep_size input_jitter_noise moe_router_enable_expert_bias norm_topk_prob
    output_router_logits routed_scaling_factor router_aux_loss_coef router_dtype router_jitter_noise router_z_loss_coef
    scoring_func score_function seq_aux topk_method swiglu_limit use_routing_bias scale_router_weights
    qk_head_dim
    """
)
"""Keys without influence on sizes and on which keys a token attends: names, tokens, generation, training, positions,
norms, biases, scales and the choice of experts."""

REFUSED: Mapping[str, str] = {
    "use_cla": "layers that share keys and values (CLA)",
    "num_kv_shared_layers": "layers that share keys and values",
    "attn_type_list": "layers of lightning attention",
    "layer_group_size": "layers of linear attention between those of full attention",
    "linear_attn_config": "layers of linear attention (Kimi)",
    "block_types": "recurrent layers",
    "_block_types": "recurrent layers",
    "lru_width": "recurrent layers",
    "block_configs": "layers that differ in shape",
    "hybrid_override_pattern": "state-space and hybrid models",
    "hybrid_layer_ids": "state-space and hybrid models",
    "layers_block_type": "state-space and hybrid models",
    "attn_layer_period": "state-space and hybrid models",
    "attn_layer_indices": "state-space and hybrid models",
    "full_attn_idxs": "layers of convolution",
    "conv_L_cache": "layers of convolution",
    "state_size": "state-space and hybrid models",
    "index_topk": "models with sparse attention",
    "sparse_attention_config": "models with sparse attention",
    "dense_attention_every_n_layers": "models with sparse attention",
    "swa_num_attention_heads": "layers with heads of their own",
    "swa_num_key_value_heads": "layers with heads of their own",
    "swa_head_dim": "layers with heads of their own",
    "is_encoder_decoder": "encoder-decoder models",
}
"""Keys of what is not simulated, which an error names before any other key."""

REFUSED_PREFIXES = ("mamba_", "ssm_", "rwkv_")
"""Beginnings of the keys of state-space models."""


@dataclass(frozen=True)
class Family:
    """A model_type: its keys beyond those of all families, and what its files leave out."""

    keys: str = ""
    """Further keys that are understood, or do not matter."""
    window_period: int | None = None
    """Every such layer is full, the others have a window, where the file does not list them; 1: all have it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of missing keys, where published files leave them out."""
    n_mtp_layers: int = 0
    """MTP layers of the published checkpoints, where no key counts them."""
    mamba2: Mapping[str, str] = field(default_factory=dict)
    """Keys of the sizes of layers with selective state spaces."""


GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
MAMBA_GRANITE = {
    "n_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "state_dim": "mamba_d_state",
    "n_groups": "mamba_n_groups",
    "conv_size": "mamba_d_conv",
}
MAMBA_NEMOTRON = {
    "n_heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "state_dim": "ssm_state_size",
    "n_groups": "n_groups",
    "conv_size": "conv_kernel",
}
DELTA_NET = (
    "full_attention_interval linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads "
    "linear_value_head_dim attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings"
)
SPARSE = "index_head_dim index_n_heads index_topk indexer_rope_interleave"
QWEN_3_5 = Family(DELTA_NET, defaults={"full_attention_interval": 4})
LLAMA_4 = Family("attention_chunk_size no_rope_layers no_rope_layer_interval interleave_moe_layer_step moe_layers")

FAMILIES: Mapping[str, Family] = {
    "cohere2": Family("order_of_interleaved_layers", window_period=4),
    "deepseek_v32": Family(SPARSE),
    "exaone4": Family("reordered_norm", window_period=4),
    "gemma2": Family(window_period=2),
    "gemma3": Family("use_bidirectional_attention", window_period=6, defaults=GEMMA_3),
    "gemma3_text": Family("use_bidirectional_attention", window_period=6, defaults=GEMMA_3),
    "glm_moe_dsa": Family(SPARSE),
    "gpt_oss": Family("initial_context_length", window_period=2),
    "granitemoehybrid": Family(
        " ".join(MAMBA_GRANITE.values()) + " mamba_chunk_size mamba_conv_bias mamba_expand mamba_proj_bias "
        "time_step_limit init_method normalization_function",
        defaults={"mamba_n_groups": 1},
        mamba2=MAMBA_GRANITE,
    ),
    "llama4": LLAMA_4,
    "llama4_text": LLAMA_4,
    "mimo": Family(),
    "minimax_m2": Family("attn_type_list qk_norm_type use_mtp num_mtp_modules mtp_transformer_layers"),
    "mistral": Family(window_period=1),
    "mixtral": Family(window_period=1),
    "nemotron_h": Family(
        " ".join(MAMBA_NEMOTRON.values()) + " attention_head_dim chunk_size expand hybrid_override_pattern "
        "mamba_hidden_act mamba_proj_bias mamba_ssm_cache_dtype mlp_hidden_act num_logits_to_keep "
        "rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_limit time_step_max time_step_min "
        "time_step_rank use_conv_bias use_mamba_kernels",
        defaults={"mamba_ssm_cache_dtype": "float32"},  # of the transformers library, and of vLLM for this family
        mamba2=MAMBA_NEMOTRON,
    ),
    "olmo3": Family(window_period=4),
    "phi3": Family("full_attn_mod interpolate_factor", window_period=1),
    "phimoe": Family(window_period=1),
    "qwen3_5": QWEN_3_5,
    "qwen3_5_moe": QWEN_3_5,
    "qwen3_5_moe_text": QWEN_3_5,
    "qwen3_5_text": QWEN_3_5,
    "qwen3_next": Family(DELTA_NET, defaults={"full_attention_interval": 4}, n_mtp_layers=1),
    "smollm3": Family("no_rope_layers no_rope_layer_interval"),
    "starcoder2": Family(window_period=1),
}
"""Families with keys or rules of their own; all others have the common keys only."""

MOST_NAMED = 3
"""Keys that an error names."""


def family_of(config: Mapping[str, Any]) -> Family:
    """Return what is known of a file's model_type."""
    return FAMILIES.get(str(config.get("model_type")), Family())


def check_refused(config: Mapping[str, Any]) -> None:
    """Raise CatalogError for a key of what is not simulated."""
    known = family_of(config).keys.split()
    for key in _on(config):
        if key in known or config[key] == 0:
            continue
        if key in REFUSED or key.startswith(REFUSED_PREFIXES):
            what, got = REFUSED.get(key, "state-space and hybrid models"), json.dumps(config[key])
            raise CatalogError(f"{key}: {what} are not supported yet, got {got}; choose another model")


def check_understood(config: Mapping[str, Any]) -> None:
    """Raise CatalogError for keys that may change the arithmetic and are not understood."""
    known = family_of(config).keys.split()
    unknown = [key for key in _on(config) if key not in known and key not in READ and key not in IGNORED]
    if unknown:
        named = ", ".join(f"{key}: {json.dumps(config[key])}" for key in unknown[:MOST_NAMED])
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        of = f"model_type {config['model_type']}" if config.get("model_type") else "a file without model_type"
        raise CatalogError(
            f"keys of {of} that may change sizes or attention are not understood, got {named}{more}; "
            "delete them in a copy of the file if they change neither, else choose another model"
        )


def _on(config: Mapping[str, Any]) -> list[str]:
    """List the keys that are not off: null, false and empty values switch nothing on."""
    return [key for key, value in config.items() if _is_on(key, value)]


def _is_on(key: str, value: object) -> bool:
    if key == "attn_type_list" and isinstance(value, list):  # MiniMax: 1 is full attention
        return any(kind != 1 for kind in value)
    return value is not None and value is not False and value not in ("", [], {})
