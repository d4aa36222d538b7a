"""The page of a scenario's keys: every key of the JSON Schema is on it, and its links lead somewhere."""

import re
from typing import Any

import pytest

from docs import scenario_reference as reference
from simserve.scenario import scenario_schema


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The text of each section by its heading, without backticks."""
    parts = re.split(r"^#{2,4} (.*)$", reference.scenario_reference(), flags=re.MULTILINE)
    assert len(parts[1::2]) == len(set(parts[1::2])), "headings must differ"
    return {heading.replace("`", ""): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def keys_of(text: str) -> list[str]:
    """Return the keys of a section."""
    return re.findall(r"^- \*\*`(.*?)`\*\*: ", text, flags=re.MULTILINE)


def objects(schema: Any) -> list[dict[str, Any]]:
    """Return all objects with keys in a schema."""
    if isinstance(schema, list):
        return [each for value in schema for each in objects(value)]
    if not isinstance(schema, dict):
        return []
    inner = [each for name, value in schema.items() if name != "default" for each in objects(value)]
    return [schema, *inner] if "title" in schema and "properties" in schema else inner


def test_every_object_has_a_section_with_its_description_and_its_keys(sections: dict[str, str]) -> None:
    for each in objects(scenario_schema()):
        keys = [key for key, value in each["properties"].items() if not (key == "kind" and "const" in value)]
        same = [
            text for text in sections.values() if text.strip().startswith(each["description"]) and keys_of(text) == keys
        ]
        assert same, f"{each['title']}: {keys}"


def test_sections_are_the_places_of_a_scenario_in_its_order(sections: dict[str, str]) -> None:
    places = ["Top level", "engine", "cluster", "cluster.router", "cluster.router: weighted", "cluster.pools[]"]
    places += ["cluster.pools[].parallel", "cluster.pools[].scheduler: chunked", "cluster.pools[].scheduler.vtc"]
    places += ["cluster.kv_link", "workload", "workload.arrivals: poisson", "workload.client: closed_loop"]
    places += ["workload.classes.NAME", "workload.batch", "measure", "slo", "Values", "Latency limits"]
    assert [heading for heading in sections if heading in places] == places


def test_a_key_says_its_type_range_default_and_meaning(sections: dict[str, str]) -> None:
    lines = [line for text in sections.values() for line in text.splitlines()]
    for line in (
        "- **`replicas`**: whole number from 1 to 1e9; default `1`. Number of replicas, each of",
        "- **`refresh_s`**: number from 1e-6 to 3,600 [s]; required. Refresh interval: routers see",
        "- **`router`**: one of [`cluster.router`](#clusterrouter); default `round_robin`. Policy that",
        "- **`kv_link`**: [`cluster.kv_link`](#clusterkv_link); default `null`. Link that carries KV",
        "- **`kv_dtype`**: one of `bf16`, `fp8`; default `bf16`. Dtype of the KV cache",
        "- **`classes`**: mapping of names to [Latency limits](#latency-limits); default none. Limits by",
        "- **`pools`**: list of [`cluster.pools[]`](#clusterpools). Groups of identical replicas",
        "- **`gpu`**: text; required. GPU of all pools without",
        "- **`prompt_tokens`**: pair of whole numbers from 1 to 10,000,000 [tokens]; required. Shortest",
    ):
        assert any(each.startswith(line) for each in lines), line


def test_links_lead_to_headings(sections: dict[str, str]) -> None:
    anchors = {reference.slug(heading) for heading in sections}
    assert len(anchors) == len(sections), "anchors must differ"
    links = re.findall(r"\]\(#(.*?)\)", "".join(sections.values()))
    assert len(links) > 50
    assert not {*links} - anchors
    assert reference.slug("`cluster.pools[].scheduler: prefill_first`") == "clusterpoolsscheduler-prefill_first"
