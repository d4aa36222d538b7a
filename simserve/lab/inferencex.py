"""How InferenceX starts the servers of its settings, aggregated or disaggregated, as far as its scripts say."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simserve.cost.calibration import release
from simserve.lab.campaigns import CAMPAIGNS, of_server
from simserve.lab.runs import MeasuredRun

CAMPAIGN = CAMPAIGNS["inferencemax"]
"""How they start aggregated servers."""

SPARE_TOKENS = 256
"""Tokens of a server's longest request beyond isl + osl (InferenceX, benchmarks/*.sh)."""

MOST_PROPOSED = 3
"""Most tokens that servers of these settings propose; clients that see more at once get several steps together."""

PROPOSED = {("sglang", "h100-sxm"): 2, ("sglang", "h200-sxm"): 2, ("sglang", "b200-sxm"): 2}
"""Tokens that an engine proposes on a card, where its recipe is known (srt-slurm pull request 121 and
recipes/b200-fp8/1k1k-mtp.yaml, speculative-num-steps; InferenceX, dsr1_fp8_h200_mtp.sh)."""

MTP_TOKENS_PER_STEP = 1.85
"""Tokens of a step with one proposed token, 85 to 90% of which are right (DeepSeek-V3 report, section 5.4.3)."""

MOST_TOKENS_PER_STEP = sum((MTP_TOKENS_PER_STEP - 1) ** n for n in range(MOST_PROPOSED + 1))
"""Tokens of a step if each proposed token is right as often as the first: no server does better."""

STREAMED = {"sglang": (1, 10, 30, 50), "trtllm": (1, 10, 20, 100)}
"""Steps between two messages to a client (TensorRT-LLM, stream_interval), or tokens, where a step that jumps over the
last one sends nothing (SGLang, --stream-interval): as scripts and recipes set them (InferenceX, srt-slurm)."""

TRAY_SHARE = {("sglang", "gb200"): 0.95}
"""Share of memory of workers without ranks on the four GPUs of a tray (srt-slurm, recipes/gb200-fp8/1k1k/
low-latency.yaml, mem-fraction-static)."""

VLLM_BUDGET = 8192
"""Tokens of a step of InferenceX's vLLM servers, which are started with as many slots as clients (InferenceX,
benchmarks/*.sh)."""

SGLANG_TOKENS = {"h200-sxm": 32768}
"""Tokens of a step with prompts of aggregated servers under SGLang, by card (InferenceX, dsr1_fp8_h200.sh)."""

DEFAULT_BUDGET = "1.3"
"""First version of TensorRT-LLM with the default of 8,192 tokens a step or more in InferenceX's scripts; before, a step
has the campaign's budget (InferenceX, benchmarks/*_trt*.sh)."""

PLANS_AHEAD = "0.14"
"""First version of vLLM that plans steps ahead by default. InferenceX starts older ones with `--async-scheduling`, so
their host is that of this one."""

PREFILL_TOKENS = {"deepseek-v3": 16384, "gpt-oss-120b": 20000}
"""Tokens of a step of servers under TensorRT-LLM that only prefill (srt-slurm, gb200/1k1k/stp and
recipes/trtllm/gptoss-fp4, max_num_tokens)."""

TRAY = 4
"""GPUs of a tray of GB200."""

GATHERS = frozenset({("sglang", "h100-sxm"), ("trtllm", "h100-sxm")})
"""Engines and cards where collectives of NCCL take tokens between nodes: SGLang's recipes leave out --moe-a2a-backend
(srt-slurm pull request 121), and TensorRT-LLM takes DeepEP only with TRTLLM_CAN_USE_DEEP_EP=1."""

WIDE_NODES, MOST_GATHERED = frozenset({"gb200", "gb300"}), 8
"""Cards where more than MOST_GATHERED ranks send tokens straight to experts (TensorRT-LLM, fused_moe_wide_ep.py:
moe_ep_size above top_k; SGLang, srt-slurm, recipes/gb200-fp4/1k1k/max-tpt.yaml: moe-a2a-backend deepep)."""

