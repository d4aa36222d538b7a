"""Class defaults: what the transformers library builds from a file that leaves a key out, states it twice, or has a
flag of other shapes, is read the same way, or refused by the name of the key."""

from pathlib import Path
from typing import Any

import pytest

from simserve.cost.shard import Shard
from simserve.cost.weights import parameters
from simserve.errors import CatalogError
from tests.catalog.test_hugging_face import load
from tests.catalog.test_published import CONFIGS, read
from tests.fuzz.configs import config_of

MOE = "must be at least 2 in a file with"
LATENT = "is missing; latent attention"
SIZES = "is missing; layers without experts have that size"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"num_local_experts": ...}, f"num_local_experts or .* {MOE} num_experts_per_tok"),
    ("gpt_oss", {"num_local_experts": ...}, f"num_local_experts or .* {MOE} num_experts_per_tok and experts_per_token"),
    ("qwen3_moe", {"num_experts": ...}, f"num_experts or .* {MOE} moe_intermediate_size and num_experts_per_tok"),
    ("qwen3_moe", {"num_experts": 1}, f"num_experts or .* {MOE} moe_intermediate_size and num_experts_per_tok"),
    ("deepseek_v3", {"n_routed_experts": 1}, f"n_routed_experts {MOE} moe_intermediate_size"),
    ("deepseek_v3", {"moe_intermediate_size": ...}, "moe_intermediate_size is missing; experts need their inner size"),
    ("deepseek_v3", {"intermediate_size": ...}, f"intermediate_size {SIZES}"),
    ("glm4_moe", {"intermediate_size": ...}, f"intermediate_size {SIZES}"),
    ("qwen2_moe", {"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
    ("qwen2_moe", {"shared_expert_intermediate_size": ...}, "shared_expert_intermediate_size is missing"),
    ("deepseek_v3", {"kv_lora_rank": ...}, f"kv_lora_rank {LATENT}"),
    ("youtu", {"kv_lora_rank": ...}, f"kv_lora_rank {LATENT}"),
    ("mistral", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
    ("gemma2", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
    ("glm4", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
    ("qwen3_next", {"num_key_value_heads": ...}, "num_key_value_heads is missing"),
    ("nemotron_h", {"head_dim": 64}, "attention_head_dim and head_dim must be the same, got 128 and 64; delete one"),
    ("opt", {"ffn_dim": 8192}, "ffn_dim and intermediate_size must be the same, got 8192 and 14336; delete one"),
    ("nemotron_h", {"n_shared_experts": 2}, "n_shared_experts: only 0 or 1 is supported, got 2"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention: layers of cross attention are not supported yet"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention: models of attention to later"),
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window: only false is supported, got true"),
    ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window: only false is supported, got true"),
    ("gpt_bigcode", {"num_key_value_heads": 2}, 'num_key_value_heads: only 1 or "num_attention_heads" is supported'),
]


@pytest.mark.parametrize(
    ("family", "keys", "text"), REFUSED, ids=[f"{name}-{next(iter(keys))}" for name, keys, _ in REFUSED]
)
def test_what_would_change_the_shapes_unseen_is_refused(
    tmp_path: Path, family: str, keys: dict[str, Any], text: str
) -> None:
    config = config_of(family)
    load(tmp_path, config)
    with pytest.raises(CatalogError, match=text):
        load(tmp_path, {**config, **keys})


@pytest.mark.parametrize(
    ("name", "key", "value", "known"),
    [("LFM2-1.2B", "conv_dim", 1024, '"hidden_size"'), ("Gemma-3n-E4B-it", "altup_num_inputs", 8, "4")],
)
def test_sizes_that_classes_differ_in_are_understood_as_published(
    tmp_path: Path, name: str, key: str, value: int, known: str
) -> None:
    config = CONFIGS[name]
    read(tmp_path, config)
    text = {"text_config": {**config["text_config"], key: value}} if "text_config" in config else {key: value}
    with pytest.raises(CatalogError, match=f"{key}: only {known} is supported, got {value}"):
        read(tmp_path, {**config, **text})


@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_embeddings_that_a_file_ties_and_does_not_tie_are_refused(tmp_path: Path, flags: tuple[bool, bool]) -> None:
    outer, inner = ({"tie_word_embeddings": flag} for flag in flags)
    text = {**config_of("qwen2"), **inner}
    with pytest.raises(CatalogError, match="set both to false if the checkpoint has lm_head"):
        load(tmp_path, {"model_type": "internvl", **outer, "text_config": text})
    assert load(tmp_path, {**inner, "text_config": text}).tie_word_embeddings is flags[1]


LEFT_OUT: list[tuple[str, str, str, Any]] = [
    *((family, "head_dim", "head_dim", 256) for family in ("gemma", "gemma2", "qwen3_next", "qwen3_5", "vaultgemma")),
    *(
        (family, "head_dim", "head_dim", 128)
        for family in ("qwen3", "glm4", "ernie4_5", "hy_v3", "minimax_m2", "lara_mini")
    ),
    ("gpt_oss", "head_dim", "head_dim", 64),
    *((family, "tie_word_embeddings", "tie_word_embeddings", True) for family in ("ernie4_5", "youtu", "granite_swa")),
    ("gpt_bigcode", "num_key_value_heads", "n_kv_heads", 1),
]


@pytest.mark.parametrize(("family", "key", "size", "value"), LEFT_OUT)
def test_a_key_that_a_file_leaves_out_has_the_value_of_its_class(
    tmp_path: Path, family: str, key: str, size: str, value: Any
) -> None:
    assert getattr(load(tmp_path, {**config_of(family), key: ...}), size) == value


@pytest.mark.parametrize(
    ("family", "n_dense"), [("deepseek_v3", 3), ("glm4_moe", 1), ("glm4_moe_lite", 1), ("hy_v3", 1), ("sarvam_mla", 1)]
)
def test_the_first_layers_are_dense_as_in_the_class_unless_a_list_says_otherwise(
    tmp_path: Path, family: str, n_dense: int
) -> None:
    config = {**config_of(family), "first_k_dense_replace": ...}
    sparse_first = ["sparse"] * 30 + ["dense"] * 2
    for changes, n in ({}, n_dense), ({"mlp_layer_types": sparse_first}, 2):
        experts = load(tmp_path, {**config, **changes}).experts
        assert experts is not None and (experts.n_dense_layers, experts.n_shared_experts) == (
            n,
            2 if family == "deepseek_v3" else 1,
        )


@pytest.mark.parametrize(("family", "window", "n"), [("gemma2", 4096, 16), ("cohere2", 4096, 24), ("gpt_oss", 128, 16)])
def test_windows_of_alternating_layers_have_the_size_of_the_class(
    tmp_path: Path, family: str, window: int, n: int
) -> None:
    groups = load(tmp_path, {**config_of(family), "sliding_window": ...}).groups
    assert [(group.window, group.n_layers) for group in groups if group.kind == "windowed"] == [(window, n)]


PLAIN = {"vocab_size": 50000, "hidden_size": 2048, "num_hidden_layers": 20, "intermediate_size": 8192}
ATTENTION, GATED = 2048 * 2048 * 2 + 2048 * 1024 * 2, 3 * 2048 * 8192

COUNTED: list[tuple[str, dict[str, Any], int]] = [
    ("jais2", {}, 20 * (ATTENTION + 2 * 2048 * 8192)),
    ("hyperclovax", {}, 20 * (ATTENTION + GATED)),
    ("granite_swa", {"layer_rope_theta": [1e4] * 20}, 20 * (ATTENTION + GATED)),
    ("aria_text", {}, 20 * (ATTENTION + (64 + 2) * GATED + 64 * 2048)),
    ("hy_v3", {}, 20 * (ATTENTION + 2 * 2048 * (16 * 128 - 2048)) + GATED + 19 * 2048 * (3 * 193 * 768 + 192)),
    (
        "olmo_hybrid",
        {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 5},
        5 * ATTENTION + 15 * 2048 * (2 * 2048 + 3 * 4096 + 2 * 32) + 20 * GATED,
    ),
]


@pytest.mark.parametrize(("family", "keys", "n_weights"), COUNTED, ids=[family for family, *_ in COUNTED])
def test_matrices_of_a_family_are_those_that_its_classes_have(
    tmp_path: Path, family: str, keys: dict[str, Any], n_weights: int
) -> None:
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "attention_head_dim": ...}
    counts = parameters(Shard(load(tmp_path, {**config_of(family), **PLAIN, **heads, **keys})))
    assert sum(vars(counts).values()) - counts.norms == n_weights + 2 * 2048 * 50000


def test_experts_of_qwen3_5_have_the_shared_one_of_their_class(tmp_path: Path) -> None:
    experts = load(tmp_path, config_of("qwen3_5_moe_text")).experts
    assert experts is not None and (experts.n_shared_experts, experts.shared_size) == (1, 512)


def test_of_a_model_that_speaks_only_the_part_that_thinks_is_read(tmp_path: Path) -> None:
    text = config_of("qwen3_moe")
    talks = {"model_type": "qwen3_omni_moe", "talker_config": {"text_config": config_of("llama")}}
    assert load(tmp_path, {**talks, "thinker_config": {"text_config": text}}).groups == load(tmp_path, text).groups


def test_a_nested_file_of_qwen2_leaves_out_its_context_and_that_windows_are_off(tmp_path: Path) -> None:
    text = {**config_of("qwen2"), "max_position_embeddings": ..., "use_sliding_window": ..., "sliding_window": 131072}
    model = load(tmp_path, {key: value for key, value in text.items() if value is not ...})
    assert model.max_position_embeddings == 32768 and not model.windowed
