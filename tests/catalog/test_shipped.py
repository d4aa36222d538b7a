"""Everything in the catalog loads, has its sources, and agrees with physics and with the vendors."""

import re
from dataclasses import fields
from importlib import resources
from typing import Any

import pytest
import yaml

from simserve import catalog
from simserve.scenario.scheduler_rules import engine_arguments

GPUS, MODELS, ENGINES = (catalog.names(kind) for kind in ("gpus", "models", "engines"))


def test_the_catalog_has_what_it_promises() -> None:
    llamas = {"llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b"}
    with_experts = {"mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3"}
    others = {"mistral-7b", "qwen2.5-7b", "qwen2.5-72b", "qwen3-8b", "qwen3-14b", "qwen3-32b"}
    nvidia = {"a100-sxm-40gb", "a100-sxm", "h100-sxm", "h100-pcie", "h200-sxm", "b200-sxm"}
    assert llamas | others | with_experts <= set(MODELS)
    assert nvidia | {"l40s", "rtx-4090", "rtx-pro-6000", "mi300x"} <= set(GPUS)
    assert {"ideal", "sglang", "trtllm", "vllm"} <= set(ENGINES)


@pytest.mark.parametrize("kind", ["models", "gpus", "engines"])
def test_everything_loads_under_its_own_name_and_is_described(kind: str) -> None:
    for name in catalog.names(kind):
        described = catalog.describe(kind, name)
        assert described["name"] == name
        assert described.get("sources") or described["source"]


@pytest.mark.parametrize("name", GPUS)
def test_every_number_of_a_gpu_has_a_source(name: str) -> None:
    gpu = catalog.load_gpu(name)
    facts = {field.name for field in fields(gpu)} - {"name", "sources"}
    assert gpu.sources.keys() == {key for key in facts if getattr(gpu, key) is not None}
    assert all(len(source) >= 10 for source in gpu.sources.values())


UNPRICED = ("a10", "b300-sxm", "gb300", "h20-sxm", "h800-sxm", "mi355x", "tpu-v6e")
"""Cards without a public price of a known day."""


@pytest.mark.parametrize("name", GPUS)
def test_a_price_is_on_demand_of_a_day_that_is_told_and_rounds_what_its_source_says(name: str) -> None:
    gpu = catalog.load_gpu(name)
    if name in UNPRICED:
        assert gpu.sources["price_per_hour_usd"].startswith("assumed: ")
        return
    sentence = re.match(r"\w+, on demand, .*?20\d\d-\d\d-\d\d: (\d+\.\d\d)", gpu.sources["price_per_hour_usd"])
    assert sentence is not None
    assert gpu.price_per_hour_usd == pytest.approx(float(sentence[1]), rel=0.02)


def test_the_rtx_pro_6000_is_the_server_edition_in_all_its_numbers() -> None:
    gpu = catalog.load_gpu("rtx-pro-6000")
    assert (gpu.hbm_bytes_per_s, gpu.flop_per_s["bf16"]) == (1.597e12, 4 * 120e12)  # Workstation: 1.792e12, 503.8e12
    assert all("Server Edition" in gpu.sources[key] for key in ("flop_per_s", "hbm_bytes_per_s", "tdp_w"))


@pytest.mark.parametrize("name", ENGINES)
def test_every_number_of_an_engine_has_a_source(name: str) -> None:
    engine = catalog.load_engine(name)
    facts = {field.name for field in fields(engine)} - {"name", "version", "constants_of", "fitted_to", "sources"}
    assert engine.sources.keys() == {key for key in facts if getattr(engine, key) not in ([], (), None)}
    assert all(engine.sources.values())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_names_its_config_json(name: str) -> None:
    model = catalog.load_model(name)
    assert model.source.startswith("Hugging Face, ") and model.source.endswith("config.json")
    assert model.windowed == name.startswith(("gpt-oss", "gemma", "llama-4"))
    assert (model.n_state_layers > 0) == name.startswith(("qwen3-next", "qwen3.5", "granite", "nemotron-h"))
    assert (model.n_mtp_layers > 0) == name.startswith(("deepseek-v3", "qwen3-next", "qwen3.5", "glm-"))
    assert model.n_heads % model.n_kv_heads == 0


@pytest.mark.parametrize("kind", ["models", "gpus", "engines"])
def test_what_looks_like_a_number_is_one(kind: str) -> None:
    for name in catalog.names(kind):
        text = (resources.files("simserve.catalog") / kind / f"{name}.yaml").read_text()
        for key, value in _leaves(yaml.safe_load(text)):  # YAML 1.1 reads 1e6 as a text
            is_text = key in (
                "kind",
                "source",
                "kernels_like",
                "link_topology",
                "share_of",
                "default",
                "version",
                "weight_dtype",
                "moe_backend",
                "routing",
            ) or key.startswith(("sources.", "except", "async_excludes", "quantizes_before", "gathers_quantized"))
            assert isinstance(value, str) == is_text, f"{name}: {key} is {value!r}"
            assert is_text or value >= 0


def _leaves(data: Any, key: str = "") -> list[tuple[str, Any]]:
    if isinstance(data, dict):
        prefix = "sources." if key == "sources" else ""
        return [leaf for inner, value in data.items() for leaf in _leaves(value, f"{prefix}{inner}")]
    if isinstance(data, list):
        return [leaf for value in data for leaf in _leaves(value, key)]
    return [(key, data)]