BALANCE: Mapping[str, Mapping[str, int]] = {
    "gpt-oss-120b": {},
    "deepseek-v3": {"timeout_iters": 60, "batching_wait_iters": 0},
}
"""How aggregated TensorRT-LLM servers with DP attention wait for balance (InferenceX, benchmarks/*_trt*.sh,
attention_dp_config); empty: by the engine's defaults."""

MTP_SPARE = 64
"""Tokens of a step besides a prompt and those of all slots, with multi-token prediction (InferenceX,
dsr1_fp8_h200_trt_mtp.sh: a slot for each client; one proposed token in place of three with DP attention)."""

NOT_WARMED_UP = frozenset({"deepseek-v3"})
"""Models of servers that began cold: means of TTFT exceed medians by a second over the requests per client. Those of
gpt-oss do not."""


@dataclass(frozen=True)
class Side:
    """The workers of one role, all alike."""

    role: str
    workers: int
    parallel: Mapping[str, int]

    @property
    def n_ranks(self) -> int:
        """Data-parallel ranks of a worker."""
        return self.parallel.get("data", 1)


@dataclass(frozen=True)
class Setting:
    """One closed-loop run: servers, client, and means over its requests."""

    gpu: str
    engine: str
    version: str
    """Empty where the image does not tell."""
    model: str
    weight_dtype: str
    kv_dtype: str
    sides: tuple[Side, ...]
    tokens_per_step: float | None
    """Mean tokens of a decode step with multi-token prediction; None without."""
    isl: int
    osl: int
    concurrency: int
    measured_s: Mapping[str, float]
    """Seconds by latency: METRICS of runs.py, and median_ttft."""


def run_of_setting(setting: Setting, requests_per_client: int, source: str = "") -> MeasuredRun:
    """Return a setting as a run; source: the name of its table."""
    mtp = "" if setting.tokens_per_step is None else " MTP"
    kind = ("disaggregated" if len(setting.sides) > 1 else "aggregated") + mtp
    name = f"{setting.model} {setting.weight_dtype}"
    about = f"{setting.gpu} {setting.engine} {name} {kind}"
    splits = [" ".join(f"{key} {n}" for key, n in side.parallel.items()) for side in setting.sides]
    sides = [(side, split) for side, split in zip(setting.sides, splits, strict=True)]
    workers = ", ".join(f"{side.workers} {side.role} {split}" for side, split in sides)
    version = {"version": setting.version} if setting.version else {}
    if setting.engine == "vllm" and setting.version:
        version["version"] = max(setting.version, PLANS_AHEAD, key=release)
    return MeasuredRun(
        source=source,
        engine=setting.engine,
        version=setting.version,
        gpu=setting.gpu,
        model=setting.model,
        weight_dtype=setting.weight_dtype,
        label=f"{about} ({workers}) {setting.isl}/{setting.osl} x {setting.concurrency}",
        measured_s=setting.measured_s,
        pools=[_pool(setting, side) for side in setting.sides],
        engine_section=version | CAMPAIGN.moe_backend(setting.engine, setting.model, setting.gpu),
        kv_dtype=setting.kv_dtype,
        read=asdict(setting),
        server=f"{name}{mtp}: {', '.join(f'{side.role} {split}' for side, split in sides)}",
        kind=kind,
        isl=setting.isl,
        osl=setting.osl,
        concurrency=setting.concurrency,
        requests_per_client=requests_per_client,
        shortest_frac=CAMPAIGN.shortest_frac,
    )


def tokens_per_step(engine: str, seen: float, osl: int) -> float:
    """Return the tokens of a step, where a message holds `seen` on average: those that the shortest of the engine's
    intervals leaves possible, or as published. The last message of an answer holds half an interval."""
    for interval in STREAMED.get(engine, (1,)):
        steps = interval / seen - (interval - 1) / (osl * (1 + CAMPAIGN.shortest_frac))
        if steps > 0 and 1 < 1 / steps < MOST_TOKENS_PER_STEP:
            return 1 / steps
    return MTP_TOKENS_PER_STEP


