"""Closed-loop benchmark runs of real servers, replayed: measured against predicted means."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simserve import catalog, plugins
from simserve.errors import CalibrationError, CatalogError, ScenarioError, did_you_mean
from simserve.input_files import ANSWER_BYTES, read_file
from simserve.scenario import Scenario
from simserve.simulation import simulate

NEEDED = (
    *("engine", "engine_version", "gpu", "model", "weight_dtype", "tp", "isl", "osl", "concurrency"),
    *("ttft_ms_mean", "tpot_ms_mean"),
)
"""Required columns of a table of serving runs; `ep`, `kv_dtype` and the knobs of KNOBS are optional."""
KNOBS = ("max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks")
"""Optional columns with the arguments of a run's server, in vLLM's names whatever the engine."""

T = TypeVar("T")

ENDINGS = ("-instruct", "-chat", "-it", "-fp8", "-base", "-hf")
"""Suffixes of checkpoint names that do not change the shape."""


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

    @property
    def group(self) -> tuple[str, str, str, int]:
        """The unit of cross-validation: engine, model, dtype and number of GPUs."""
        return (self.engine, self.model, self.weight_dtype, self.tp)

    @property
    def label(self) -> str:
        """The name of the run in one line."""
        split = f"TP {self.tp}" if self.ep == 1 else f"TP {self.tp} EP {self.ep}"
        return f"{self.engine} {self.model} {split} {self.isl}/{self.osl} x {self.concurrency}"


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
    """Token budget of a step by server; others keep their own. A server is "engine model", else "engine"."""
    slots_by_concurrency: bool = False
    """Whether servers run at most `concurrency` requests at once."""
    memory_fracs: Mapping[str, float] = field(default_factory=dict)
    """gpu_memory_utilization by server; others keep their own."""
    kv_dtypes: Mapping[str, str] = field(default_factory=dict)
    """Dtype of the cache by server, or by "engine model gpu"; bf16 for others."""
    kv_as_weights: frozenset[str] = frozenset()
    """Engines that use an fp8 cache with fp8 weights."""
    moe_backends: Mapping[str, str] = field(default_factory=dict)
    """Kernels of experts by "engine model gpu"; others choose by themselves."""
    cold_start_s: Mapping[str, float] = field(default_factory=dict)
    """Time by which a server that was not warmed up delays its first step, by server."""

    def moe_backend(self, engine: str, model: str, gpu: str) -> dict[str, str]:
        """Return the engine's setting of the kernels of experts; empty where it chooses by itself."""
        backend = self.moe_backends.get(f"{engine} {model} {gpu}")
        return {} if backend is None else {"moe_backend": backend}

    def cache_dtype(self, engine: str, model: str, gpu: str) -> str | None:
        """Return the dtype of a server's cache; None where its script leaves it to the engine."""
        return self.kv_dtypes.get(f"{engine} {model} {gpu}") or of_server(self.kv_dtypes, engine, model)

    def cold_share_s(self, engine: str, model: str) -> float:
        """Return what a cold start adds to mean TTFT: the first request of each client waits for the first step."""
        return (of_server(self.cold_start_s, engine, model) or 0.0) / self.requests_per_client


COLD_START_S = {
    "sglang deepseek-v3": 1.3,
    "trtllm deepseek-v3": 1.7,
    "trtllm gpt-oss-120b": 0.6,
    "vllm minimax-m2.5": 0.65,
}
"""Time by which a server that no request had warmed up delays its first step, by server. DeepSeek: the median over
runs of other versions of the gap between mean and median TTFT; others: of what means lack (docs/validation.md)."""

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
        "on Hopper with the model's; vLLM with VLLM_MXFP4_USE_MARLIN=1 on Hopper, and on B200 with "
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 (gptoss_fp4_b200.sh)",
        shortest_frac=0.8,
        budgets={
            "vllm": Budget(8192),
            "trtllm": Budget(8192, spare=64),
            "trtllm deepseek-v3": Budget(spare=64),
            "trtllm gpt-oss-120b": Budget(20000),
            "sglang": Budget(32768),
        },
        slots_by_concurrency=True,
        memory_fracs={"sglang": 0.82, "trtllm": 0.75, "trtllm gpt-oss-120b": 0.85, "vllm minimax-m2.5": 0.95},
        kv_dtypes={
            "vllm": "fp8",
            "trtllm": "fp8",
            "vllm gpt-oss-120b": "bf16",
            "trtllm gpt-oss-120b": "bf16",
            "vllm gpt-oss-120b b200-sxm": "fp8",
            "trtllm gpt-oss-120b b200-sxm": "fp8",
            "vllm minimax-m2.5": "bf16",
        },
        moe_backends={
            "vllm gpt-oss-120b h100-sxm": "marlin",
            "vllm gpt-oss-120b h200-sxm": "marlin",
            "vllm gpt-oss-120b b200-sxm": "flashinfer_trtllm_afp8",
        },
        cold_start_s=COLD_START_S,
    ),
    "plain": Campaign(name="plain", source="10 requests per client, fixed lengths, the engine's defaults"),
}


