"""Campaigns: how the clients and servers of tables of runs were started, as far as that is documented."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from simserve import catalog, plugins
from simserve.lab.runs import MeasuredRun

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """Tokens of a step: `least`, or isl + concurrency + `spare` if more."""

    least: int = 0
    spare: int | None = None

    def tokens(self, isl: int, concurrency: int) -> int:
        """Return the budget of a run."""
        return self.least if self.spare is None else max(self.least, isl + concurrency + self.spare)

    def __str__(self) -> str:
        by_run = "" if self.spare is None else f"isl + concurrency + {self.spare}"
        return ", at least ".join(text for text in (by_run, str(self.least or "")) if text)


@dataclass(frozen=True)
class Campaign:
    """How the client and the servers of a table were run, as far as it is documented."""

    name: str
    source: str
    requests_per_client: int = 10
    """Measured requests per client; all clients send their first request at once."""
    shortest_frac: float = 1.0
    """Lengths are uniform between this share of isl and osl, and all of it."""
    budgets: Mapping[str, "Budget"] = field(default_factory=dict)
    """Token budget of a step by server, see `of_server`; others keep their own."""
    slots_by_concurrency: bool = False
    """Whether servers run at most `concurrency` requests at once."""
    memory_fracs: Mapping[str, float] = field(default_factory=dict)
    """gpu_memory_utilization by server; others keep their own."""
    kv_dtypes: Mapping[str, str] = field(default_factory=dict)
    """Dtype of the cache by server; bf16 for others."""
    kv_as_weights: frozenset[str] = frozenset()
    """Engines that use an fp8 cache with fp8 weights."""
    moe_backends: Mapping[str, str] = field(default_factory=dict)
    """Kernels of experts by server; others choose by themselves."""
    recv_intervals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Decode steps after which SGLang looks for arrivals, below MANY_CLIENTS and from there on; one for others."""
    cold_start_s: Mapping[str, float] = field(default_factory=dict)
    """Time by which a server that was not warmed up delays its first step, by server."""

    def moe_backend(self, engine: str, model: str, gpu: str) -> dict[str, str]:
        """Return the engine's setting of the kernels of experts; empty where it chooses by itself."""
        backend = of_server(self.moe_backends, engine, model, gpu)
        return {} if backend is None else {"moe_backend": backend}

    def cold_share_s(self, *server: str) -> float:
        """Return what a cold start adds to mean TTFT: the first request of each client waits for the first step."""
        return (of_server(self.cold_start_s, *server) or 0.0) / self.requests_per_client


COLD_START_S = {
    "sglang deepseek-v3": 1.3,
    "trtllm deepseek-v3": 1.7,
    "trtllm gpt-oss-120b": 0.6,
    "vllm minimax-m2.5": 0.65,
    "trtllm deepseek-v3 b200-sxm": 0.0,
    "trtllm gpt-oss-120b b200-sxm": 0.0,
    "vllm minimax-m2.5 0.19.0": 0.0,
}
"""Time by which a server that no request had warmed up delays its first step, by server. DeepSeek: the median over
runs of other versions of the gap between mean and median TTFT; others: of what means lack, which those on a B200 and of
a later version do not (docs/validation.md)."""

MANY_CLIENTS = 16
"""Clients from which InferenceX's scripts let SGLang look less often."""

RECV_INTERVALS = {
    "sglang b200-sxm": (10, 30),
    "sglang b300-sxm": (10, 30),
    "sglang glm-5 fp8_block": (1, 1),
    "sglang glm-5 nvfp4": (10, 10),
    "sglang qwen3.5-397b-a17b nvfp4 b200-sxm": (30, 30),
    "sglang qwen3.5-397b-a17b fp8_block b300-sxm": (10, 10),
}
"""--scheduler-recv-interval of SGLang on Blackwell (InferenceX: dsr1_fp8_b200.sh, qwen3.5_bf16_b200.sh,
glm5_fp4_b200.sh and their siblings)."""

CAMPAIGNS = {
    "aiconfigurator": Campaign(
        name="aiconfigurator",
        source="NVIDIA aiconfigurator: genai-perf with 10 requests per client and fixed lengths after a warm-up "
        "(eval/benchmarks/genai_perf_runner.py); max_num_tokens = batch + isl + 1500 (generator/rule_plugin/"
        "benchmark). Runs of Qwen3-32B that wait for KV tell SGLang's mem_fraction_static: 0.8",
        budgets={"vllm": Budget(spare=1500), "trtllm": Budget(spare=1500)},
        memory_fracs={"sglang qwen3-32b": 0.8},
        kv_as_weights=frozenset({"trtllm"}),
    ),
    "inferencemax": Campaign(
        name="inferencemax",
        source="SemiAnalysis InferenceMAX (InferenceX), benchmarks/*.sh: 10 requests per client, lengths uniform in "
        "0.8 to 1 of nominal; vLLM and TensorRT-LLM with an fp8 cache, but for MiniMax and gpt-oss on Hopper; SGLang "
        "on Hopper with the model's, on Blackwell with an fp8 cache for weights of at most 8 bits; vLLM with "
        "VLLM_MXFP4_USE_MARLIN=1 on Hopper, and on B200 with VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 "
        "(gptoss_fp4_b200.sh)",
        shortest_frac=0.8,
        budgets={
            "vllm": Budget(8192),
            "trtllm": Budget(8192, spare=64),
            "trtllm deepseek-v3": Budget(spare=64),
            "trtllm gpt-oss-120b": Budget(20000),
            "sglang": Budget(32768),
        },
        slots_by_concurrency=True,
        memory_fracs={
            "sglang": 0.82,
            "sglang glm-5": 0.85,
            "trtllm": 0.75,
            "trtllm gpt-oss-120b": 0.85,
            "vllm minimax-m2.5": 0.95,
        },
        kv_dtypes={
            "vllm": "fp8",
            "trtllm": "fp8",
            "vllm gpt-oss-120b": "bf16",
            "trtllm gpt-oss-120b": "bf16",
            "vllm gpt-oss-120b b200-sxm": "fp8",
            "trtllm gpt-oss-120b b200-sxm": "fp8",
            "trtllm gpt-oss-120b gb200": "fp8",
            "vllm minimax-m2.5": "bf16",
            "vllm minimax-m2.5 b200-sxm": "fp8",
            "vllm minimax-m2.5 b300-sxm": "fp8",
            "sglang b200-sxm": "fp8",
            "sglang b300-sxm": "fp8",
            "sglang qwen3.5-397b-a17b bf16": "bf16",
        },
        moe_backends={
            "vllm gpt-oss-120b h100-sxm": "marlin",
            "vllm gpt-oss-120b h200-sxm": "marlin",
            "vllm gpt-oss-120b b200-sxm": "flashinfer_trtllm_afp8",
        },
        recv_intervals=RECV_INTERVALS,
        cold_start_s=COLD_START_S,
    ),
    "plain": Campaign(name="plain", source="10 requests per client, fixed lengths, the engine's defaults"),
}