# FLOP a clock of one SM in dense 16-bit products with 32-bit sums, from the architecture papers (a compute unit for
# AMD), and the boost clock (of the B200 and the RTX PRO 6000 those that their data sheets imply). A sparse peak would
# be twice what they make.
DENSE = {
    "a100-sxm-40gb": (2048, 1.410e9),
    "a100-sxm": (2048, 1.410e9),
    "h100-sxm": (4096, 1.830e9),
    "h100-pcie": (4096, 1.620e9),
    "h200-sxm": (4096, 1.830e9),
    "b200-sxm": (8192, 1.850e9),
    "l40s": (1024, 2.490e9),
    "rtx-4090": (512, 2.520e9),
    "rtx-pro-6000": (1024, 2.494e9),
    "mi300x": (2048, 2.100e9),
    "h20-sxm": (1024, 1.853e9),  # fewer FLOP a clock than its die could
    "h800-sxm": (4096, 1.830e9),
    "gb200": (8192, 2.008e9),
    "b300-sxm": (8192, 1.856e9),
    "gb300": (8192, 2.008e9),
    "mi325x": (2048, 2.100e9),
    "mi355x": (4096, 2.400e9),
    "l4": (1024, 2.040e9),
    "a10": (1024, 1.695e9),
    "tpu-v6e": (2 * 512 * 256, 1.751e9),  # a matrix unit as wide as its peak implies
}


@pytest.mark.parametrize("name", GPUS)
def test_peaks_are_dense(name: str) -> None:
    gpu = catalog.load_gpu(name)
    flop_a_clock, clock_hz = DENSE[name]
    assert gpu.flop_per_s["bf16"] == pytest.approx(flop_a_clock * gpu.n_sms * clock_hz, rel=0.01)
    assert gpu.flop_per_s["fp16"] == gpu.flop_per_s["bf16"]
    if "fp8" in gpu.flop_per_s:
        assert gpu.flop_per_s["fp8"] == pytest.approx(2 * gpu.flop_per_s["bf16"], rel=0.02)
    if "fp4" in gpu.flop_per_s:
        times = 6 if name in ("b300-sxm", "gb300") else 4  # Blackwell Ultra
        assert gpu.flop_per_s["fp4"] == pytest.approx(times * gpu.flop_per_s["bf16"], rel=0.02)


def test_only_cards_with_fp8_units_have_an_fp8_peak() -> None:
    without = [name for name in GPUS if "fp8" not in catalog.load_gpu(name).flop_per_s]
    assert without == ["a10", "a100-sxm", "a100-sxm-40gb", "tpu-v6e"]


@pytest.mark.parametrize(
    ("name", "gigabytes", "gb_per_s"),
    [
        ("a100-sxm-40gb", 40, 1555),
        ("a100-sxm", 80, 2039),
        ("h100-sxm", 80, 3350),
        ("h100-pcie", 80, 2000),
        ("h200-sxm", 141, 4800),
        ("b200-sxm", 180, 7700),
        ("l40s", 48, 864),
        ("rtx-4090", 24, 1008),
        ("rtx-pro-6000", 96, 1597),
        ("mi300x", 192, 5300),
        ("h20-sxm", 96, 4000),
        ("h800-sxm", 80, 3350),
        ("gb200", 186, 8000),
        ("b300-sxm", 270, 7750),
        ("gb300", 279, 8000),
        ("mi325x", 256, 6000),
        ("mi355x", 288, 8000),
        ("l4", 24, 300),
        ("a10", 24, 600),
        ("tpu-v6e", 32, 1600),
    ],
)
def test_memory_is_what_the_data_sheet_prints(name: str, gigabytes: int, gb_per_s: int) -> None:
    gpu = catalog.load_gpu(name)
    assert gpu.hbm_bytes_per_s == gb_per_s * 1e9
    assert gigabytes * 1e9 < gpu.hbm_bytes <= gigabytes * 2**30 * 1.0001  # sheets round GiB and ECC in either way
    assert gpu.hbm_bytes % 2**20 == 0


def test_the_ideal_engine_adds_nothing_to_the_data_sheet() -> None:
    ideal = catalog.load_engine("ideal")
    assert (ideal.compute_efficiency, ideal.memory_efficiency) == (1, 1)
    assert (ideal.launch_s, ideal.step_host_s, ideal.request_host_s, ideal.reserve_bytes) == (0, 0, 0, 0)


def test_vllm_gives_big_cards_that_are_no_a100_a_larger_budget() -> None:
    (rule,) = catalog.load_engine("vllm").scheduler_by_gpu_bytes
    assert rule["at_least_bytes"] == 70 * 2**30
    assert rule["except"] == [name for name in GPUS if name.startswith("a100")]
    assert rule["arguments"] == {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    big = {name for name in GPUS if catalog.load_gpu(name).hbm_bytes >= 70 * 2**30} - set(rule["except"])
    hopper, blackwell = {"h20-sxm", "h100-pcie", "h100-sxm", "h200-sxm", "h800-sxm"}, {"b200-sxm", "b300-sxm"}
    assert big == hopper | blackwell | {"gb200", "gb300", "rtx-pro-6000", "mi300x", "mi325x", "mi355x"}


def test_sglang_gives_larger_cards_larger_chunks() -> None:
    sglang = catalog.load_engine("sglang")
    of_card = {name: engine_arguments(sglang, catalog.load_gpu(name))["chunked_prefill_size"] for name in GPUS}
    small, medium = {"a10", "l4", "rtx-4090", "tpu-v6e"}, {"a100-sxm-40gb", "l40s"}
    huge = {"b200-sxm", "b300-sxm", "gb200", "gb300", "mi300x", "mi325x", "mi355x"}
    assert {name for name, n_tokens in of_card.items() if n_tokens == 2048} == small
    assert {name for name, n_tokens in of_card.items() if n_tokens == 4096} == medium
    assert {name for name, n_tokens in of_card.items() if n_tokens == 16384} == huge
    assert {of_card[name] for name in set(GPUS) - small - medium - huge} == {8192}
