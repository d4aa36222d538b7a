"""Models that people deploy, from the keys of their published config.json: parameters, and bytes of keys and values.

Parameters are those of the text part, counted from the modeling code of the families (transformers, vLLM) or as the
model cards have them. Bytes are by hand: layers, KV heads, width of a key and a value, two bytes.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve import catalog
from simserve.catalog.hugging_face import TEXT_PARTS
from simserve.catalog.specs import ModelSpec
from simserve.cost.shard import Shard
from simserve.cost.weights import parameters
from simserve.errors import CatalogError

CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))

LATENT = 2 * (512 + 64)

PUBLISHED: dict[str, tuple[float, int, int]] = {
    "MiMo-V2-Flash": (308.78, 2 * (192 + 128) * (9 * 4 + 39 * 8), 0),
    "Nemotron-3-Nano-30B-A3B": (31.58, 6 * 2 * 2 * 2 * 128, 23 * (64 * 64 * 128 * 4 + 2 * 3 * (4096 + 2 * 8 * 128))),
    "Nemotron-3-Super-120B-A12B": (120.67, 8 * 2 * 2 * 2 * 128, 40 * (128 * 64 * 128 * 4 + 6 * (8192 + 2048))),
    "Nemotron-H-56B": (56.32, 10 * 8 * 2 * 2 * 128, 54 * (256 * 64 * 256 * 4 + 6 * (16384 + 2 * 8 * 256))),
    "Kimi-Linear-48B-A3B": (49.12, 7 * LATENT, 20 * (32 * 128 * 128 * 4 + 2 * 3 * 3 * 4096)),
    "ERNIE-4.5-0.3B": (0.3607, 18 * 2 * 2 * 2 * 128, 0),
    "ERNIE-4.5-21B-A3B": (21.83, 28 * 4 * 2 * 2 * 128, 0),
    "ERNIE-4.5-300B-A47B": (298.6, 54 * 8 * 2 * 2 * 128, 0),
    "Ling-mini-2.0": (16.26, 20 * 4 * 2 * 2 * 128, 0),
    "Ling-flash-2.0": (102.9, 32 * 4 * 2 * 2 * 128, 0),
    "Ring-mini-linear-2.0": (16.4, 4 * 4 * 2 * 2 * 128, 16 * 16 * 128 * 128 * 2),
    "MiniMax-Text-01": (456, 10 * 8 * 2 * 2 * 128, 70 * 64 * 128 * 128 * 2),
    "MiniMax-Text-01-hf": (456, 10 * 8 * 2 * 2 * 128, 70 * 64 * 128 * 128 * 2),
    "MiniMax-M2.5": (228.7, 62 * 8 * 2 * 2 * 128, 0),
    "Hunyuan-A13B-Instruct": (80.39, 32 * 8 * 2 * 2 * 128, 0),
    "Hunyuan-7B-Instruct": (7.505, 32 * 8 * 2 * 2 * 128, 0),
    "Jamba-v0.1": (51.57, 4 * 8 * 2 * 2 * 128, 28 * 8192 * (16 * 2 + 3 * 2)),
    "Jamba-1.5-Large": (398.6, 9 * 8 * 2 * 2 * 128, 63 * 16384 * (16 * 2 + 3 * 2)),
    "Jamba-Reasoning-3B": (3.029, 2 * 1 * 2 * 2 * 128, 26 * 5120 * (16 * 2 + 3 * 2)),
    "Falcon-H1-7B-Instruct": (7.586, 44 * 2 * 2 * 2 * 128, 44 * (24 * 128 * 256 * 2 + 6 * (3072 + 2 * 256))),
    "Falcon-H1-34B-Instruct": (33.64, 72 * 4 * 2 * 2 * 128, 72 * (32 * 128 * 256 * 2 + 6 * (4096 + 2 * 2 * 256))),
    "LFM2-1.2B": (1.170, 6 * 8 * 2 * 2 * 64, 10 * 2 * 2 * 2048),
    "LFM2-8B-A1B": (8.340, 6 * 8 * 2 * 2 * 64, 18 * 2 * 2 * 2048),
    "Gemma-3n-E4B-it": (6.835, 20 * 2 * 2 * 2 * 256, 0),
    "Command-A-03-2025": (111.1, 64 * 8 * 2 * 2 * 128, 0),
    "Command-R7B-12-2024": (8.028, 32 * 8 * 2 * 2 * 128, 0),
    "Granite-4.0-H-Small": (32.21, 4 * 8 * 2 * 2 * 128, 36 * (128 * 64 * 128 * 2 + 6 * (8192 + 2 * 128))),
    "GLM-5": (743.9, 78 * (LATENT + 132), 0),
    "GLM-4.5-Air": (106.9, 46 * 8 * 2 * 2 * 128, 0),
    "GLM-4.7-Flash": (29.94, 47 * LATENT, 0),
    "Kimi-K2.5": (1026.4, 61 * LATENT, 0),
    "Qwen3.5-27B": (26.90, 16 * 4 * 2 * 2 * 256, 48 * (48 * 128 * 128 * 4 + 6 * (2 * 2048 + 6144))),
    "Qwen3.5-397B-A17B": (396.3, 15 * 2 * 2 * 2 * 256, 45 * (64 * 128 * 128 * 4 + 6 * (2 * 2048 + 8192))),
    "Phi-4": (14.66, 40 * 10 * 2 * 2 * 128, 0),
    "Phi-4-mini-instruct": (3.836, 32 * 8 * 2 * 2 * 128, 0),
    "Seed-OSS-36B-Instruct": (36.15, 64 * 8 * 2 * 2 * 128, 0),
    "Mistral-Small-3.2-24B": (23.57, 40 * 8 * 2 * 2 * 128, 0),
    "Ministral-3-14B": (13.51, 40 * 8 * 2 * 2 * 128, 0),
    "Qwen2.5-VL-7B-Instruct": (7.616, 28 * 4 * 2 * 2 * 128, 0),
    "Qwen3-Omni-30B-A3B-Instruct": (30.53, 48 * 4 * 2 * 2 * 128, 0),
    "Qwen3-VL-30B-A3B-Instruct": (30.53, 48 * 4 * 2 * 2 * 128, 0),
    "InternVL3_5-8B": (8.191, 36 * 8 * 2 * 2 * 128, 0),
    "Llama-4-Scout-17B-16E": (107.8, 48 * 8 * 2 * 2 * 128, 0),
    "gpt-oss-20b": (20.91, 24 * 8 * 2 * 2 * 64, 0),
    "EXAONE-3.5-7.8B-Instruct": (7.818, 32 * 8 * 2 * 2 * 128, 0),
    "EXAONE-4.0-32B": (32.00, 64 * 8 * 2 * 2 * 128, 0),
    "K-EXAONE-236B-A23B": (236.6, 48 * 8 * 2 * 2 * 128, 0),
    "Step-3.5-Flash": (196.9, 45 * 8 * 2 * 2 * 128, 0),
    "Trinity-Mini": (26.12, 32 * 4 * 2 * 2 * 128, 0),
    "dots.llm1.inst": (142.8, 62 * 32 * 2 * 2 * 128, 0),
    "AFM-4.5B": (4.619, 36 * 4 * 2 * 2 * 128, 0),
    "Apertus-8B-2509": (8.053, 32 * 8 * 2 * 2 * 128, 0),
    "Olmo-3-7B": (7.298, 32 * 32 * 2 * 2 * 128, 0),
    "OLMoE-1B-7B-0924": (6.919, 16 * 16 * 2 * 2 * 128, 0),
    "SmolLM3-3B": (3.075, 36 * 4 * 2 * 2 * 128, 0),
    "Solar-Open-100B": (102.7, 48 * 8 * 2 * 2 * 128, 0),
    "Bamba-9B-v2": (9.780, 3 * 8 * 2 * 2 * 128, 29 * (128 * 64 * 128 * 2 + 6 * (8192 + 2 * 128))),
    "DBRX-Instruct": (131.6, 40 * 8 * 2 * 2 * 128, 0),
    "MiniCPM3-4B": (4.074, 62 * 2 * (256 + 32), 0),
    "Moonlight-16B-A3B": (15.96, 27 * LATENT, 0),
    "DeepSeek-V2-Lite": (15.71, 27 * LATENT, 0),
    "ChatGLM3-6B": (6.244, 28 * 2 * 2 * 2 * 128, 0),
    "GLM-4-9B-Chat": (9.400, 40 * 2 * 2 * 2 * 128, 0),
    "Baichuan2-13B-Chat": (13.90, 40 * 40 * 2 * 2 * 128, 0),
    "Grok-1": (314, 64 * 8 * 2 * 2 * 128, 0),
    "Falcon-7B": (6.922, 32 * 1 * 2 * 2 * 64, 0),
    "Falcon-40B": (41.30, 60 * 8 * 2 * 2 * 64, 0),
    "MPT-7B": (6.649, 32 * 32 * 2 * 2 * 128, 0),
    "BLOOM-7B1": (7.069, 30 * 32 * 2 * 2 * 128, 0),
    "GPT-2": (0.1244, 12 * 12 * 2 * 2 * 64, 0),
    "GPT-J-6B": (6.051, 28 * 16 * 2 * 2 * 256, 0),
    "Pythia-6.9B": (6.857, 32 * 32 * 2 * 2 * 128, 0),
    "OPT-6.7B": (6.658, 32 * 32 * 2 * 2 * 128, 0),
    "StarCoder2-15B": (15.96, 40 * 4 * 2 * 2 * 128, 0),
    "Nemotron-4-340B": (341.0, 96 * 8 * 2 * 2 * 192, 0),
    "StableLM-2-12B": (12.14, 40 * 8 * 2 * 2 * 160, 0),
    "InternLM3-8B-Instruct": (8.804, 48 * 2 * 2 * 2 * 128, 0),
    "Zamba2-7B": (7.357, 13 * 32 * 2 * 2 * 224, 81 * (112 * 64 * 64 * 2 + 6 * (7168 + 2 * 2 * 64))),
    "Zamba2-2.7B": (2.662, 9 * 32 * 2 * 2 * 160, 54 * (80 * 64 * 64 * 2 + 6 * (5120 + 2 * 64))),
    "LongCat-Flash-Chat": (560.5, 2 * 28 * LATENT, 0),
    "Step-3": (316.3, 61 * 1 * 2 * 2 * 256, 0),
    "Hunyuan-Large": (388.7, 32 * 8 * 2 * 2 * 80, 0),
    "DeepSeek-V4-Flash": (284.3, 43 * 2 * 512 + 21 * (2 * 512 + 132) // 4 + 20 * 2 * 512 // 128, 0),
    "DeepSeek-V4-Pro": (1573, 61 * 2 * 512 + 30 * (2 * 512 + 132) // 4 + 31 * 2 * 512 // 128, 0),
    "Falcon-Mamba-7B": (7.273, 0, 64 * 8192 * (16 * 2 + 3 * 2)),
    "Mamba-Codestral-7B-v0.1": (7.285, 0, 64 * (128 * 64 * 128 * 2 + 6 * (8192 + 2 * 8 * 128))),
    "Mamba2-2.7B": (2.70, 0, 64 * (80 * 64 * 128 * 2 + 6 * (5120 + 2 * 128))),
    "Llama-3_3-Nemotron-Super-49B-v1": (49.87, 49 * 8 * 2 * 2 * 128, 0),
    "OpenELM-3B": (3.04, (4 * 3 + 14 * 4 + 12 * 5 + 6 * 6) * 2 * 2 * 128, 0),
}
"""Billions of parameters, bytes of a token's keys and values in all layers, bytes of a request's states."""


def read(folder: Path, config: dict[str, Any]) -> ModelSpec:
    """Read a config.json with these keys."""
    file = folder / "config.json"
    file.write_text(json.dumps(_listed(config)))
    return catalog.load_model(str(file))


def _listed(value: Any) -> Any:
    """Write out the lists that repeat."""
    if isinstance(value, dict) and value.keys() == {"repeat", "n"}:
        return (value["repeat"] * value["n"])[: value["n"]]
    return {key: _listed(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_there_are_numbers_for_every_file() -> None:
    assert CONFIGS.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_file_gives_the_parameters_and_bytes_of_its_model(tmp_path: Path, name: str) -> None:
    billions, kv_bytes, state_bytes = PUBLISHED[name]
    model = read(tmp_path, CONFIGS[name])
    shard = Shard(model)
    assert sum(vars(parameters(shard)).values()) == pytest.approx(billions * 1e9, rel=0.01)
    assert shard.kv_bytes_per_token == kv_bytes
    assert model.n_state_layers * shard.state_bytes == state_bytes


def with_text(config: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return a config with further keys of its text part."""
    inner = next((key for key in TEXT_PARTS if key in config), None)
    return {**config, **keys} if inner is None else {**config, inner: with_text(config[inner], keys)}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_invented_key_is_refused_in_every_family(tmp_path: Path, name: str) -> None:
    config = CONFIGS[name]
    invented = {"attention_stride": 4}
    changed = with_text(config, invented)
    with pytest.raises(CatalogError, match="not understood, got attention_stride: 4"):
        read(tmp_path, changed)