@dataclass(frozen=True)
class ServingPoint:
    """A run as measured and as predicted; ratios are predicted / measured."""

    row: ServingRow
    ttft_s: float
    tpot_s: float
    kv_tokens: int
    """Capacity of its KV cache."""

    @property
    def is_limited_by_memory(self) -> bool:
        """Whether the requests in flight exceed the KV cache."""
        return self.row.concurrency * (self.row.isl + self.row.osl) > self.kv_tokens

    @property
    def ttft_ratio(self) -> float:
        """Predicted / measured TTFT."""
        return self.ttft_s / self.row.ttft_s

    @property
    def tpot_ratio(self) -> float:
        """Predicted / measured TPOT."""
        return self.tpot_s / self.row.tpot_s


def read_rows(path: Path) -> list[ServingRow]:
    """Read serving runs from a CSV. Raises CalibrationError."""
    try:
        table = list(csv.DictReader(StringIO(read_file(path, ANSWER_BYTES).decode("utf-8"), newline="")))
    except FileNotFoundError:
        raise CalibrationError(f"{path}: no such file; give a CSV of serving runs") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        text, remedy = getattr(error, "strerror", None) or error, "a log of single requests needs --scenario"
        raise CalibrationError(f"{path}: must be a CSV of serving runs ({text}); {remedy}") from None
    if not table:
        raise CalibrationError(f"{path}: must contain serving runs, got none")
    missing = [name for name in NEEDED if name not in table[0]]
    if missing:
        remedy = "a log of single requests needs --scenario"
        rule = f"columns {', '.join(missing)} are missing; it needs {', '.join(NEEDED)}"
        raise CalibrationError(f"{path}: {rule}; {remedy}")
    return [_row(path, line, values) for line, values in enumerate(table, 2)]


def _row(path: Path, line: int, values: Mapping[str, str]) -> ServingRow:
    short = [name for name in NEEDED if values[name] is None]
    if short:
        raise CalibrationError(f"{path}:{line}: must have {', '.join(short)}, got nothing; fill in the row")
    try:
        whole = {name: int(values[name]) for name in ("tp", "isl", "osl", "concurrency")}
        whole["ep"] = int(values.get("ep") or 1)
        times = {name: float(values[f"{name}_ms_mean"]) / 1e3 for name in ("ttft", "tpot")}
        knobs = {name: int(values[name]) for name in KNOBS if values.get(name)}
    except (TypeError, ValueError) as error:
        raise CalibrationError(f"{path}:{line}: must be numbers ({error}); correct the row") from None
    small = [name for name, value in (whole | times).items() if not 0 < value < np.inf]
    if small:
        raise CalibrationError(f"{path}:{line}: {', '.join(small)} must be positive; correct the row")
    gpu = values["gpu"].replace("_", "-")
    try:
        catalog.load_engine(values["engine"], version=values["engine_version"] or None)
        catalog.load_gpu(gpu)
        model = catalog_model(values["model"])
    except CatalogError as error:
        raise CalibrationError(f"{path}:{line}: {error}") from None
    if whole["osl"] < 2:
        raise CalibrationError(f"{path}:{line}: osl must be at least 2, as a single token has no TPOT; remove the row")
    return ServingRow(
        engine=values["engine"],
        engine_version=values["engine_version"],
        gpu=gpu,
        model=model,
        weight_dtype=values["weight_dtype"],
        tp=whole["tp"],
        ep=whole["ep"],
        isl=whole["isl"],
        osl=whole["osl"],
        concurrency=whole["concurrency"],
        ttft_s=times["ttft"],
        tpot_s=times["tpot"],
        kv_dtype=values.get("kv_dtype") or "",
        knobs=knobs,
    )


def catalog_model(name: str) -> str:
    """Map a checkpoint to the catalog: meta-llama/Llama-3.1-8B-Instruct is llama-3.1-8b."""
    known = catalog.names("models")
    short = name.rsplit("/", 1)[-1].lower()
    while short not in known:
        ending = next((each for each in ENDINGS if short.endswith(each)), None)
        if ending is None:
            raise CatalogError(f"no such model in the catalog, got '{name}'; {did_you_mean(short, known)}")
        short = short.removesuffix(ending)
    return short


