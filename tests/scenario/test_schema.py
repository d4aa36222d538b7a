"""The JSON Schema that editors complete and check scenarios with."""

from typing import Any

import pytest

from simserve import catalog
from simserve.scenario import scenario_schema


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Made once."""
    return scenario_schema()


def test_it_knows_the_names_of_the_catalog_and_of_the_plugins(schema: dict[str, Any]) -> None:
    assert schema["properties"]["gpu"]["enum"] == catalog.names("gpus")
    assert "llama-3.1-8b" in schema["properties"]["model"]["anyOf"][0]["enum"]
    scheduler = schema["$defs"]["Pool"]["properties"]["scheduler"]["anyOf"]
    assert "chunked" in scheduler[0]["enum"]


def test_it_knows_the_arguments_of_each_plugin_and_what_they_mean(schema: dict[str, Any]) -> None:
    kinds = schema["$defs"]["Pool"]["properties"]["scheduler"]["anyOf"]
    chunked = next(kind for kind in kinds if kind.get("properties", {}).get("kind") == {"const": "chunked"})
    budget = chunked["properties"]["max_num_batched_tokens"]
    assert (budget["type"], budget["default"]) == ("integer", 2048)
    assert budget["description"] == "Maximum tokens per step, including decode tokens."
    assert chunked["additionalProperties"] is False


def test_unknown_keys_are_wrong_everywhere(schema: dict[str, Any]) -> None:
    assert schema["additionalProperties"] is False
    assert all(schema["$defs"][part]["additionalProperties"] is False for part in ("Pool", "Workload", "Targets"))


def test_exactly_one_source_of_requests_is_asked_for(schema: dict[str, Any]) -> None:
    workload = schema["$defs"]["Workload"]
    keys = [choice["required"] for choice in workload["oneOf"]]
    assert keys == [["arrivals"], ["trace"], ["client"]]
    beside_a_trace = [choice.get("not") for choice in workload["oneOf"]]  # where one of the others begins its sessions
    assert beside_a_trace == [{"required": ["trace"]}, None, {"required": ["trace"]}]
    assert workload["not"] == {"required": ["arrivals", "client"]}


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    missing = [name for name in _references(schema) if name not in schema["$defs"]]
    assert not missing


def test_what_must_be_given_is_marked(schema: dict[str, Any]) -> None:
    assert set(schema["required"]) == {"schema", "model", "gpu", "workload"}


def _references(data: Any) -> list[str]:
    if isinstance(data, dict):
        here = [data["$ref"].removeprefix("#/$defs/")] if "$ref" in data else []
        return here + [name for value in data.values() for name in _references(value)]
    if isinstance(data, list):
        return [name for value in data for name in _references(value)]
    return []
