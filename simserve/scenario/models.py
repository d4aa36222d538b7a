"""Scenario: one experiment as data. The frozen models here, in servers.py and in loads.py define the YAML and
all its defaults."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from simserve import plugins
from simserve.admission.base import Admission
from simserve.routers.base import Router
from simserve.scenario import dump, setup
from simserve.scenario.loads import Workload
from simserve.scenario.servers import ClusterSection, Engine
from simserve.scenario.types import KvDtype, Natural, NotNegative, Positive, Section, WeightDtype, spelled_as_mapping
from simserve.splitters.base import Splitter


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


class Scenario(Section):
    """One experiment; `load_scenario` and `Scenario.from_dict` check and resolve it.

    Resolving fills in every default; `origins` gives the source of each value.
    """

    schema_: Literal["simserve/1"] = Field(alias="schema")
    name: Annotated[str, AfterValidator(_folder_name)] = "scenario"
    seed: Natural = 0
    model: str
    gpu: str
    engine: Annotated[Engine, spelled_as_mapping("name")] = Engine()
    weight_dtype: WeightDtype = "bf16"
    kv_dtype: KvDtype = "bf16"
    cluster: ClusterSection = ClusterSection()
    workload: Workload
    measure: MeasureSection = MeasureSection()
    slo: Annotated[Slo, BeforeValidator(_with_classes)] = Slo()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Scenario":
        """Return a resolved scenario from plain data shaped like the YAML. Raises ScenarioError with all problems."""
        from simserve.scenario.resolve import resolve_data  # imported here because resolve imports this module

        return resolve_data(data)

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

    @cached_property
    def setups(self) -> tuple["setup.PoolSetup", ...]:
        """The pools with their model, GPU, engine, scheduler and memory ledger, ready for the engine."""
        return tuple(setup.pool_setup(self, pool) for pool in self.cluster.pools)

    def build_router(self) -> Router:
        """Return a new router without state."""
        router: Router = plugins.build("routers", self.cluster.router)
        return router

    def build_admission(self) -> Admission | None:
        """Return a new admission policy; None admits every request."""
        spec = self.cluster.admission
        return None if spec is None else plugins.build("admission", spec)

    def build_decode_router(self) -> Router | None:
        """Return a new router for requests after prefill; None without decode pools."""
        spec = self.cluster.decode_router
        return None if spec is None else plugins.build("routers", spec)

    def build_splitter(self) -> Splitter | None:
        """Return the policy that selects the requests to disaggregate; None selects all, where pools have roles."""
        spec = self.cluster.disaggregate
        return None if spec is None or spec["kind"] == "always" else plugins.build("splitters", spec)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the contract's short forms, without values of None."""
        return dump.scenario_data(self)

    def to_yaml(self) -> str:
        """Return YAML that loads to an equal scenario, with the origins of values that the user did not give."""
        return dump.scenario_yaml(self)

    @property
    def digest(self) -> str:
        """A short hash of everything that can change the result; the name and the trace's path cannot."""
        return dump.digest(self)

    def __eq__(self, other: object) -> bool:
        """Compare content; origins do not count."""
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest)
