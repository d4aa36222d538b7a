"""The JSON Schema of a scenario, for editors that complete and check YAML."""

from typing import Any

from simserve import catalog, plugins
from simserve.plugins.find import find
from simserve.plugins.manual import plugin_schema
from simserve.plugins.validation import ValueProblem
from simserve.scenario.models import ClosedLoop
from simserve.scenario.scenario import Scenario

ID = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the YAML, with its short forms and the names of catalog and plug-ins."""
    schema = Scenario.model_json_schema(by_alias=True)
    parts = schema["$defs"]
    workload, pool, cluster = parts["Workload"], parts["Pool"], parts["ClusterSection"]
    engines = {"anyOf": [{"enum": catalog.names("engines")}, {"$ref": "#/$defs/Engine"}]}
    for holder in (schema, pool):
        properties = holder["properties"]
        properties["engine"] = engines
        properties["gpu"] = {"enum": catalog.names("gpus"), "description": "a name in the catalog"}
        properties["model"] = {
            "anyOf": [{"enum": catalog.names("models")}, {"type": "string", "pattern": r"\.json$"}],
            "description": "a name in the catalog, or the path of a Hugging Face config.json",
        }
    cluster["properties"]["router"] = _plugin("routers", parts)
    cluster["properties"]["admission"] = _plugin("admission", parts)
    cluster["properties"]["disaggregate"] = _plugin("splitters", parts)
    pool["properties"]["scheduler"] = _plugin("schedulers", parts, needs_kind=False)
    workload["properties"]["arrivals"] = _plugin("workload.arrivals", parts)
    workload["properties"]["lengths"] = _plugin("workload.lengths", parts)
    for part in ("TrafficClass", "Batch"):
        parts[part]["properties"]["lengths"] = _plugin("workload.lengths", parts)
    workload["properties"]["prefixes"] = _plugin("workload.prefixes", parts)
    client = ClosedLoop.model_json_schema()
    parts.update(client.pop("$defs", {}))
    workload["properties"]["client"] = client
    workload["oneOf"] = [{"required": [key]} for key in ("arrivals", "trace", "client")]
    schema["properties"]["slo"] = {"anyOf": [{"$ref": "#/$defs/Targets"}, {"$ref": "#/$defs/Slo"}]}
    return {"$schema": ID, **schema}


def _plugin(family: str, parts: dict[str, Any], *, needs_kind: bool = True) -> dict[str, Any]:
    """Return the schema of a plug-in: a name, a mapping with its arguments, or an external class."""
    names = plugins.names(family)
    outside = {"type": "string", "pattern": ":"}
    kinds = [_kind(family, name, parts) for name in names]
    kinds.append({"type": "object", "properties": {"kind": outside}, "required": ["kind"]})
    if not needs_kind:  # arguments of the engine's own policy
        kinds.append({"type": "object", "not": {"required": ["kind"]}})
    return {"anyOf": [{"enum": names}, outside, *kinds]}


def _kind(family: str, name: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `{kind: name, ...}` with the arguments of that class; shared types go to `$defs`."""
    plugin = find(family, name)
    if isinstance(plugin, ValueProblem):
        raise TypeError(f"{family}.{name} is listed but cannot be imported")
    schema = plugin_schema(plugin)
    parts.update(schema.pop("$defs", {}))
    schema["properties"] = {"kind": {"const": name}, **schema.get("properties", {})}
    schema["required"] = ["kind", *schema.get("required", [])]
    schema["additionalProperties"] = False
    return schema
