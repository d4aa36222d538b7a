"""Experts and latent attention read from a config.json, and what is wrong with them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.catalog.latent import Mla
from simserve.catalog.layers import Experts
from simserve.errors import CatalogError
from tests.catalog.test_hugging_face import load
from tests.fuzz.configs import LLAMA

MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
}
LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def experts(folder: Path, **keys: Any) -> Experts:
    """Those of a Llama that has been given these keys."""
    model = load(folder, **keys)
    assert model.experts is not None
    assert (model.n_dense_layers, model.n_moe_layers) == (
        model.experts.n_dense_layers,
        32 - model.experts.n_dense_layers,
    )
    return model.experts


def test_mixtral_calls_the_size_of_its_experts_intermediate_size(tmp_path: Path) -> None:
    assert experts(tmp_path, **MIXTRAL) == Experts(n_experts=8, top_k=2, expert_size=14336)
    nested = load(tmp_path, {"text_config": {**LLAMA, **MIXTRAL}})
    assert nested.experts == Experts(n_experts=8, top_k=2, expert_size=14336)


def test_gpt_oss_names_its_top_k_twice(tmp_path: Path) -> None:
    result = experts(tmp_path, num_local_experts=128, experts_per_token=4, num_experts_per_tok=4)
    assert (result.n_experts, result.top_k) == (128, 4)
    assert experts(tmp_path, num_local_experts=128, experts_per_token=4) == result


def test_qwen_puts_experts_in_every_so_many_layers_but_those_it_names(tmp_path: Path) -> None:
    keys = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    assert experts(tmp_path, **keys, decoder_sparse_step=1, mlp_only_layers=[]).n_dense_layers == 0
    assert experts(tmp_path, **keys, decoder_sparse_step=4).n_dense_layers == 24
    assert experts(tmp_path, **keys, decoder_sparse_step=2, mlp_only_layers=[0, 1, 3]).n_dense_layers == 18
    shared = experts(tmp_path, **keys, shared_expert_intermediate_size=5632)
    assert (shared.n_shared_experts, shared.shared_size) == (1, 5632)


def test_deepseek_begins_with_dense_layers_and_shares_experts(tmp_path: Path) -> None:
    assert experts(tmp_path, **DEEPSEEK) == Experts(
        256, 8, 2048, n_dense_layers=3, n_shared_experts=1, shared_size=2048
    )
    assert experts(tmp_path, **{**DEEPSEEK, "n_shared_experts": None}).n_shared_experts == 0
    assert experts(tmp_path, **{**DEEPSEEK, "moe_layer_freq": 2}).n_dense_layers == 3 + 15  # 4, 6, ..., 30 have experts
    assert experts(tmp_path, **{**DEEPSEEK, "moe_layer_freq": [0] * 8 + [1] * 24}).n_dense_layers == 8
    kinds = ["dense"] * 5 + ["sparse"] * 27
    assert experts(tmp_path, **DEEPSEEK, mlp_layer_types=kinds).n_dense_layers == 5


def test_llama_4_interleaves_and_has_a_shared_expert_and_an_mlp_of_its_own_size(tmp_path: Path) -> None:
    model = load(
        tmp_path,
        model_type="llama4_text",
        num_local_experts=128,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        intermediate_size=8192,
        intermediate_size_mlp=16384,
    )
    every_other = tuple(range(0, 32, 2))
    dense = Experts(128, 1, 8192, n_dense_layers=16, dense_at=every_other)
    assert model.experts == replace(dense, n_shared_experts=1, shared_size=8192)
    assert model.intermediate_size == 16384


def test_families_have_their_own_keys_for_the_sizes_of_mlp_and_shared_expert(tmp_path: Path) -> None:
    minimax = load(tmp_path, **{**DEEPSEEK, "n_shared_experts": None}, dense_intermediate_size=12288)
    assert minimax.intermediate_size == 12288
    granite = experts(tmp_path, **MIXTRAL, shared_intermediate_size=1024)
    assert (granite.n_shared_experts, granite.shared_size) == (1, 1024)
    assert experts(tmp_path, **MIXTRAL, shared_intermediate_size=0).n_shared_experts == 0


def test_traces_of_experts_in_a_dense_config_mean_nothing(tmp_path: Path) -> None:
    dense = load(tmp_path, num_experts=0, n_routed_experts=None, num_local_experts=1, kv_lora_rank=None)
    assert (dense.experts, dense.mla, dense.n_dense_layers, dense.n_moe_layers) == (None, None, 32, 0)


def test_latent_attention_has_its_own_widths(tmp_path: Path) -> None:
    model = load(tmp_path, **LATENT, head_dim=None, num_attention_heads=24, num_key_value_heads=24)  # 24: not in 4096
    assert model.mla == Mla(512, 128, 64, 128, q_lora_rank=1536)
    assert (model.mla.cached_size, model.mla.qk_head_dim, model.head_dim, model.n_kv_heads) == (576, 192, 192, 24)
    whole = load(tmp_path, **{**LATENT, "q_lora_rank": None}).mla
    assert whole is not None and whole.q_lora_rank is None


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"num_experts": 8}, "num_experts_per_tok is missing; give the number of the 8 experts of num_exp"),
        (
            {"num_experts": 8, "num_local_experts": 16},
            r"num_local_experts and num_experts must be the same number of experts, got \[16, 8\]",
        ),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "num_experts_per_tok must be at most the 8 experts of num_local_exp"),
        (
            {**MIXTRAL, "num_experts_per_tok": 0},
            "num_experts_per_tok is 0; give the number of the 8 experts of num_loc",
        ),
        (
            {**MIXTRAL, "num_local_experts": [8, 16]},
            r"num_local_experts: must be a whole number, got \[8, 16\]; a list must have one for each",
        ),
        ({**MIXTRAL, "moe_intermediate_size": -1}, "moe_intermediate_size: must be at least 0, got -1"),
        ({**DEEPSEEK, "first_k_dense_replace": -1}, "first_k_dense_replace: must be at least 0, got -1"),
        (
            {**DEEPSEEK, "first_k_dense_replace": 32},
            "first_k_dense_replace and moe_layer_freq must leave experts to one of the 32 layers",
        ),
        ({**DEEPSEEK, "moe_layer_freq": 0}, "moe_layer_freq: must be at least 1 or a list, got 0"),
        ({**DEEPSEEK, "moe_layer_freq": [1, 0]}, "moe_layer_freq must name the 32 layers of num_hidden_layers, got 2"),
        ({**DEEPSEEK, "n_shared_experts": 1.5}, r"n_shared_experts: must be a whole number, got 1\.5"),
        ({**DEEPSEEK, "n_group": 7, "topk_group": 2}, "n_group must divide the 256 experts, got 7"),
        ({**DEEPSEEK, "n_group": 4, "topk_group": 5}, "topk_group must be at most the 4 groups of n_group, got 5"),
        ({**DEEPSEEK, "n_group": 64, "topk_group": 1}, "topk_group must have at least the 8 experts of a token, got 1"),
        ({**DEEPSEEK, "n_group": 0.5}, r"n_group: must be a whole number, got 0\.5"),
        ({"moe_num_experts": 64}, "keys of model_type llama .* are not understood, got moe_num_experts: 64"),
        ({"kv_lora_rank": 512, "v_head_dim": 128}, "qk_nope_head_dim and qk_rope_head_dim are missing; latent attent"),
        ({**LATENT, "q_lora_rank": 0}, "q_lora_rank: must be at least 1, got 0"),
    ],
)
def test_missing_and_contradictory_keys_are_named(tmp_path: Path, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(CatalogError, match=text) as caught:
        load(tmp_path, **keys)
    assert str(caught.value).startswith(str(tmp_path / "model" / "config.json"))


def test_the_catalog_shows_them_as_plain_data() -> None:
    shown = catalog.describe("models", "deepseek-v3")
    assert shown["experts"]["n_experts"] == 256
    assert shown["mla"]["kv_lora_rank"] == 512
    assert catalog.describe("models", "llama-3.1-8b")["experts"] is None
