"""Campaigns: how clients and servers of tables of runs were started, as far as that is documented (campaigns.yaml)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter

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
    """Time by which a server that no request had warmed up delays its first step, by server."""

    def moe_backend(self, engine: str, model: str, gpu: str) -> dict[str, str]:
        """Return the engine's setting of the kernels of experts; empty where it chooses by itself."""
        backend = of_server(self.moe_backends, engine, model, gpu)
        return {} if backend is None else {"moe_backend": backend}

    def cold_share_s(self, *server: str) -> float:
        """Return what a cold start adds to mean TTFT: the first request of each client waits for the first step."""
        return (of_server(self.cold_start_s, *server) or 0.0) / self.requests_per_client


MANY_CLIENTS = 16
"""Clients from which InferenceX's scripts let SGLang look less often."""

GIVEN = yaml.safe_load((resources.files("simserve.lab") / "campaigns.yaml").read_text(encoding="utf-8"))

CAMPAIGNS = TypeAdapter(dict[str, Campaign]).validate_python({name: {"name": name, **GIVEN[name]} for name in GIVEN})


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
