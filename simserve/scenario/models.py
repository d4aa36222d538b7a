"""Models: one experiment as data. The frozen models here, in servers.py and in loads.py define the YAML and
all its defaults."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr

from simserve.catalog.engine_spec import Engine
from simserve.catalog.types import KvDtype, Natural, NotNegative, Positive, Section, WeightDtype, spelled_as_mapping
from simserve.scenario.loads import Workload
from simserve.scenario.servers import ClusterSection


def _with_classes(value: Any) -> Any:
    """Expand `{ttft_s: 0.5}` to `{default: {ttft_s: 0.5}}`."""
    is_full = not isinstance(value, Mapping) or value.keys() & {"default", "classes"}
    return value if is_full else {"default": value}


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"must be letters, digits, '-', '_' and '.', as it names a folder, got '{value}'")
    return value


class MeasureSection(Section):
    """The part of the run that is measured."""

    warmup_s: NotNegative | Literal["auto"] | None = None
    warmup_requests: Natural | None = None
    replays: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replays with perturbed costs, for prediction intervals; left out: 8."""

    @property
    def counts_all(self) -> bool:
        """Whether there is no warm-up to leave out."""
        return self.warmup_s is None and self.warmup_requests is None


class Targets(Section):
    """Latency limits of a request; those left out are not checked."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None
    itl_s: Positive | None = None


class Slo(Section):
    """Targets of all requests, and those of named classes."""

    default: Targets = Targets()
    classes: dict[str, Targets] = {}


class Experiment(Section):
    """The keys of a scenario, before and after resolving, and the origins of their values."""

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
    cluster: ClusterSection = ClusterSection()
    workload: Workload
    measure: MeasureSection = MeasureSection()
    slo: Annotated[Slo, BeforeValidator(_with_classes)] = Slo()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _base_dir: Path = PrivateAttr(default_factory=Path)

    def set_origins(self, origins: Mapping[str, str], base_dir: Path) -> None:
        """Record the origins of values; only resolving calls this."""
        self._origins = dict(origins)
        self._base_dir = base_dir

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each value by dotted path: explicit, engine vllm, default, ..."""
        return self._origins

    @property
    def base_dir(self) -> Path:
        """The first folder that relative paths were looked up in; after resolving, all paths are absolute."""
        return self._base_dir
