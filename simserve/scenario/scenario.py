"""Scenario: one resolved experiment, with its pools ready for the engine, and the JSON Schema of its YAML."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from simserve import catalog, plugins
from simserve.admission.base import Admission
from simserve.autoscalers.base import Autoscaler
from simserve.catalog.engine_spec import Engine, EngineSpec
from simserve.plugins.arguments import plugin_schema
from simserve.plugins.docstrings import DescribedSchema, describe_keys
from simserve.plugins.find import NOUNS, find
from simserve.plugins.validation import ValueProblem
from simserve.routers.base import Router
from simserve.scenario import dump
from simserve.scenario.experiment import Experiment
from simserve.scenario.setup import PoolSetup, pool_setup
from simserve.scenario.template import Template
from simserve.scenario.traffic import ClosedLoop
from simserve.scenario.workload import Workload
from simserve.splitters.base import Splitter

ID = "https://json-schema.org/draft/2020-12/schema"


class Scenario(Experiment):
    """One experiment: a model on a cluster under a load. `load_scenario` and `from_dict` check and resolve it.

    Resolving fills in every default; `origins` gives the source of each value.
    """

    _template: Template | None = PrivateAttr(None)

    @classmethod
    def of(cls, template: Template) -> "Scenario":
        """Return the resolved scenario of a template. Raises ScenarioError with all problems."""
        scenario = template.resolved(cls)
        scenario._template = template
        return scenario

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], base_dir: Path | None = None) -> "Scenario":
        """Return a resolved scenario from plain data shaped like the YAML. Relative paths are looked up in `base_dir`,
        then in the current directory. Raises ScenarioError with all problems."""
        return cls.of(Template.of_data(data, base_dir))

    def replace(self, **changes: Any) -> "Scenario":
        """Return the scenario with other values: top-level keys, keys of the only pool, or `**{"dotted.path": value}`.
        What it left open is filled in again. Raises ScenarioError with all problems."""
        return Scenario.of(self.template.with_options(self.template.changes(changes)))

    @property
    def template(self) -> Template:
        """The scenario as it was written; all of its values where a copy changed some since."""
        if self._template is not None and self._template.resolved(Scenario) == self:
            return self._template
        return Template.of_data(self.to_dict(), self.base_dir)

    @property
    def file(self) -> Path | None:
        """The file that it was read from; None for plain data."""
        return None if self._template is None else self._template.file

    @cached_property
    def setups(self) -> tuple[PoolSetup, ...]:
        """The pools with their model, GPU, engine, scheduler and memory ledger, ready for the engine. What a roll-out
        turns one into comes last, without replicas."""
        spec = self.cluster.autoscaler
        shared: Autoscaler | None = None if spec is None else plugins.build("autoscalers", spec)
        result, masked = [], self.workload.structured_frac or 0.0
        for index, pool in enumerate(self.cluster.pools):
            setup, note = pool_setup(self, pool, masked), self._notes.get(("cluster", "pools", index, "autoscaler"))
            is_shared = shared is not None and pool.name in shared.pools_by_role.values()
            result.append(replace(setup, scaler_note=note, autoscaler=shared if is_shared else setup.autoscaler))
        later = self.cluster.versions[len(self.cluster.pools) :]
        return (*result, *(replace(pool_setup(self, pool, masked), n_replicas=0) for pool in later))

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

    def why_one_process(self) -> str | None:
        """Return why one process must serve all replicas; None: processes of their own give the same tables."""
        cluster, workload = self.cluster, self.workload
        if cluster.changes:
            return "replicas come and go"
        if sum(setup.n_independent for setup in self.setups) < 2:
            return "there is only one replica"
        if cluster.kv_link is not None:
            return "prefill replicas hand over to decode replicas"
        if self.build_router().sees_load:
            return f"the router {cluster.router['kind']} looks at loads or requests"
        if cluster.admission is not None:
            return f"the admission policy {cluster.admission['kind']} looks at all replicas"
        if _waits_for_answers(workload):
            return "clients send requests after answers"
        if workload.timeout is not None or workload.retries is not None:
            return "clients give up or retry"
        shared = [setup.name for setup in self.setups if setup.host_tier is not None and setup.host_tier.store]
        if shared:
            return f"the replicas of pool {shared[0]} share host memory"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the contract's short forms, without values of None."""
        return dump.scenario_data(self)

    def to_yaml(self) -> str:
        """Return YAML that loads to an equal scenario, with the origins of values that the user did not give."""
        return dump.scenario_yaml(self)

    @property
    def digest(self) -> str:
        """A short hash of everything that can change the result; the name and the trace's path cannot."""
        return dump.digest(self, self.setups)

    def __eq__(self, other: object) -> bool:
        """Compare content; origins do not count."""
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest)