def of_server(settings: Mapping[str, T], *server: str) -> T | None:
    """Return the setting of the key that says most of a server: engine, and any of model, dtype, GPU and version."""
    keys = [key for key in settings if set(key.split()) <= set(server)]
    return settings[max(keys, key=lambda key: len(key.split()))] if keys else None


@dataclass(frozen=True)
class ServingRow:
    """One closed-loop run: `concurrency` requests in flight, all of one shape; means over its requests."""

    engine: str
    engine_version: str
    """Empty: the engine's default."""
    gpu: str
    model: str
    weight_dtype: str
    tp: int
    isl: int
    osl: int
    concurrency: int
    ttft_s: float
    tpot_s: float
    kv_dtype: str = ""
    """Empty: the campaign's."""
    knobs: Mapping[str, int] = field(default_factory=dict)
    ep: int = 1
    """GPUs that share the experts."""


def run_of(row: ServingRow, campaign: Campaign, source: str = "") -> MeasuredRun:
    """Return a row as a run of a campaign; source: the name of its table."""
    split = f"TP {row.tp}" if row.ep == 1 else f"TP {row.tp} EP {row.ep}"
    parallel = f"tensor {row.tp}" if row.ep == 1 else f"tensor {row.tp} expert {row.ep}"
    version = {"version": row.engine_version} if row.engine_version else {}
    return MeasuredRun(
        source=source,
        engine=row.engine,
        version=row.engine_version,
        gpu=row.gpu,
        model=row.model,
        weight_dtype=row.weight_dtype,
        label=f"{row.engine} {row.model} {split} {row.isl}/{row.osl} x {row.concurrency}",
        measured_s={"tpot": row.tpot_s, "ttft": row.ttft_s},
        pools=[_pool(row, campaign)],
        engine_section={**version, **campaign.moe_backend(row.engine, row.model, row.gpu)},
        kv_dtype=_kv_dtype(row, campaign),
        read=asdict(row),
        server=f"{row.model} {row.weight_dtype}: {parallel}",
        tensor=row.tp,
        isl=row.isl,
        osl=row.osl,
        concurrency=row.concurrency,
        requests_per_client=campaign.requests_per_client,
        shortest_frac=campaign.shortest_frac,
        cold_s=campaign.cold_share_s(row.engine, row.model, row.gpu, row.engine_version),
    )


def _pool(row: ServingRow, campaign: Campaign) -> dict[str, Any]:
    """Return the servers of a row as a scenario says them."""
    own = {
        "scheduler": _scheduler(row, campaign) or None,
        "gpu_memory_utilization": of_server(campaign.memory_fracs, row.engine, row.model),
        "num_gpu_blocks": row.knobs.get("num_gpu_blocks"),
    }
    given = {name: value for name, value in own.items() if value is not None}
    return {"parallel": {"tensor": row.tp, "expert": row.ep}, **given}


def _kv_dtype(row: ServingRow, campaign: Campaign) -> str:
    as_weights = row.engine in campaign.kv_as_weights and row.weight_dtype.startswith("fp8")
    own = of_server(campaign.kv_dtypes, row.engine, row.model, row.weight_dtype, row.gpu)
    return row.kv_dtype or ("fp8" if as_weights else own or "bf16")


def _scheduler(row: ServingRow, campaign: Campaign) -> dict[str, Any]:
    """Return the server's knobs under the names of its policy."""
    own = catalog.load_engine(row.engine).scheduler
    policy = plugins.build("schedulers", own)
    budget = of_server(campaign.budgets, row.engine, row.model)
    slots = row.concurrency if campaign.slots_by_concurrency else None
    few_and_many = of_server(campaign.recv_intervals, row.engine, row.model, row.weight_dtype, row.gpu)
    given = {
        policy.budget_argument: row.knobs.get(
            "max_num_batched_tokens", budget and budget.tokens(row.isl, row.concurrency)
        ),
        policy.slots_argument: row.knobs.get("max_num_seqs", slots),
        "scheduler_recv_interval": few_and_many and few_and_many[row.concurrency >= MANY_CLIENTS],
    }
    kept = {name: value for name, value in given.items() if value is not None}
    return {"kind": own["kind"], **kept} if kept else {}
