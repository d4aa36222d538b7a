"""KV capacity against what real servers printed when they started.

`GPU KV cache size` of vLLM, `KV Cache is allocated` of SGLang. A row has all that the log or its command says; knobs
that it does not say are the defaults of `vllm serve` (of the LLM class, where that was used) on that GPU.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from simserve import catalog
from simserve.cost.kept_free import ServerKnobs, memory_share
from simserve.cost.memory import MemoryLedger
from simserve.units import GIB
from tests.cost.specs import ledger_of

FP8_235B = {"model": "qwen3-235b-a22b", "weight_dtype": "fp8_block"}

OF_0_19 = {"max_num_seqs": 1024, "gpu_memory_utilization": 0.95}


@dataclass(frozen=True)
class Log:
    """A server that told its KV capacity."""

    source: str
    gpu: str
    kv_tokens: int
    knobs: dict[str, Any] = field(default_factory=dict)
    engine: str = "vllm"
    version: str = "0.12"
    tolerance: float = 0.05

    def ours(self) -> MemoryLedger:
        """What we would have told."""
        knobs: dict[str, Any] = {
            "model": "llama-3.1-8b",
            "weight_dtype": "bf16",
            "kv_dtype": "bf16",
            "tensor": 1,
            "gpu_memory_utilization": 0.9,
            "block_size": 16,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
        } | self.knobs
        engine = catalog.load_engine(self.engine, version=self.version)
        return ledger_of(catalog.load_model(knobs.pop("model")), catalog.load_gpu(self.gpu), engine, **knobs)


LOGS = [
    Log("github.com/ilseokoh/vllm-gce README: vLLM 0.15.1, LLM class, eager", "a100-sxm-40gb", 157_936),
    Log(
        "a course's notes on vLLM 0.31, docker image, default arguments",
        "a100-sxm",
        460_496,
        {"gpu_memory_utilization": 0.92, "max_num_batched_tokens": 2048},
        version="0.31",
    ),
    Log("an example in a book: vLLM V0, 54.93 GiB for KV cache", "h100-sxm", 449_986),
    Log(
        "notes on hosting Qwen3-235B-A22B-FP8: vLLM 0.10.2, TP 8, expert parallel",
        "l40s",
        238_208,
        {**FP8_235B, "tensor": 8, "expert": 8, "max_num_batched_tokens": 2048},
    ),
    Log(
        "notes on Ollama and vLLM: vLLM 0.10.2, Qwen3-30B-A3B-FP8, TP 2, expert parallel",
        "l40s",
        566_016,
        {
            "model": "qwen3-30b-a3b",
            "weight_dtype": "fp8_block",
            "tensor": 2,
            "expert": 2,
            "gpu_memory_utilization": 0.95,
            "max_num_batched_tokens": 2048,
        },
    ),
    Log(
        "vllm-project/vllm#21348: TP 4, with a KV connector, whose own buffers may be what is missing (0.8 GiB)",
        "h100-sxm",
        178_880,
        {**FP8_235B, "tensor": 4, "max_num_seqs": 1024},
        tolerance=0.11,
    ),
    Log(
        "vllm-project/vllm#21348: the same on SGLang, --mem-fraction-static 0.93",
        "h100-sxm",
        367_404,
        {**FP8_235B, "tensor": 4, "gpu_memory_utilization": 0.93, "block_size": 1},
        engine="sglang",
        version="0.5",
        tolerance=0.005,
    ),
    Log(
        "notes on Qwen3-32B over two cards, 40.47 of 95.0 GiB of each: vLLM after 0.29 by its line numbers, TP 2",
        "rtx-pro-6000",
        67_296,
        {"model": "qwen3-32b", "tensor": 2, "gpu_memory_utilization": 0.426, "max_num_seqs": 1024},
        version="0.30",
    ),
    Log("start-up logs of vLLM 0.19.0", "h100-sxm", 476_016, OF_0_19, version="0.19", tolerance=0.005),
    Log(
        "start-up logs of vLLM 0.19.0",
        "h100-sxm",
        1_096_000,
        {**OF_0_19, "model": "qwen2.5-7b"},
        version="0.19",
        tolerance=0.005,
    ),
]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.gpu}-{log.kv_tokens}")
def test_the_kv_cache_holds_as_many_tokens_as_the_server_said(log: Log) -> None:
    assert log.ours().kv_tokens == pytest.approx(log.kv_tokens, rel=log.tolerance)


@pytest.mark.parametrize(
    ("gpu", "version", "knobs", "share"),
    [
        ("h100-sxm", "0.5.8", ServerKnobs(8192, 1), 0.835),  # start-up logs of CI
        ("h200-sxm", "0.5.8", ServerKnobs(8192, 1), 0.907),  # start-up logs of CI
        ("h200-sxm", "0.5.8", ServerKnobs(8192, 8, has_latent=True), 0.897),  # notes on DeepSeek-V3.2, TP 8
        # by hand: MiB of kept memory over those of the card
        ("h100-sxm", "0.5.1", ServerKnobs(8192, 2), 1 - (9728 + 2 * 512) / 81559),
        ("h100-sxm", "0.5.1", ServerKnobs(8192, 8, n_ranks=8), 1 - (9728 + 8 * 512 + 4096) / 81559),
        ("h100-sxm", "0.5.8", ServerKnobs(2048, 1), 1 - 10240 / 81559),  # the least
        ("h200-sxm", "0.5.8", ServerKnobs(8192, 2, drafts="eagle"), 1 - (13568 + 2048) / 143771),
        ("h200-sxm", "0.5.8", ServerKnobs(8192, 8, 8), 1 - (14848 + 512 * 8 * 4.5) / 143771),
        ("h200-sxm", "0.5.8", ServerKnobs(8192, 2, 2), 1 - (13568 + 256 * 2 * 3) / 143771),
        ("h200-sxm", "0.5.12", ServerKnobs(8192, 1), 1 - (13440 + 57 * 8) / 143771),
        ("h200-sxm", "0.5.12", ServerKnobs(8192, 1, has_latent=True), 1 - (13440 + 1536) / 143771),
        ("h200-sxm", "0.5.12", ServerKnobs(8192, 1, captures_prompts=False), 1 - 13440 / 143771),
        ("mi300x", "0.5.12", ServerKnobs(16384, 1, captures_prompts=False), 1 - (512 + 24576 + 1024 + 128) / 196592),
        ("l4", "0.5.12", ServerKnobs(2048, 1, captures_prompts=False), 1 - (512 + 3072 + 48 + 128) / 23034),
    ],
)
def test_sglang_keeps_as_much_memory_free_as_its_rule_says(
    gpu: str, version: str, knobs: ServerKnobs, share: float
) -> None:
    engine = catalog.load_engine("sglang", version=version)
    assert memory_share(engine, catalog.load_gpu(gpu), knobs) == round(share, 3)


@pytest.mark.parametrize(
    ("name", "tensor", "dtype", "gib"),
    [
        ("llama-3.1-8b", 1, "bf16", 14.99),  # vllm-project/vllm#17122
        ("qwen3-32b", 1, "bf16", 61.04),  # vllm-project/vllm#16303
        ("qwen3-32b", 2, "bf16", 30.59),
        ("qwen3-30b-a3b", 1, "bf16", 56.93),
        ("qwen3-30b-a3b", 4, "bf16", 14.25),  # vllm-project/vllm#17327
        ("qwen3-235b-a22b", 8, "fp8_block", 27.72),
        ("gpt-oss-120b", 1, "mxfp4", 64.38),  # vllm-project/vllm#33155
    ],
)
def test_weights_take_what_loading_them_took(name: str, tensor: int, dtype: str, gib: float) -> None:
    log = Log("", "b200-sxm", 0, {"model": name, "tensor": tensor, "weight_dtype": dtype})
    assert log.ours().weights_bytes / GIB == pytest.approx(gib, rel=0.005)


@pytest.mark.parametrize(
    ("name", "gpu", "n_seqs", "n_tokens", "gib"),
    [
        ("qwen3-235b-a22b", "l40s", 256, 2048, 1.40),  # vLLM 0.10.2, TP 8
        ("qwen3-8b", "l40s", 256, 2048, 1.40),  # vLLM on an RTX A6000
        ("qwen3-30b-a3b", "h100-sxm", 1024, 8192, 5.58),  # vLLM, data parallel 2
        ("llama-3.1-8b", "h100-sxm", 256, 8192, 1.26),  # vllm-project/vllm#10511
    ],
)
def test_the_activation_peak_is_what_the_profile_said(
    name: str, gpu: str, n_seqs: int, n_tokens: int, gib: float
) -> None:
    log = Log("", gpu, 0, {"model": name, "max_num_seqs": n_seqs, "max_num_batched_tokens": n_tokens})
    assert log.ours().activations_bytes / GIB == pytest.approx(gib, rel=0.04)


GRANITE_8B = {
    "model_type": "granite",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 49155,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
NON_TORCH_GIB = {1: 0.25, 2: 2.07, 4: 2.13}
"""By GPUs of a tensor-parallel group: start-up logs of vLLM 0.19 on H100."""


def kv_error(ours: MemoryLedger, peak_gib: float, non_torch_gib: float) -> float:
    """Return how far the bytes left for KV are off those beside a logged activation peak and non-torch memory."""
    left = ours.usable_bytes - ours.weights_bytes
    logged = left - (peak_gib + non_torch_gib) * GIB
    return abs((left - ours.activations_bytes - ours.reserve_bytes) / logged - 1)


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("llama-3.1-8b", 1.89),
        ("qwen2.5-7b", 2.21),
        ("qwen3-8b", 2.21),
        ("qwen3-14b", 2.23),
        ("qwen3-30b-a3b", 2.68),
        ("gpt-oss-20b", 2.87),
        ("gpt-oss-120b", 2.87),
        ("gemma-2-9b", 3.6),
        ("gemma-2-27b", 3.6),
        ("gemma-3-12b", 3.9),
        ("gemma-3-27b", 3.9),
        ("phi-4", 1.52),
        (GRANITE_8B, 0.8),
        (DEEPSEEK_V2_LITE, 1.93),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_the_memory_of_vllm_0_19_is_what_it_logged(
    name: str | dict[str, Any], tensor: int, gib: float, tmp_path: Path
) -> None:
    if isinstance(name, dict):
        (tmp_path / "config.json").write_text(json.dumps(name))
        name = str(tmp_path / "config.json")
    weight_dtype = "mxfp4" if name.startswith("gpt-oss") else "bf16"
    knobs = {**OF_0_19, "model": name, "tensor": tensor, "weight_dtype": weight_dtype}
    ours = Log("", "h100-sxm", 0, knobs, version="0.19").ours()
    assert ours.activations_bytes / GIB == pytest.approx(gib, rel=0.06)  # it does not change with TP
    assert ours.reserve_bytes / GIB == pytest.approx(NON_TORCH_GIB[tensor], rel=0.03)
    assert kv_error(ours, gib, NON_TORCH_GIB[tensor]) < 0.01


def test_the_memory_of_mixtral_on_two_gpus_is_what_vllm_0_19_logged() -> None:
    ours = Log("", "h100-sxm", 0, {**OF_0_19, "model": "mixtral-8x7b", "tensor": 2}, version="0.19").ours()
    assert ours.activations_bytes / GIB == pytest.approx(1.21, rel=0.04)
    assert kv_error(ours, 1.21, NON_TORCH_GIB[2]) < 0.01


@pytest.mark.parametrize(("pipeline", "gib"), [(2, 1.10), (4, 1.05)])
def test_the_memory_of_a_pipeline_is_nearly_what_vllm_0_19_logged(pipeline: int, gib: float) -> None:
    ours = Log("", "h100-sxm", 0, {**OF_0_19, "pipeline": pipeline}, version="0.19").ours()
    assert ours.reserve_bytes / GIB < 0.3  # 0.07: stages send without the buffers of a tensor-parallel group
    assert (
        kv_error(ours, gib, 0.07) < 0.02
    )  # the peak that was logged is lower than that of the last stage, which samples


@pytest.mark.parametrize("max_model_len", [2048, 32768])
@pytest.mark.parametrize("log", [log for log in LOGS if log.version == "0.19"], ids=lambda log: str(log.kv_tokens))
def test_the_longest_request_does_not_change_the_kv_cache(log: Log, max_model_len: int) -> None:
    assert replace(log, knobs={**log.knobs, "max_model_len": max_model_len}).ours().kv_tokens == log.ours().kv_tokens


@pytest.mark.parametrize(
    ("share", "n_tokens", "available_gib"),
    [(0.9, 8192, -2.14), (0.95, 1024, 1.71)],  # vllm-project/vllm#23278 and #27508
)
def test_gpt_oss_120b_has_next_to_no_room_on_an_h100(share: float, n_tokens: int, available_gib: float) -> None:
    knobs = {"model": "gpt-oss-120b", "weight_dtype": "mxfp4", "max_num_seqs": 1024}
    ours = Log("", "h100-sxm", 0, {**knobs, "gpu_memory_utilization": share, "max_num_batched_tokens": n_tokens}).ours()
    marlin_bytes = 65.97 * GIB - ours.weights_bytes  # those servers padded more than Triton's kernels do
    available = ours.usable_bytes - ours.weights_bytes - ours.activations_bytes - ours.reserve_bytes - marlin_bytes
    assert available / GIB == pytest.approx(available_gib, abs=0.2)
