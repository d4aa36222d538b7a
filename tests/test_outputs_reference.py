"""The page of all that simserve writes: every column and key is on it once, and its links lead somewhere."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from docs.outputs_reference import meanings, outputs_reference
from docs.scenario_reference import slug
from simserve.metrics.answers.baseline import Baseline
from simserve.metrics.result_folder import ANSWERS
from simserve.plugins.docstrings import DescribedSchema
from simserve.scenario.model_sizes import ModelAnswer

DOCS = Path(__file__).resolve().parents[1] / "docs"
ITEM = re.compile(r"^- ((?:\*\*`[^`]+`\*\*(?:, )?)+): (.*?)(?: \[([^\]]+)\])?(?:, or null)?\. (.*\.)$", re.MULTILINE)
"""Names: type [unit]. Meaning."""


PAGE = outputs_reference()
PARTS = re.split(r"^#{2,4} (.*)$", PAGE, flags=re.MULTILINE)
SECTIONS = {heading.replace("`", ""): text for heading, text in zip(PARTS[1::2], PARTS[2::2], strict=True)}
"""The text of each section by its heading, without backticks."""


def items(heading: str) -> dict[str, tuple[str, str, str]]:
    """Return type, unit and meaning of each column or key of a section."""
    text = SECTIONS[heading]
    matches = [*ITEM.finditer(text)]
    assert len(matches) == text.count("\n- "), heading
    rows = [(name, match) for match in matches for name in re.findall("`(.*?)`", match[1])]
    result = {name: (match[2], match[3] or "", match[4]) for name, match in rows}
    assert len(result) == len(rows) or heading == "capacity.json", f"{heading}: a name is told twice"
    return result


def objects(schema: Any) -> list[dict[str, Any]]:
    """Return all objects with keys in a schema."""
    if isinstance(schema, list):
        return [each for value in schema for each in objects(value)]
    if not isinstance(schema, dict):
        return []
    inner = [each for value in schema.values() for each in objects(value)]
    return [schema, *inner] if "properties" in schema else inner


@pytest.mark.parametrize("answer", [*(answer for _, answer in ANSWERS.values()), Baseline, ModelAnswer])
def test_every_object_has_a_section_with_its_keys(answer: Any) -> None:
    for each in objects(TypeAdapter(answer).json_schema(schema_generator=DescribedSchema)):
        keys = set(each["properties"])
        same = [
            heading
            for heading, text in SECTIONS.items()
            if text.strip().startswith(each["description"]) and keys == set(items(heading))
        ]
        kind = each["properties"].get("asked", {}).get("const")  # the answers to four questions share a section
        assert same or (kind and keys <= set(items("capacity.json"))), each["title"]


def test_headings_differ() -> None:
    headings = PARTS[1::2]
    assert len(headings) == len({*headings}) == len({slug(heading) for heading in headings})


def test_sections_are_the_files_and_what_is_in_them() -> None:
    places = ["Tables", "requests.parquet", "replications.parquet", "capacity.parquet", "tune.parquet", "JSON files"]
    places += ["summary.json", "summary.json: kv.reservation", "summary.json: pools[]", "summary.json: classes.NAME"]
    places += [
        "capacity.json",
        "capacity.json: answer of rate",
        "comparison.json: decision",
        "plan.json: growth.rows[]",
    ]
    places += ["sweep.json: points[].fleet", "twin.json: fit", "tune.json: points[]", "Baseline: loads[]", "Values"]
    places += ["Statistics of a latency", "Decision"]
    assert sorted(heading for heading in SECTIONS if heading in places) == sorted(places)


@pytest.mark.parametrize(
    ("heading", "line"),
    [
        ("requests.parquet", "**`slo_class`**: string. From the load; null if the request has none."),
        ("steps.parquet", "**`start_s`**, **`end_s`**: double [s]. Start and end of the whole row."),
        ("plan.parquet", "**`gpus_per_replica`**: int32 [GPUs]. GPUs of a replica; null if it cannot run."),
        ("sweep.parquet", "**`ttft_s.p99`**: double [s]. 99th percentile of the time to the first token."),
        ("summary.json", "**`served_per_s`**: number [/s], or null. Requests that finished within the window"),
        ("summary.json", "**`decision`**: [Decision](#decision), or null. Whether the SLO is met, by its margin"),
        ("summary.json", "**`pools`**: list of [`summary.json: pools[]`](#summaryjson-pools). Facts of each pool."),
        ("summary.json: classes.NAME", "**`slo`**: mapping of names to numbers [s]. Limits of the class by latency"),
        ("summary.json: trust", "**`n_worth`**: number, or null. Effective sample size"),
        ("Statistics of a latency", "**`p99.9`**: number [s], or null. 99.9th percentile."),
        ("Decision", "**`edge_by`**: one of `noise`, `cost`, `load`, or null. What keeps the decision from being"),
        ("Decision", "**`r_noise`**: pair of numbers, or null. 95% interval of `r` by sampling noise."),
        ("capacity.json", "**`asked`**: one of `concurrency`, `rate`, `ratio`, `replicas`. The question that `answer`"),
        ("capacity.json", "**`pool`**: text. The pool that was sized. Only if `asked` is `replicas`."),
        ("Baseline", "**`loads`**: pair of [`Baseline: loads[]`](#baseline-loads). Two loads between which"),
    ],
)
def test_an_item_says_type_unit_and_meaning(heading: str, line: str) -> None:
    assert f"\n- {line}" in SECTIONS[heading]


def test_links_lead_to_headings_and_pages() -> None:
    links = re.findall(r"\]\((.*?)\)", PAGE)
    assert len(links) > 100
    here = {f"#{slug(heading)}" for heading in PARTS[1::2]}
    assert not {link for link in links if link.startswith("#")} - here
    for link in {link for link in links if not link.startswith("#")}:
        path, _, anchor = link.partition("#")
        text = (DOCS / "reference" / path).resolve().read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert not anchor or anchor in map(slug, headings), link


NAMES = ["a_s", "b_s", "n"]


def test_a_docstring_of_a_table_says_what_rows_and_columns_are() -> None:
    text = "One row per step.\n\n    In order.\n\n    *_s: Start\n        and end.\n    n: `n` of them."
    assert meanings(text, NAMES) == (
        "One row per step.\n\nIn order.",
        {"a_s": "Start and end.", "b_s": "Start and end.", "n": "`n` of them."},
    )


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ("a_s, b_s: Ends.", "must have a meaning of n"),
        ("*_s: Ends.\nn: Number.\nm: More.", "m: must be columns with no other meaning, got none"),
        ("*: Ends.\nn: Number.", "n: must be columns with no other meaning, got .'n'"),
        ("*_s: Ends.\nn: number.", "form 'names: Meaning.', got 'n: number.'"),
        ("*_s: Ends.\nn: Number", "form 'names: Meaning.', got 'n: Number'"),
        ("*_s: Ends.\nn Number.", "form"),
    ],
)
def test_a_docstring_of_another_form_is_refused(lines: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        meanings(f"One row per step.\n\n{lines}", NAMES)
