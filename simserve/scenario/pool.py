"""The sections of a pool and of what lies between replicas, and PoolDraft, which rules share."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from simserve.catalog.engine_spec import Engine
from simserve.catalog.types import Count, KvDtype, Natural, PluginSpec, Section, Share, WeightDtype, spelled_as_mapping
from simserve.cost.calibrated import Calibrated
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.scenario.draft import Draft
from simserve.scenario.fleet import Shutdown, Spares, Startup
from simserve.scenario.host_tier import HostTierSection
from simserve.scenario.machine import CalibrationFile, Machine, calibration_of
from simserve.scenario.parallel import Parallel
from simserve.scenario.proposals import SpeculationSetup, speculation_setup
from simserve.scenario.speculation import SpeculationSection
from simserve.schedulers.base import Scheduler


class KvLink(Section):
    """The link that carries KV blocks from prefill to decode replicas, and from those that leave to others."""

    bytes_per_s: Annotated[float, Field(ge=1e8)]
    """[bytes/s] Bandwidth of each replica's port, in and out; at least that of 1 Gb/s Ethernet."""
    latency_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    """[s] Latency of a transfer, added once."""
    shared: bool = False
    """Whether all replicas share one port."""
    how: Literal["pull", "push"] = "pull"
    """`pull`: the decode side fetches finished KV blocks (vLLM's NixlConnector); `push`: it allocates blocks first and
    receives them (SGLang, Mooncake)."""
    transfer: Literal["whole", "by_chunk", "by_layer"] = "whole"
    """Unit of a transfer: the `whole` prompt, or `by_chunk` or `by_layer`, which overlap with prefill and need `how:
    push`."""


class Views(Section):
    """What routers see of replicas, where it is not the current state."""

    refresh_s: Annotated[float, Field(ge=1e-6, le=3600)]
    """[s] Refresh interval: routers see the state at its last multiple; inference gateways refresh every 0.05 s."""
    counts_own_sends: bool = False
    """Whether a router adds the requests that it has sent since the last refresh."""


class Pool(Section):
    """Identical replicas of one model, GPU, engine and scheduler. Values of None default to the scenario's or the
    engine's; resolving fills them in."""

    name: Annotated[str, Field(min_length=1)] = "serve"
    """Name of the pool in tables and pages; it must differ from those of other pools."""
    role: Literal["both", "prefill", "decode"] = "both"
    """`both`: replicas compute prompts and answers; `prefill` and `decode`: the first compute prompts, the second
    generate answers."""
    replicas: Count = 1
    """Number of replicas, each of the GPUs of `parallel`; with an autoscaler, at the start."""
    autoscaler: PluginSpec | None = None
    """Policy that changes the number of replicas as the load changes, or `{manifest: my-hpa.yaml}`, a file of
    Kubernetes, KEDA, Knative, KServe or Ray Serve, with keys that replace its own; null: it stays."""
    startup: Startup | None = None
    """How long a new replica takes until it serves; null: a start on a machine that is there."""
    shutdown: Shutdown | None = None
    """What a replica that is told to leave does; null: it finishes its requests, within 30 s."""
    spares: Spares | None = None
    """Replicas that stand by for those that fail; null: none."""
    parallel: Parallel = Parallel()
    """How each replica is split over GPUs; by default it has one."""
    scheduler: PluginSpec | None = None
    """Policy that plans steps, or without `kind` arguments of the engine's own; null: the engine's, with its defaults
    for this GPU."""
    gpu: str | None = None
    """GPU of this pool; null: the scenario's."""
    model: str | None = None
    """Model of this pool; null: the scenario's. Prefill and decode pools run the same model."""
    weight_dtype: WeightDtype | None = None
    """Dtype of this pool's weights; null: the scenario's, or where models come in several dtypes, its own model's."""
    engine: Annotated[Engine, spelled_as_mapping("name")] | None = None
    """Serving engine of this pool; null: the scenario's."""
    calibration: Annotated[CalibrationFile, spelled_as_mapping("file")] | None = None
    """Fitted kernel costs: `<gpu>/<engine>` of a shipped file, the path of your own, or `none` for a plain roofline;
    null: the nearest shipped one."""
    expert_routing: Annotated[str, Field(pattern=r"^(balanced|uniform|(lognormal|power_law)_\d+(\.\d+)?)$")] | None = (
        None
    )
    """How tokens choose experts: `uniform`, `balanced`, or with a number `lognormal_1.1` or `power_law_1.2`; null: as
    measured for the model, or for others with its kind of layers."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV blocks of shared prefixes; null: the engine's default (vLLM `--enable-prefix-caching`, off by SGLang
    `--disable-radix-cache`, TensorRT-LLM `enable_block_reuse`)."""
    host_tier: HostTierSection | None = None
    """Host memory and disk for swapped requests and for prefixes (SGLang `--enable-hierarchical-cache`); null: none."""
    speculation: SpeculationSection | None = None
    """Speculative decoding (vLLM `--speculative-config`); null: one token per request and step."""
    num_gpu_blocks: Count | None = None
    """KV blocks of a replica, or of each data-parallel rank, as its server's log says; null: an estimate (vLLM
    `--num-gpu-blocks-override`)."""
    gpu_memory_utilization: Share | None = None
    """[share] Share of GPU memory for the engine; null: its default (vLLM `--gpu-memory-utilization`, SGLang
    `--mem-fraction-static`, TensorRT-LLM `kv_cache_free_gpu_memory_fraction`)."""
    block_size: Count | None = None
    """[tokens] Size of a KV block; null: the engine's default (vLLM `--block-size`, SGLang `--page-size`, TensorRT-LLM
    `tokens_per_block`)."""
    max_model_len: Count | None = None
    """[tokens] Maximum of a prompt and its answer; null: the model's, or what the KV cache holds (vLLM
    `--max-model-len`, SGLang `--context-length`, TensorRT-LLM `max_seq_len`)."""


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"must be letters, digits, '-', '_' and '.', as it names a folder, got '{value}'")
    return value


