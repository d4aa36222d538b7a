"""The JSON Schema that editors complete and check scenarios with."""

import re
from typing import Any

import pytest

from simserve import catalog
from simserve.scenario import scenario_schema


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Made once."""
    return scenario_schema()


def test_it_knows_the_names_of_the_catalog_and_of_the_plugins(schema: dict[str, Any]) -> None:
    assert schema["properties"]["gpu"]["anyOf"][0]["enum"] == catalog.names("gpus")
    assert "llama-3.1-8b" in schema["properties"]["model"]["anyOf"][0]["enum"]
    scheduler = schema["$defs"]["Pool"]["properties"]["scheduler"]["anyOf"]
    assert "chunked" in scheduler[0]["enum"]


def test_it_knows_the_arguments_of_each_plugin_and_what_they_mean(schema: dict[str, Any]) -> None:
    kinds = schema["$defs"]["Pool"]["properties"]["scheduler"]["anyOf"]
    chunked = next(kind for kind in kinds if kind.get("properties", {}).get("kind", {}).get("const") == "chunked")
    budget = chunked["properties"]["max_num_batched_tokens"]
    assert (budget["type"], budget["default"]) == ("integer", 2048)
    flag = "(vLLM `--max-num-batched-tokens`)"
    assert budget["description"] == f"[tokens] Budget of a step, decode tokens included {flag}."
    assert chunked["additionalProperties"] is False


def test_unknown_keys_are_wrong_everywhere(schema: dict[str, Any]) -> None:
    assert schema["additionalProperties"] is False
    assert all(schema["$defs"][part]["additionalProperties"] is False for part in ("Pool", "Workload", "Targets"))


def test_short_forms_files_and_null_are_right(schema: dict[str, Any]) -> None:
    cluster, pool = schema["$defs"]["ClusterSection"]["properties"], schema["$defs"]["Pool"]["properties"]
    assert [each for each in cluster["decode_router"]["anyOf"] if each != {"type": "null"}] == cluster["router"][
        "anyOf"
    ]
    assert {"type": "null"} in cluster["decode_router"]["anyOf"]
    assert {"type": "string"} in pool["calibration"]["anyOf"]
    model, gpu = (schema["properties"][key]["anyOf"][1]["pattern"] for key in ("model", "gpu"))
    assert all(re.search(model, name) for name in ("meta-llama/Llama-3.1-8B", "config.json"))
    assert all(re.search(gpu, name) for name in ("mine.yaml", "cards/mine.yml"))


def test_requests_have_a_source_and_a_trace_may_stand_beside_another(schema: dict[str, Any]) -> None:
    """Arrivals or clients begin the sessions of a trace; never both of them."""
    workload = schema["$defs"]["Workload"]
    assert [choice["required"] for choice in workload["anyOf"]] == [["arrivals"], ["trace"], ["client"]]
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
