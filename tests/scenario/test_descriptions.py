"""Descriptions of the JSON Schema: the docstrings of all objects and keys, in one form."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve import plugins
from simserve.catalog.types import Section
from simserve.plugins.docstrings import describe_keys, source_fields
from simserve.plugins.find import FAMILIES, find
from simserve.scenario import scenario_schema
from tests.descriptions import UNITS, wrong

ROOT = Path(__file__).resolve().parents[2]

KNOWN = (None, *UNITS.values())
"""Units of a scenario's keys."""


def descriptions(schema: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the description of each key, and of each object with keys."""
    if isinstance(schema, list):
        for each in schema:
            yield from descriptions(each)
    if not isinstance(schema, dict):
        return
    keys = schema.get("properties", {})
    if "title" in schema and "properties" in schema:
        yield schema["title"], schema.get("description")
    for key, value in keys.items():
        yield key, value.get("description")
        yield from descriptions(value)
    for name, value in schema.items():
        if name not in ("properties", "default"):
            yield from descriptions([*value.values()] if name == "$defs" else value)


def test_every_object_and_key_says_what_it_is() -> None:
    schema = scenario_schema()
    every = [*descriptions(schema)]
    assert {*schema["$defs"], "sha256", "tenant_weights", "kind", "Chunked"} <= {name for name, _ in every}
    assert [problem for name, text in every if (problem := wrong(name, text, KNOWN))] == []


@pytest.mark.parametrize(
    ("key", "text", "rule"),
    [
        ("n", None, "form"),
        ("n", "", "form"),
        ("n", "Number of requests", "form"),
        ("n", "number of requests.", "form"),
        ("n", "[requests] Number.", "form"),
        ("n", "[s]Number.", "form"),
        ("n", "Two\nlines.", "form"),
        ("n", f"{'Long ' * 50}.", "at most 240 characters"),
        ("wait_s", "Wait.", r"begin with \[s\]"),
        ("bytes_per_s", "[/s] Rate.", r"begin with \[bytes/s\]"),
        ("goodput.per_s", "[s] Rate.", r"begin with \[/s\]"),
        ("output_tokens_per_s", "[/s] Rate.", r"begin with \[tokens/s\]"),
        ("frac", "Share.", r"begin with \[share\]"),
        ("tokens", "[share] Tokens.", r"begin with \[tokens\]"),
    ],
)
def test_a_docstring_of_another_form_is_refused(key: str, text: str | None, rule: str) -> None:
    assert re.search(rule, wrong(key, text, KNOWN) or "")


def test_an_amount_per_something_else_has_a_unit_of_its_own() -> None:
    assert wrong("usd_per_m_tokens", "[USD per million tokens] Cost.") is None
    assert wrong("blocks_per_tokens", "Blocks.") is None


def test_an_object_has_the_first_sentence_of_its_docstring() -> None:
    class Two:
        """A first sentence, as in 0.3. `second` is internal."""

        key: int
        """[s] Meaning
        in two lines."""
        bare: int

    schema = describe_keys({"properties": {"key": {}, "bare": {}, "other": {}}}, Two)
    assert schema["description"] == "A first sentence, as in 0.3."
    assert schema["properties"] == {"key": {"description": "[s] Meaning in two lines."}, "bare": {}, "other": {}}


def test_keys_of_a_policy_keep_the_docstrings_of_its_base() -> None:
    arguments = plugins.describe("schedulers", "dynamic").arguments
    assert [(each.name, each.type, bool(each.meaning)) for each in arguments] == [
        ("batch_size", "PositiveInt", True),
        ("stream", "bool", True),
        ("window_s", "Annotated[float, Field(ge=0, le=3600)]", True),
    ]


def test_a_class_without_source_has_no_docstrings() -> None:
    assert source_fields(type("Made", (), {"__annotations__": {"key": int}})) == {}


def test_classes_with_keys_are_shipped_as_python() -> None:
    """A compiled class has no source to read docstrings from."""
    tree = ast.parse((ROOT / "hatch_build.py").read_text(encoding="utf-8"))
    compiled = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    policies = [find(family, name) for family in FAMILIES for name in plugins.names(family)]
    classes = [*sections(Section), *(each for each in policies if isinstance(each, type))]
    files = {
        f"{parent.__module__.removeprefix('simserve.').replace('.', '/')}.py"
        for each in classes
        for parent in each.__mro__
    }
    assert {"scenario/pool.py", "schedulers/base.py", "workload/lengths/fixed.py"} <= files
    assert "columns/batch.py" in compiled
    assert not files & compiled


def sections(of: type[Section]) -> list[type]:
    """Return a section and all that derive from it."""
    return [of, *(each for child in of.__subclasses__() for each in sections(child))]