@pytest.mark.parametrize(
    ("name", "keys", "text"),
    [
        (
            "Gemma-3n-E4B-it",
            {"num_kv_shared_layers": 35},
            "num_kv_shared_layers must leave layers of 35 that keep keys",
        ),
        (
            "Gemma-3n-E4B-it",
            {"num_kv_shared_layers": 40},
            "num_kv_shared_layers must leave layers of 35 that keep keys",
        ),
        ("GLM-4.7-Flash", {"kv_lora_rank": None}, "kv_lora_rank is missing; latent attention"),
        (
            "GLM-4.7-Flash",
            {"n_routed_experts": None},
            "n_routed_experts must be at least 2 in a file with moe_intermediate_size and num_experts_per_tok",
        ),
        ("GLM-4.7-Flash", {"intermediate_size": None}, "intermediate_size is missing; layers without experts have"),
        ("GLM-5", {"index_topk": None}, "index_topk is missing; sparse attention"),
        (
            "MiMo-V2-Flash",
            {"swa_num_key_value_heads": 5},
            "swa_num_key_value_heads must divide swa_num_attention_heads 64",
        ),
        ("LFM2-1.2B", {"full_attn_idxs": [2, 16]}, "full_attn_idxs must name some of 16 layers, from 0 on, got 16"),
        ("LFM2-1.2B", {"block_ffn_dim_multiplier": float("inf")}, "block_ffn_dim_multiplier: must be a finite number"),
    ],
)
def test_layers_and_sizes_that_are_not_there_are_refused(
    tmp_path: Path, name: str, keys: dict[str, Any], text: str
) -> None:
    config = CONFIGS[name]
    inner = "text_config" if "text_config" in config else None
    changed = {**config, **keys} if inner is None else {**config, inner: {**config[inner], **keys}}
    with pytest.raises(CatalogError, match=text):
        read(tmp_path, changed)