def scenario_of(
    row: ServingRow,
    campaign: Campaign,
    constants: Mapping[str, float] | None = None,
    calibration: Path | None = None,
) -> Scenario:
    """Return the run as a scenario; `constants` replace the engine's."""
    shortest = campaign.shortest_frac
    lengths = {
        name: [max(1, round(shortest * most)), most]
        for name, most in (("prompt_tokens", row.isl), ("output_tokens", row.osl))
    }
    pool: dict[str, Any] = {"parallel": {"tensor": row.tp, "expert": row.ep}}
    version = {"version": row.engine_version} if row.engine_version else {}
    backend = campaign.moe_backend(row.engine, row.model, row.gpu)
    scheduler = _scheduler(row, campaign)
    if scheduler:
        pool["scheduler"] = scheduler
    memory_frac = of_server(campaign.memory_fracs, row.engine, row.model)
    if memory_frac is not None:
        pool["gpu_memory_utilization"] = memory_frac
    if calibration is not None:
        pool["calibration"] = str(calibration)
    if "num_gpu_blocks" in row.knobs:
        pool["num_gpu_blocks"] = row.knobs["num_gpu_blocks"]
    return Scenario.from_dict(
        {
            "schema": "simserve/1",
            "model": row.model,
            "gpu": row.gpu,
            "engine": {"name": row.engine, **version, **backend, **(constants or {})},
            "weight_dtype": row.weight_dtype,
            "kv_dtype": _kv_dtype(row, campaign),
            "cluster": {"pools": [pool]},
            "workload": {
                "client": {"kind": "closed_loop", "concurrency": row.concurrency},
                "lengths": {"kind": "uniform", **lengths},
                "n_requests": campaign.requests_per_client * row.concurrency,
                "max_tokens": row.osl,
            },
        }
    )


def of_server(settings: Mapping[str, T], engine: str, model: str) -> T | None:
    """Return a setting of the engine with that model, else of the engine."""
    return settings.get(f"{engine} {model}", settings.get(engine))


def _kv_dtype(row: ServingRow, campaign: Campaign) -> str:
    as_weights = row.engine in campaign.kv_as_weights and row.weight_dtype.startswith("fp8")
    own = campaign.cache_dtype(row.engine, row.model, row.gpu) or "bf16"
    return row.kv_dtype or ("fp8" if as_weights else own)


def _scheduler(row: ServingRow, campaign: Campaign) -> dict[str, Any]:
    """Return the server's knobs under the names of its policy."""
    own = catalog.load_engine(row.engine).scheduler
    policy = plugins.build("schedulers", own)
    budget = of_server(campaign.budgets, row.engine, row.model)
    slots = row.concurrency if campaign.slots_by_concurrency else None
    given = {
        policy.budget_argument: row.knobs.get(
            "max_num_batched_tokens", budget and budget.tokens(row.isl, row.concurrency)
        ),
        policy.slots_argument: row.knobs.get("max_num_seqs", slots),
    }
    kept = {name: value for name, value in given.items() if value is not None}
    return {"kind": own["kind"], **kept} if kept else {}


def replay(
    rows: Sequence[ServingRow], campaign: Campaign, constants: Mapping[str, float] | None = None
) -> list[ServingPoint]:
    """Predict each run, in order. Raises CalibrationError for one that cannot be run."""
    return [replay_run(row, campaign, constants) for row in rows]


def replay_run(
    row: ServingRow,
    campaign: Campaign,
    constants: Mapping[str, float] | None = None,
    calibration: Path | None = None,
) -> ServingPoint:
    """Predict one run. Raises CalibrationError if it cannot be run."""
    try:
        scenario = scenario_of(row, campaign, constants, calibration)
    except ScenarioError as error:
        reasons = "; ".join(str(problem) for problem in error.problems)
        raise CalibrationError(f"{row.label}: {reasons}; correct the row or remove it") from None
    results = simulate(scenario)
    requests = results.columns["requests"]
    pool = results.summary["pools"][0]
    return ServingPoint(
        row=row,
        ttft_s=float(np.nanmean(requests["ttft_s"])) + campaign.cold_share_s(row.engine, row.model),
        tpot_s=float(np.nanmean(requests["tpot_s"])),
        kv_tokens=int(pool["n_blocks"] // pool["blocks_per_tokens"]) * pool["block_size"],
    )
