"""Keys of a Hugging Face config.json: those that are read, with their types; those that do not matter; those refused.

Names follow the configuration classes of the transformers library. A key may be null, and 2.0 stands for 2.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.catalog.quantization import Names, Quantization
from simserve.catalog.types import StopAtFirst

MOST_LAYERS = 10_000
"""Eighty times as many as the deepest model has (Llama 3.1 405B: 126); each is looked at."""

MOST_PARTS = 2**14
"""Heads, groups and experts: 32 times as many as any model has in a layer (Qwen3-Next: 512 experts)."""

MOST_WIDTH = 2**20
"""Fourteen times the widest matrix (Nemotron-4 340B: 73,728), so that products of three widths fit 64 bits."""

MOST_TOKENS = 2**30
"""A hundred times the longest context (Llama 4 Scout: 10,485,760), and more than any vocabulary."""


def whole(least: int, most: int) -> Any:
    """Return the type of whole numbers from least to most."""
    return Annotated[int, Field(ge=least, le=most)]


def typed(kind: object, keys: str) -> dict[str, Any]:
    """Return the type, or what else holds, of each of several keys."""
    return dict.fromkeys(keys.split(), kind)


COUNT, WIDTH, PARTS, TOKENS = (whole(1, most) for most in (MOST_LAYERS, MOST_WIDTH, MOST_PARTS, MOST_TOKENS))
COUNT_OR_0, WIDTH_OR_0, PARTS_OR_0, TOKENS_OR_0 = (
    whole(0, most) for most in (MOST_LAYERS, MOST_WIDTH, MOST_PARTS, MOST_TOKENS)
)
"""Types of counts of layers and of the rest; 0 switches an optional part off."""

BY_LAYER = Annotated[list[Literal[0, 1]], StopAtFirst()]
"""A choice for each layer."""

LAYERS = Annotated[list[Annotated[int, Field(ge=0, lt=MOST_LAYERS)]], Field(max_length=MOST_LAYERS), StopAtFirst()]
"""Layers by number."""

READ: Mapping[str, Any] = {
    "model_type": str,
    **typed(COUNT, "num_hidden_layers decoder_sparse_step"),
    **typed(COUNT_OR_0, "max_window_layers first_k_dense_replace num_nextn_predict_layers"),
    **typed(WIDTH, "hidden_size head_dim q_lora_rank"),
    **typed(WIDTH_OR_0, "intermediate_size intermediate_size_mlp dense_intermediate_size moe_intermediate_size"),
    **typed(WIDTH_OR_0, "shared_expert_intermediate_size shared_intermediate_size"),
    **typed(WIDTH_OR_0, "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    **typed(PARTS, "num_attention_heads num_key_value_heads"),
    **typed(PARTS_OR_0, "num_kv_heads n_kv_heads n_head_kv multi_query_group_num n_group topk_group"),
    **typed(PARTS_OR_0, "num_local_experts num_experts n_routed_experts n_shared_experts"),
    **typed(PARTS_OR_0, "num_experts_per_tok experts_per_token"),
    **typed(TOKENS, "vocab_size max_position_embeddings"),
    "sliding_window": TOKENS_OR_0,
    "sliding_window_pattern": COUNT | Annotated[str, Field(pattern="^L+G$")],
    **typed(bool, "tie_word_embeddings use_sliding_window multi_query is_encoder_decoder"),
    "layer_types": Names,
    "mlp_only_layers": LAYERS,
    "moe_layer_freq": COUNT | BY_LAYER,
    "quantization_config": Quantization,
}
"""Keys that are read in files of all families, and their types."""

IGNORED = typed(
    Any,
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
    """,
)
"""Keys without influence on sizes and on which keys a token attends: names, tokens, generation, training, positions,
norms, biases, scales and the choice of experts."""

REFUSED: Mapping[str, str] = {
    "use_cla": "layers that share keys and values (CLA)",
    "num_kv_shared_layers": "layers that share keys and values",
    "attn_type_list": "layers of lightning attention",
    "layer_group_size": "layers of linear attention between those of full attention",
    "linear_attn_config": "layers of linear attention (Kimi)",
    **typed("recurrent layers", "block_types _block_types lru_width"),
    "block_configs": "layers that differ in shape",
    **typed("state-space and hybrid models", "hybrid_override_pattern hybrid_layer_ids layers_block_type"),
    **typed("state-space and hybrid models", "attn_layer_period attn_layer_indices state_size"),
    **typed("layers of convolution", "full_attn_idxs conv_L_cache"),
    **typed("models with sparse attention", "index_topk sparse_attention_config dense_attention_every_n_layers"),
    **typed("layers with heads of their own", "swa_num_attention_heads swa_num_key_value_heads swa_head_dim"),
    "is_encoder_decoder": "encoder-decoder models",
}
"""Keys of what is not simulated, which an error names before any other key."""

REFUSED_PREFIXES = ("mamba_", "ssm_", "rwkv_")
"""Beginnings of the keys of state-space models."""
