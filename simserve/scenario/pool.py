"""The section of a pool, the keys that it takes from the scenario, and PoolDraft, which rules share."""

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
from simserve.scenario.host_tier import HostTierSection
from simserve.scenario.machine import CalibrationFile, Machine, calibration_of
from simserve.scenario.parallel import Parallel
from simserve.scenario.speculation import SpeculationSection, SpeculationSetup, speculation_setup
from simserve.schedulers.base import Scheduler


class Pool(Section):
    """Identical replicas. Values of None default to the scenario's or the engine's; resolving fills them in."""

    name: Annotated[str, Field(min_length=1)] = "serve"
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Count = 1
    parallel: Parallel = Parallel()
    scheduler: PluginSpec | None = None
    gpu: str | None = None
    model: str | None = None
    weight_dtype: WeightDtype | None = None
    """Left out: the scenario's, or where models come in several dtypes, its own model's."""
    engine: Annotated[Engine, spelled_as_mapping("name")] | None = None
    calibration: Annotated[CalibrationFile, spelled_as_mapping("file")] | None = None
    expert_routing: Annotated[str, Field(pattern=r"^(balanced|uniform|(lognormal|power_law)_\d+(\.\d+)?)$")] | None = (
        None
    )
    """Expert routing; left out: the model's, `uniform` where none was measured."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV blocks of shared prefixes; left out: the engine's default."""
    host_tier: HostTierSection | None = None
    """Host memory for swapped requests and for prefixes."""
    speculation: SpeculationSection | None = None
    """Left out: one token per step."""
    num_gpu_blocks: Count | None = None
    gpu_memory_utilization: Share | None = None
    block_size: Count | None = None
    max_model_len: Count | None = None


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"must be letters, digits, '-', '_' and '.', as it names a folder, got '{value}'")
    return value


class Defaults(Section):
    """The first keys of a scenario; its pools have this model, GPU, engine and dtypes where they state none."""

    model_config = ConfigDict(defer_build=True)  # fast: only `Scenario` validates

    schema_: Literal["simserve/1"] = Field(alias="schema")
    name: Annotated[str, AfterValidator(_folder_name)] = "scenario"
    seed: Natural = 0
    model: str
    gpu: str
    engine: Annotated[Engine, spelled_as_mapping("name")] = Engine()
    weight_dtype: WeightDtype = "bf16"
    kv_dtype: KvDtype = "bf16"
    """Dtype in all pools: the KV cache of one serves the others."""


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