FAMILIES = {
    **dict.fromkeys(("router", "decode_router"), "routers"),
    "admission": "admission",
    "disaggregate": "splitters",
    "scheduler": "schedulers",
    "autoscaler": "autoscalers",
    **{key: f"workload.{key}" for key in ("arrivals", "lengths", "prefixes")},
}
"""Keys that hold a plug-in, in whatever section, and its family."""


def scenario_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the YAML, with its short forms, the names of catalog and plug-ins, and the
    docstrings of all keys as descriptions."""
    schema = Scenario.model_json_schema(by_alias=True, schema_generator=DescribedSchema)
    parts = schema["$defs"]
    describe_keys(parts["Engine"], EngineSpec)
    describe_keys(parts["Engine"], Engine)
    client = ClosedLoop.model_json_schema(schema_generator=DescribedSchema)
    parts.update(client.pop("$defs", {}))
    for holder in (schema, parts["Pool"]):
        _retype(holder, "engine", {"enum": catalog.names("engines")}, {"$ref": "#/$defs/Engine"})
        _retype(holder, "gpu", {"enum": catalog.names("gpus")}, {"type": "string", "pattern": r"/|\.ya?ml$"})
        _retype(holder, "model", {"enum": catalog.names("models")}, {"type": "string", "pattern": r"/|\.json$"})
    for part in [*parts.values()]:
        for key in [key for key in part["properties"] if key in FAMILIES]:
            _retype(part, key, *_plugin(FAMILIES[key], parts))
    _retype(parts["Pool"], "calibration", {"type": "string"}, {"$ref": "#/$defs/CalibrationFile"})
    _retype(parts["Workload"], "client", client)
    _retype(schema, "slo", {"$ref": "#/$defs/Targets"}, {"$ref": "#/$defs/Slo"})
    parts["Workload"]["anyOf"] = [{"required": [key]} for key in ("arrivals", "trace", "client")]
    parts["Workload"]["not"] = {"required": ["arrivals", "client"]}
    return {"$schema": ID, **schema}


def _retype(holder: dict[str, Any], key: str, *choices: dict[str, Any]) -> None:
    """Give a key the types that the YAML allows; its description and default stay, and null if that is the default."""
    old = holder["properties"][key]
    kept = {name: old[name] for name in ("description", "default") if name in old}
    or_null = [{"type": "null"}] if old.get("default", ...) is None else []
    holder["properties"][key] = kept | {"anyOf": [*choices, *or_null]}


def _plugin(family: str, parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of a plug-in: a name, an external class, or a mapping with the arguments of either."""
    names = plugins.names(family)
    outside = {"type": "string", "pattern": ":"}
    kind = outside | {"description": f"Your own {NOUNS[family]}, as `my_module:MyClass`."}
    kinds = [_kind(family, name, parts) for name in names]
    kinds.append({"type": "object", "properties": {"kind": kind}, "required": ["kind"]})
    if family == "schedulers":  # arguments of the engine's own policy
        kinds.append({"type": "object", "not": {"required": ["kind"]}})
    if family == "autoscalers":  # the arguments that its manifest has not
        file = {"type": "string", "description": "File of an autoscaler's manifest."}
        kinds.append({"type": "object", "properties": {"manifest": file}, "required": ["manifest"]})
    return [{"enum": names}, outside, *kinds]


def _kind(family: str, name: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `{kind: name, ...}` with the arguments of that class; shared types go to `$defs`."""
    plugin = find(family, name)
    if isinstance(plugin, ValueProblem):
        raise TypeError(f"{family}.{name} is listed but cannot be imported")
    schema = plugin_schema(plugin)
    parts.update(schema.pop("$defs", {}))
    kind = {"const": name, "description": schema["description"]}
    schema["properties"] = {"kind": kind, **schema.get("properties", {})}
    schema["required"] = ["kind", *schema.get("required", [])]
    schema["additionalProperties"] = False
    return schema


def _waits_for_answers(workload: Workload) -> bool:
    if workload.client is not None or (workload.trace is not None and workload.trace.next_turn == "after_answer"):
        return True
    if workload.prefixes is None:
        return False
    structure = plugins.build("workload.prefixes", workload.prefixes)
    return structure.makes_sessions and not structure.needs_arrivals
