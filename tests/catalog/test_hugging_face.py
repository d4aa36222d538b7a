"""Models from a Hugging Face config.json: read, refused for now, or wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.catalog.states import StateLayers
from simserve.errors import CatalogError
from tests.fuzz.configs import LLAMA

MIXED = ["full_attention", "sliding_attention"] * 16


def load(folder: Path, config: Any = None, **changes: Any) -> ModelSpec:
    """The model of a config.json in a folder called model; a change to ... takes the key out."""
    content = {**LLAMA, **changes} if config is None else config
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if value is not ...}
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return catalog.load_model(str(folder / "model" / "config.json"))


def test_a_config_gives_what_the_catalog_has_of_the_same_model(tmp_path: Path) -> None:
    ours, shipped = load(tmp_path), catalog.load_model("llama-3.1-8b")
    names = {"name": "model", "source": "Hugging Face config.json, config.json"}
    assert vars(ours) == {**vars(shipped), **names}


def test_a_config_by_another_name_gives_the_model_that_name(tmp_path: Path) -> None:
    (tmp_path / "my-llama.json").write_text(json.dumps(LLAMA))
    assert catalog.load_model(str(tmp_path / "my-llama.json")).name == "my-llama"


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    assert load(tmp_path, num_key_value_heads=...).n_kv_heads == 32
    assert load(tmp_path, num_key_value_heads=None).n_kv_heads == 32
    assert load(tmp_path, num_key_value_heads=None, multi_query=False).n_kv_heads == 32
    assert load(tmp_path, multi_query=True).n_kv_heads == 8


def test_heads_may_be_wider_than_the_hidden_size_divided(tmp_path: Path) -> None:
    assert load(tmp_path).head_dim == 128
    assert load(tmp_path, head_dim=None).head_dim == 128
    assert load(tmp_path, head_dim=256).head_dim == 256
    assert load(tmp_path, head_dim=128, hidden_size=5120, num_attention_heads=64).head_dim == 128  # as in Qwen3-32B


def test_a_nested_text_config_comes_first(tmp_path: Path) -> None:
    vision = {"model_type": "llava", "hidden_size": 1024, "vision_config": {}, "text_config": LLAMA}
    assert load(tmp_path, vision).hidden_size == 4096
    with pytest.raises(
        CatalogError, match="tie_word_embeddings must be the same in text_config and outside it; set both"
    ):
        load(tmp_path, {**vision, "tie_word_embeddings": True})


def test_embeddings_are_tied_where_the_file_or_the_family_says_so(tmp_path: Path) -> None:
    assert load(tmp_path, tie_word_embeddings=True).tie_word_embeddings
    assert not load(tmp_path, tie_word_embeddings=...).tie_word_embeddings
    for family in ("gemma2", "cohere"):
        assert load(tmp_path, tie_word_embeddings=..., model_type=family).tie_word_embeddings
        assert not load(tmp_path, tie_word_embeddings=False, model_type=family).tie_word_embeddings


def test_families_with_a_plain_mlp_have_two_matrices(tmp_path: Path) -> None:
    assert load(tmp_path).gated_mlp
    assert not load(tmp_path, model_type="starcoder2").gated_mlp


# -- windows -----------------------------------------------------------------------------------------------------------


def groups(model: ModelSpec) -> list[tuple[str, int, int | None]]:
    """The layers by kind: kind, number and window."""
    return [(group.kind, group.n_layers, group.window) for group in model.groups]


FULL = [("full", 32, None)]


def test_a_window_is_of_all_layers_unless_it_is_switched_off(tmp_path: Path) -> None:
    windowed = load(tmp_path, model_type="mistral", sliding_window=4096)
    assert windowed.windowed and groups(windowed) == [("windowed", 32, 4096)]
    for changes in ({"sliding_window": None}, {"sliding_window": 131072, "use_sliding_window": False}, {}):
        assert not load(tmp_path, **changes).windowed
        assert groups(load(tmp_path, **changes)) == FULL


def test_layer_types_say_which_layers_have_the_window(tmp_path: Path) -> None:
    mixed = load(tmp_path, sliding_window=1024, layer_types=MIXED)
    assert mixed.windowed and groups(mixed) == [("full", 16, None), ("windowed", 16, 1024)]
    assert groups(load(tmp_path, sliding_window=1024, layer_types=["full_attention"] * 32)) == FULL


def n_full_layers(model: ModelSpec) -> int:
    """Return how many layers attend all keys of the context."""
    return sum(group.n_layers for group in model.groups if group.attends and group.window is None)


@pytest.mark.parametrize(
    ("family", "n_full"), [("gemma2", 16), ("gemma3_text", 5), ("cohere2", 8), ("gpt_oss", 16), ("phi3", 0)]
)
def test_families_that_alternate_do_so_without_layer_types(tmp_path: Path, family: str, n_full: int) -> None:
    model = load(tmp_path, model_type=family, sliding_window=512)
    assert n_full_layers(model) == n_full
    assert groups(model)[0] == ("windowed", 32 - n_full, 512)


def test_a_pattern_of_the_file_replaces_that_of_the_family(tmp_path: Path) -> None:
    for pattern in (4, "LLLG"):
        changes = {"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": pattern}
        assert groups(load(tmp_path, **changes)) == [("windowed", 24, 4096), ("full", 8, None)]
    gemma = load(tmp_path, model_type="gemma3_text", sliding_window=512, sliding_window_pattern=2)
    assert n_full_layers(gemma) == 16


def test_layers_of_llama_4_with_positions_attend_a_chunk(tmp_path: Path) -> None:
    changes = {"model_type": "llama4_text", "attention_chunk_size": 8192}
    chunked = [("chunked", 24, 8192), ("full", 8, None)]
    assert groups(load(tmp_path, **changes)) == chunked
    assert groups(load(tmp_path, **changes, no_rope_layers=[1, 1, 1, 0] * 8)) == chunked
    assert n_full_layers(load(tmp_path, **changes, no_rope_layers=[1, 0] * 16)) == 16


def test_with_use_sliding_window_the_first_layers_are_full(tmp_path: Path) -> None:
    changes = {"sliding_window": 1024, "use_sliding_window": True}
    assert groups(load(tmp_path, **changes, max_window_layers=28)) == [("full", 28, None), ("windowed", 4, 1024)]
    assert not load(tmp_path, **changes, max_window_layers=32).windowed


def test_of_another_family_the_file_says_which_layers_have_the_window(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="layer_types is missing; list the layers with the window of 4096 tokens"):
        load(tmp_path, sliding_window=4096)
    assert n_full_layers(load(tmp_path, sliding_window=128, layer_types=MIXED)) == 16
    assert not load(tmp_path, sliding_window=128, use_sliding_window=False).windowed


def test_requests_that_never_fill_a_window_see_full_layers(tmp_path: Path) -> None:
    mixed = load(tmp_path, sliding_window=1024, layer_types=MIXED)
    assert mixed.within(1025) == mixed
    assert groups(mixed.within(1024)) == FULL


def test_every_fourth_layer_of_qwen3_next_is_full_though_the_file_lists_none(tmp_path: Path) -> None:
    sizes = {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4}
    linear = {**sizes, "linear_num_value_heads": 32, "linear_value_head_dim": 128, "full_attention_interval": 4}
    model = load(tmp_path, model_type="qwen3_next", **linear)
    assert groups(model) == [("state", 24, None), ("full", 8, None)]
    assert model.linear == StateLayers.of(
        "gated_delta_net", n_key_heads=16, key_head_dim=128, n_value_heads=32, value_head_dim=128, conv_size=4
    )
    assert (model.gated_attention, model.n_mtp_layers) == (True, 1)
    listed = ["linear_attention"] * 24 + ["full_attention"] * 8
    assert load(tmp_path, model_type="qwen3_next", **linear, layer_types=listed) == model
    with pytest.raises(CatalogError, match="linear_key_head_dim is missing; layers with a state need all their sizes"):
        load(tmp_path, model_type="qwen3_next", **{**linear, "linear_key_head_dim": None})


def test_a_file_counts_the_layers_that_predict_further_tokens(tmp_path: Path) -> None:
    assert load(tmp_path).n_mtp_layers == 0
    assert load(tmp_path, num_nextn_predict_layers=1).n_mtp_layers == 1
    assert load(tmp_path, num_nextn_predict_layers=0).n_mtp_layers == 0  # as Kimi K2 has it
    with pytest.raises(CatalogError, match=r"num_nextn_predict_layers: must be a whole number, got 1\.5"):
        load(tmp_path, num_nextn_predict_layers=1.5)


# -- what comes later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"index_topk": 2048}, "index_topk: models with sparse attention are not supported yet"),
        (
            {"layer_types": ["linear_attention"] * 32},
            "layer_types: layers of type linear_attention are not supported yet",
        ),
        ({"layer_types": 3}, "layer_types: must be a list, got 3; compare it with the published file"),
        ({"mamba_d_state": 128}, "mamba_d_state: state-space and hybrid models are not supported yet"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: encoder-decoder models are not supported yet"),
        (
            {"swa_num_key_value_heads": 4},
            "swa_num_key_value_heads: layers with heads of their own are not supported yet",
        ),
        (
            {"sparse_attention_config": {"a": 1}},
            "sparse_attention_config: models with sparse attention are not supported yet",
        ),
    ],
)
def test_what_is_not_modeled_yet_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    for config in ({**LLAMA, **changes}, {"text_config": {**LLAMA, **changes}}):
        with pytest.raises(CatalogError, match=text):
            load(tmp_path, config)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": ..., "vocab_size": None}, r"hidden_size and vocab_size are missing"),
        ({"num_hidden_layers": ..., "n_layers": 32}, "num_hidden_layers is missing; .* called n_layers"),
        (
            {"num_key_value_heads": ..., "num_kv_heads": 8},
            "num_key_value_heads is missing; give it with num_kv_heads, got 8",
        ),
        ({"num_key_value_heads": None, "multi_query": True}, "give it with multi_query, got true"),
        ({"num_key_value_heads": 5}, "num_key_value_heads must divide num_attention_heads 32, got 5"),
        (
            {"num_attention_heads": 24, "num_key_value_heads": 8},
            "without head_dim, num_attention_heads must divide hidden_size 4096, got 24",
        ),
        ({"layer_types": ["full_attention"] * 31}, "must name the 32 layers of num_hidden_layers, got 31"),
        ({"layer_types": MIXED}, "names layers of sliding_attention, but sliding_window is missing"),
        ({"hidden_size": 0}, "hidden_size: must be at least 1, got 0"),
        ({"hidden_size": "4096"}, "hidden_size: must be a whole number, got '4096'; write 4096, without quotes"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: must be at least 1, got 0"),
        ({"head_dim": -1}, "head_dim: must be at least 1, got -1"),
        ({"vocab_size": True}, "vocab_size: must be a whole number, got true"),
        ({"sliding_window": 0.5}, r"sliding_window: must be a whole number, got 0\.5"),
    ],
)
def test_missing_and_contradictory_keys_are_named(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CatalogError, match=text):
        load(tmp_path, **changes)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "must be a Hugging Face config.json, but is not JSON"),
        ([], "must be a JSON object, got list"),
        ({"text_config": 3}, "text_config must be a JSON object, got int"),
        ({}, "hidden_size and num_hidden_layers and .* are missing; it must be the config.json of a causal model"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: Any, text: str) -> None:
    with pytest.raises(CatalogError, match=text) as caught:
        load(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "model" / "config.json"))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(CatalogError, match="is not JSON"):
        catalog.load_model(str(tmp_path / "a.json"))


def test_a_file_that_is_not_there_is_told_with_a_guess_from_the_catalog(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"there is no such file, got '.*/llama-3\.1-8b\.json'; .* llama-3\.1-8b\?"):
        catalog.load_model(str(tmp_path / "llama-3.1-8b.json"))


def test_more_layers_than_any_model_has_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"num_hidden_layers: must be at most 10000, got 10\d+; compare it with"):
        load(tmp_path, num_hidden_layers=10**12)
