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

PROPOSED = {("sglang", "h100-sxm"): 2}
"""Tokens that an engine proposes on a card, where its recipe is known (srt-slurm pull request 121,
--speculative-num-steps)."""

VLLM_BUDGET = 8192
"""Tokens of a step of InferenceX's vLLM servers, which are started with as many slots as clients (InferenceX,
benchmarks/*.sh)."""

DEFAULT_BUDGET = "1.3"
"""First version of TensorRT-LLM with the default of 8,192 tokens a step or more in InferenceX's scripts; before, a step
has the campaign's budget (InferenceX, benchmarks/*_trt*.sh)."""

PLANS_AHEAD = "0.14"
"""First version of vLLM that plans steps ahead by default. InferenceX starts older ones with `--async-scheduling`, so
their host is that of this one."""

GATHERS = frozenset({("sglang", "h100-sxm"), ("trtllm", "h100-sxm")})
"""Engines and cards where collectives of NCCL take tokens between nodes: SGLang's recipes leave out --moe-a2a-backend
(srt-slurm pull request 121), and TensorRT-LLM takes DeepEP only with TRTLLM_CAN_USE_DEEP_EP=1."""

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


EXPORTED = {"framework": "Framework", "model": "Model", "precision": "Precision", "spec": "Spec Decoding"}
EXPORTED |= {"hardware": "Hardware", "disagg": "Disaggregated", "decode_dp_attention": "DP Attention"}
EXPORTED |= {"decode_tp": "TP", "decode_ep": "EP", "isl": "ISL", "osl": "OSL", "concurrency": "Concurrency"}
"""Columns of settings, and what exports of InferenceX's page call them."""

EXPORTED_S = {"mean_tpot_s": "Mean TPOT (ms)", "mean_itl_s": "Mean ITL (ms)", "mean_ttft_s": "Mean TTFT (ms)"}
EXPORTED_S |= {"median_ttft_s": "Median TTFT (ms)", "mean_e2el_s": "Mean E2E Latency (ms)"}
"""Columns of times, TPOT first, and what exports call them; those of June 2026 hold seconds."""

INTERACTIVITY = "Mean Interactivity (tok/s/user)"
"""Tokens a second of a client, about 1 over TPOT: it tells the unit of times."""

WORDS = {"true": "True", "false": "False"}


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


def row_of_export(row: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row of an export under the names of settings; without workers where they are disaggregated, as exports
    do not tell. Raises KeyError for a missing column, ValueError for a time that is no number."""
    times = {ours: float(row[theirs]) for ours, theirs in EXPORTED_S.items()}
    scale = 1.0 if next(iter(times.values())) * float(row[INTERACTIVITY]) < 30 else 1e-3
    named = {ours: WORDS.get(row[theirs], row[theirs]) for ours, theirs in EXPORTED.items()}
    return named | {"image": "", "decode_workers": "1"} | {ours: str(scale * time) for ours, time in times.items()}


def run_of_setting(setting: Setting, requests_per_client: int, source: str = "") -> MeasuredRun:
    """Return a setting as a run; source: the name of its table."""
    mtp = "" if setting.tokens_per_step is None else " MTP"
    kind = ("disaggregated" if len(setting.sides) > 1 else "aggregated") + mtp
    name = f"{setting.model} {setting.weight_dtype}"
    about = f"{setting.gpu} {setting.engine} {name} {kind}"
    splits = [" ".join(f"{key} {n}" for key, n in side.parallel.items()) for side in setting.sides]
    sides = [(side, split) for side, split in zip(setting.sides, splits, strict=True)]
    workers = ", ".join(f"{side.workers} {side.role} {split}" for side, split in sides)
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
        engine_section=_engine_section(setting),
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


def _engine_section(setting: Setting) -> dict[str, str]:
    version = {"version": setting.version} if setting.version else {}
    if setting.engine == "vllm" and setting.version:
        version["version"] = max(setting.version, PLANS_AHEAD, key=release)
    return version | CAMPAIGN.moe_backend(setting.engine, setting.model, setting.gpu)


def speculation_of(tokens_per_step: float, n_proposed: int | None = None) -> dict[str, Any]:
    """Return multi-token prediction with that mean, each proposed token accepted as often as the one before it."""
    n = n_proposed or (1 if tokens_per_step < 2 else MOST_PROPOSED)
    roots = np.roots([1.0] * n + [1 - tokens_per_step])
    acceptance = next(float(root.real) for root in roots if abs(root.imag) < 1e-9 and root.real > 0)
    return {"kind": "mtp", "tokens": n, "acceptance": min(acceptance, 1.0)}


def _pool(setting: Setting, side: Side) -> dict[str, Any]:
    parallel: dict[str, Any] = dict(side.parallel)
    if (setting.engine, setting.gpu) in GATHERS:
        parallel["exchange"] = "gather"
    if setting.engine == "trtllm" and side.role == "both" and side.n_ranks > 1:
        parallel["balance"] = BALANCE.get(setting.model)
    pool: dict[str, Any] = {
        "name": side.role,
        "role": side.role,
        "replicas": side.workers,
        "parallel": parallel,
        "enable_prefix_caching": False,
        "max_model_len": setting.isl + setting.osl + SPARE_TOKENS,
    }
    memory_frac = of_server(CAMPAIGN.memory_fracs, setting.engine, setting.model)
    if memory_frac is not None:
        pool["gpu_memory_utilization"] = memory_frac
    if setting.engine == "vllm":
        limits = {"max_num_batched_tokens": VLLM_BUDGET, "max_num_seqs": setting.concurrency}
        pool["scheduler"] = {"kind": "chunked", **limits}
    if setting.engine == "trtllm" and side.role == "both":
        pool["scheduler"] = {"kind": "trtllm", **_trtllm_limits(setting, side)}
    if setting.tokens_per_step is not None:
        pool["speculation"] = speculation_of(setting.tokens_per_step, PROPOSED.get((setting.engine, setting.gpu)))
    return pool


def _trtllm_limits(setting: Setting, side: Side) -> dict[str, int]:
    """Return the slots and the tokens a step of an aggregated TensorRT-LLM server, as far as its script sets them."""
    if setting.model == "deepseek-v3" and setting.tokens_per_step is not None:
        slots = max(1, setting.concurrency // side.n_ranks)
        n_tokens = 1 + (MOST_PROPOSED if side.n_ranks == 1 else 1)
        return {"max_batch_size": slots, "max_num_tokens": n_tokens * slots + setting.isl + MTP_SPARE}
    if release(setting.version) >= release(DEFAULT_BUDGET):
        return {}
    budget = CAMPAIGN.budgets.get(f"trtllm {setting.model}", CAMPAIGN.budgets["trtllm"])
    return {"max_num_tokens": budget.tokens(setting.isl, setting.concurrency)}