class Defaults(Section):
    """The first keys of a scenario; its pools have this model, GPU, engine and dtypes where they state none."""

    model_config = ConfigDict(defer_build=True)  # fast: only `Scenario` validates

    schema_: Literal["simserve/1"] = Field(alias="schema")
    """Version of the format; always `simserve/1`."""
    name: Annotated[str, AfterValidator(_folder_name)] = "scenario"
    """Name of the scenario; results go to `reports/NAME` unless `--out` names a folder."""
    seed: Natural = 0
    """Seed of all random draws; the same seed gives the same tables."""
    model: str
    """Model of all pools without their own: a name in the catalog, an id of the Hugging Face hub, or the path of a
    config.json (vLLM `--model`, SGLang `--model-path`)."""
    gpu: str
    """GPU of all pools without their own: a name in the catalog, or the path of the YAML file of another card."""
    engine: Annotated[Engine, spelled_as_mapping("name")] = Engine()
    """Serving engine of all pools without their own: a name, or a mapping with version and constants."""
    weight_dtype: WeightDtype = "bf16"
    """Dtype of weights in all pools without their own. Left out: that of the model's checkpoint, else bf16 (vLLM and
    SGLang `--quantization`)."""
    kv_dtype: KvDtype = "bf16"
    """Dtype of the KV cache, the same in all pools, as hand-offs copy it (vLLM and SGLang `--kv-cache-dtype`,
    TensorRT-LLM `kv_cache_dtype`)."""


@dataclass(frozen=True, kw_only=True)
class PoolDraft(Draft):
    """A pool between parsing and resolving, with the things that it names looked up."""

    pool: Pool
    defaults: Defaults
    machine: Machine
    scheduler: Scheduler | None
    """None where its arguments have problems."""

    @property
    def weight_dtype(self) -> str:
        """The pool's own, else the scenario's."""
        return self.pool.weight_dtype or self.defaults.weight_dtype

    @property
    def shard(self) -> Shard:
        """The part of the model on a GPU."""
        return self.pool.parallel.shard(self.machine.model, self.weight_dtype, self.defaults.kv_dtype)

    @property
    def speculation(self) -> SpeculationSetup | None:
        """How the pool speculates; None without proposals. Raises CatalogError."""
        return speculation_setup(self.pool.speculation, self.weight_dtype, self.pool.max_model_len)

    def step_cost(self) -> StepCost:
        """Return the step costs of the pool. Raises CalibrationError."""
        calibration, (gpu, engine) = calibration_of(self.pool.calibration), (self.machine.gpu, self.machine.engine)
        kernels = None if calibration is None else Calibrated(gpu, calibration, engine)
        return StepCost(self.shard, gpu, engine, kernels=kernels, pipeline=self.pool.parallel.pipeline)

    def but(self, **update: Any) -> "PoolDraft":
        """Return the draft with some keys of the pool replaced."""
        return replace(self, pool=self.pool.model_copy(update=update))


def stated(draft: Draft, pool: Pool, key: str) -> Draft:
    """Return where the value of a key stands that a pool states, or else the scenario; `draft` is the pool's."""
    return (draft.root if getattr(pool, key) is None else draft).below(key)