def speculation_of(tokens_per_step: float, n_proposed: int | None = None) -> dict[str, Any]:
    """Return multi-token prediction with that mean, each proposed token accepted as often as the one before it."""
    n = n_proposed or (1 if tokens_per_step < 2 else MOST_PROPOSED)
    roots = np.roots([1.0] * n + [1 - tokens_per_step])
    acceptance = next(float(root.real) for root in roots if abs(root.imag) < 1e-9 and root.real > 0)
    return {"kind": "mtp", "tokens": n, "acceptance": min(acceptance, 1.0)}


def _pool(setting: Setting, side: Side) -> dict[str, Any]:
    server, is_alone = (setting.engine, setting.gpu), side.role == "both"
    is_wide = setting.gpu in WIDE_NODES and side.n_ranks > MOST_GATHERED
    waits = setting.engine == "trtllm" and is_alone and side.n_ranks > 1
    parallel = {
        "exchange": "all_to_all" if is_wide else "gather" if server in GATHERS else None,
        "balance": BALANCE.get(setting.model) if waits else None,
    }
    memory_frac = of_server(CAMPAIGN.memory_fracs, setting.engine, setting.model)
    if not is_alone and side.parallel == {"tensor": TRAY, "expert": 1}:
        memory_frac = TRAY_SHARE.get(server, memory_frac)
    limits, mean = _limits(setting, side), setting.tokens_per_step
    optional = {
        "gpu_memory_utilization": memory_frac,
        "scheduler": {"kind": "chunked" if setting.engine == "vllm" else setting.engine, **limits} if limits else None,
        "speculation": None if mean is None else speculation_of(mean, PROPOSED.get(server)),
    }
    return {
        "name": side.role,
        "role": side.role,
        "replicas": side.workers,
        "parallel": {**side.parallel, **{key: value for key, value in parallel.items() if value is not None}},
        "enable_prefix_caching": False,
        "max_model_len": setting.isl + setting.osl + SPARE_TOKENS,
        **{key: value for key, value in optional.items() if value is not None},
    }


def slots_of(n_clients: float) -> int | None:
    """Return the slots of a decoding rank with so many clients, None for a whole number of them: TensorRT-LLM's recipes
    give it a power of two or three times one, and send up to a third more requests, which wait (srt-slurm,
    recipes/trtllm/b200-fp8/1k1k/stp/ctx2_gen5_dep8_batch128_eplb0_mtp0_5152.yaml)."""
    if n_clients < 1 or n_clients.is_integer():
        return None
    power = 1 << int(n_clients).bit_length() - 1
    return power * 3 // 2 if power * 1.5 <= n_clients else power


def _limits(setting: Setting, side: Side) -> dict[str, int]:
    """Return the slots and the tokens a step of a server, as far as its script or recipe sets them."""
    if setting.engine == "vllm":
        return {"max_num_batched_tokens": VLLM_BUDGET, "max_num_seqs": setting.concurrency}
    if setting.engine != "trtllm":
        n_tokens = SGLANG_TOKENS.get(setting.gpu) if setting.engine == "sglang" and side.role == "both" else None
        return {} if n_tokens is None else {"chunked_prefill_size": n_tokens, "max_prefill_tokens": n_tokens}
    if side.role == "prefill":
        return {"max_num_tokens": PREFILL_TOKENS[setting.model]} if setting.model in PREFILL_TOKENS else {}
    if side.role == "decode":
        slots = slots_of(setting.concurrency / (side.workers * side.n_ranks)) if side.n_ranks > 1 else None
        return {} if slots is None else {"max_batch_size": slots}
    if setting.model == "deepseek-v3" and setting.tokens_per_step is not None:
        slots = max(1, setting.concurrency // side.n_ranks)
        n_tokens = 1 + (MOST_PROPOSED if side.n_ranks == 1 else 1)
        return {"max_batch_size": slots, "max_num_tokens": n_tokens * slots + setting.isl + MTP_SPARE}
    if release(setting.version) >= release(DEFAULT_BUDGET):
        return {}
    budget = CAMPAIGN.budgets.get(f"trtllm {setting.model}", CAMPAIGN.budgets["trtllm"])
    return {"max_num_tokens": budget.tokens(setting.isl, setting.concurrency)}
