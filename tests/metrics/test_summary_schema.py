"""The schemas of answer files: what runs write, what is read back, and what each key says of itself."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from simserve import load_results
from simserve.errors import OutputError
from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.parts import Bounded, Index
from simserve.metrics.answers.pools import PoolJson
from simserve.metrics.answers.struct import READ, Figures
from simserve.metrics.figures import FIGURES, Summary
from simserve.metrics.kv_json import HostTierJson
from simserve.metrics.result_folder import ANSWERS, read_result_folders
from simserve.metrics.results import Results
from simserve.metrics.slowest import TimePartsJson
from simserve.metrics.summary_schema import Count, Size
from simserve.plugins.docstrings import DescribedSchema
from simserve.scenario.model_sizes import ModelAnswer
from simserve.tables.facts import HostFacts, PoolFacts
from simserve.tables.schema import SPLIT
from tests.cli.invoke import invoke
from tests.descriptions import wrong
from tests.metrics.stories import random_story, run_facts
from tests.report.answers_by_hand import (
    as_json,
    capacity_answer,
    capacity_json,
    check_answer,
    comparison_answer,
    plan_answer,
    replicas_answer,
    replicas_json,
    sweep_answer,
    sweep_json,
)
from tests.test_golden import GOLDEN, run

DOCS = Path(__file__).resolve().parents[2] / "docs"

SCHEMAS: list[tuple[str, Any]] = [*ANSWERS.values(), ("explain_model.json", ModelAnswer)]
"""What has a schema: answer files, and what `explain --model --json` prints."""


def schema_file(name: str) -> Path:
    """The schema of an answer file: `summary.schema.json` of `summary.json`."""
    return DOCS / f"{Path(name).stem}.schema.json"


def schema_text(answer: Any) -> str:
    """Return the JSON Schema of an answer file."""
    schema = untitled(TypeAdapter(answer).json_schema(schema_generator=DescribedSchema))
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def untitled(value: Any) -> Any:
    """Return a schema without titles, which only repeat the names of keys."""
    if isinstance(value, dict):
        return {key: untitled(inner) for key, inner in value.items() if key != "title"}
    return [untitled(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "name", ["classes.yaml", "agents.yaml", "conditional_disaggregation.yaml", "host_tier.yaml", "speculation.yaml"]
)
def test_runs_write_what_is_declared_and_nothing_else(name: str) -> None:
    assert name in GOLDEN["short"]
    result = run(name, is_short=True)
    assert not result.figures.model_extra
    assert Summary.model_validate(result.summary, strict=True, context=READ).facts() == result.summary


@pytest.mark.parametrize(("facts", "figures"), [(PoolFacts, PoolJson), (HostFacts, HostTierJson)])
def test_facts_of_a_run_are_figures_of_its_summary(facts: Any, figures: type[Figures]) -> None:
    assert {each.name for each in fields(facts)} - {"work", "reserving"} <= figures.model_fields.keys()


def test_the_schemas_are_those_of_the_figures() -> None:
    command = "write them again: python -m tests.metrics.test_summary_schema"
    for name, answer in SCHEMAS:
        assert schema_file(name).read_text(encoding="utf-8") == schema_text(answer), command


def descriptions(schema: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the description of each key, and of each object with keys, under the name ""."""
    if isinstance(schema, list):
        for each in schema:
            yield from descriptions(each)
    elif isinstance(schema, dict):
        if "properties" in schema:
            yield "", schema.get("description")
            yield from ((key, value.get("description")) for key, value in schema["properties"].items())
        for value in schema.values():
            yield from descriptions(value)


@pytest.mark.parametrize("file", sorted(DOCS.glob("*.schema.json")), ids=lambda file: file.name)
def test_every_key_of_a_schema_says_what_it_is(file: Path) -> None:
    every = [*descriptions(json.loads(file.read_text(encoding="utf-8")))]
    assert len(every) > 20
    assert [problem for key, text in every if (problem := wrong(key, text))] == []


def test_a_run_has_its_figures_in_their_order(folder: Path) -> None:
    names = list(json.loads((folder / "summary.json").read_text()))
    assert names == [*FIGURES, "answer"]


def test_the_parts_of_a_latency_are_those_of_the_tables() -> None:
    assert set(TimePartsJson.model_fields) == {*SPLIT, "transfer_wait_s", "preempted_s"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("declared") / "out"
    _, tables = random_story(3, n_requests=40, most_rows=150)
    Results.from_run(tables, run_facts(tables, n_replicas=2, slo={"ttft_s": 0.5, "tpot_s": 0.05}), "").write(place)
    return place


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "out")
    return tmp_path / "out"


def changed(folder: Path, path: str, value: Any) -> None:
    """Put a value at a dotted path of the summary."""
    summary = json.loads((folder / "summary.json").read_text())
    *parents, last = path.split(".")
    place = summary
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = value
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("requests.arrived", "12", "must be a whole number, got '12'"),
        ("ttft_s.p99", [1], "must be a number, got [1]"),
        ("ttft_s.p99", float("nan"), "must be at most 1e+18, got NaN"),
        ("pools.0.n_replicas", True, "must be a whole number, got true"),
        ("pools.0.gpu", None, "must be text, got nothing"),
        ("trust.steady", "lazy", "must be one of growing, critical, undetermined or steady, got 'lazy'"),
        ("schema", "simserve/9", "must be 'simserve/1', got 'simserve/9'"),
        ("offered_per_s", 1e300, "must be at most 1e+18, got 1e+300"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(copy: Path, path: str, value: Any, rule: str) -> None:
    changed(copy, path, value)
    for arguments in (("report", copy), ("export", copy, "--csv", copy.parent / "csv"), ("compare", copy, copy)):
        outcome = invoke(*arguments)
        assert outcome.exit_code == 2
        assert outcome.err == f"simserve: error: {copy / 'summary.json'}: {path}: {rule}; run the command again\n"


def test_later_keys_are_kept_and_earlier_files_load(copy: Path) -> None:
    changed(copy, "of_a_later_version", {"a": [1]})
    assert load_results(copy).summary["of_a_later_version"] == {"a": [1]}
    first = json.loads((copy / "summary.json").read_text())
    since = {"answer", "load", "time_split", "slo_classes", "classes", "tenants", "fleet", "served_per_s", "prediction"}
    since |= {
        "retries",
        "wasted",
        "prefix_cache",
        "transfer",
        "routing",
        "host_tier",
        "sessions",
        "speculation",
        "versions",
    }
    kept = {key: value for key, value in first.items() if key not in since}
    kept["trust"] = {key: kept["trust"][key] for key in ("calibrated", "kv_verified", "saturated", "n_requests")}
    (copy / "summary.json").write_text(json.dumps(kept))
    assert load_results(copy).summary == kept
    assert invoke("report", copy).exit_code == invoke("export", copy, "--csv", copy.parent / "csv").exit_code == 0


@pytest.mark.parametrize(
    ("table", "column", "value", "rule"),
    [
        ("timeseries", "queue_len", None, "must have a value in every row, got none in row 1"),
        ("timeseries", "queue_len", 1e300, r"must be at most 1e\+18, got 1e\+300"),
        ("timeseries", "replica", 2, "must be from 0 to 1, got 2"),
        ("timeseries", "start_s", 1e9, "must be of at most .* intervals of all replicas, got"),
        ("requests", "arrival_s", -1.0, r"must be from 0 to 1e\+18, got -1"),
        ("requests", "replica", 2, "must be from -1 to 1, got 2"),
        ("requests", "prefill_replica", -2, "must be from -1 to 1, got -2"),
        ("steps", "replica", 2, "must be from 0 to 1, got 2"),
        ("spans", "request_id", 40, "must be from 0 to 39, got 40"),
        ("spans", "replica", -1, "must be from 0 to 1, got -1"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused(copy: Path, table: str, column: str, value: Any, rule: str) -> None:
    path = copy / f"{table}.parquet"
    content = pq.read_table(path)
    field = content.schema.field(column)
    cells = pa.array([value, *content[column].to_pylist()[1:]], field.type)
    pq.write_table(content.set_column(content.column_names.index(column), field, cells), path)
    with pytest.raises(OutputError, match=rf"{table}.parquet: {column}: {rule}.*; run the command again"):
        load_results(copy)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"replica_pool": [0, 1]}, "facts: must be those of a run"),
        ({"peak_kv_blocks": []}, "facts: must be those of a run"),
        ({"members": [{}]}, "facts: must be those of a run"),
        ({"respond_s": "late"}, "facts.respond_s: must be a number, got 'late'"),
        ({"pools": [1]}, "facts.pools.0: must be a mapping, got 1"),
    ],
)
def test_facts_that_are_not_those_of_a_run_are_refused(copy: Path, changes: dict[str, Any], rule: str) -> None:
    path = copy / "requests.parquet"
    content = pq.read_table(path)
    metadata = content.schema.metadata
    facts = json.dumps(json.loads(metadata[b"simserve.facts"]) | changes)
    pq.write_table(content.replace_schema_metadata(metadata | {b"simserve.facts": facts.encode()}), path)
    with pytest.raises(OutputError, match=rf"requests.parquet: {rule}.*; run the command again"):
        load_results(copy)


STUDIES = {
    "capacity": capacity_answer(),
    "replicas": replicas_answer(),
    "check": check_answer(),
    "compare": comparison_answer(),
    "plan": plan_answer(),
    "sweep": sweep_answer(),
}


def without_replicas(capacity: Any) -> list[dict[str, Any]]:
    """Return the points of a study without their numbers of replicas."""
    return [{key: value for key, value in point.items() if key != "replicas"} for point in capacity["points"]]


def without_answers(sweep: Any) -> list[dict[str, Any]]:
    """Return the points of a sweep without their answers, and without the measure that stood for them."""
    free = ("answer", "measures")
    points = [{key: value for key, value in point.items() if key not in free} for point in sweep["points"]]
    for point, before in zip(points, sweep["points"], strict=True):
        measures = before["measures"]
        point["measures"] = measures and {key: measures[key] for key in measures if key != "slo_attainment.frac"}
    return points


POINT: dict[str, Any] = sweep_json()["points"][0]
HALF_A_LOAD = {"kind": "requests", "nominal_per_s": 10.0, "drawn_per_s": 9.0, "off_frac": None}

SIDE: dict[str, Any] = {"goodput_per_s": 9.0, "holds_every_load": None, "last_per_s": 9.0, "fails_first": None}
MORE: dict[str, Any] = {
    "verdict": "unclear", "goal_frac": 0.99, "more_frac": 0.2, "low_frac": None, "high_frac": None, "n_seeds": 1,
    "a": SIDE, "b": SIDE,
}  # fmt: skip
"""One side carries 20% more, of one seed."""


def written(answer: Any, command: str, folder: Path) -> Path:
    """Write the answer file of a study."""
    folder.mkdir()
    names = {"compare": "comparison", "replicas": "capacity"}
    (folder / f"{names.get(command, command)}.json").write_text(json.dumps(answer))
    if command == "sweep":
        (folder / "sweep.parquet").touch()
    return folder


def numbers(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the places of all numbers."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            yield (*path, key)
        yield from numbers(inner, (*path, key))


@pytest.mark.parametrize("command", STUDIES)
def test_no_number_of_a_study_may_be_text(command: str, tmp_path: Path) -> None:
    answer = json.loads(json.dumps(as_json(STUDIES[command])))
    assert as_json(read_result_folders([written(answer, command, tmp_path / "good")])[0]) == answer
    free = {"values", "version"}  # what no reader computes with
    for number, path in enumerate(path for path in numbers(answer) if not free & set(path)):
        spoilt = json.loads(json.dumps(answer))
        place = spoilt
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "many"
        with pytest.raises(OutputError, match=r"json: .*: must be .*, got 'many'; run the command again"):
            read_result_folders([written(spoilt, command, tmp_path / str(number))])


@pytest.mark.parametrize(
    ("command", "change", "rule"),
    [
        ("replicas", {"points": [replicas_json()["points"][0]]}, "must have a point with the replicas of"),
        ("replicas", {"points": without_replicas(replicas_json())}, "must have the replicas of each"),
        ("sweep", {"points": without_answers(sweep_json())}, "must have an answer of point"),
        ("sweep", {"points": [{**POINT, "load": HALF_A_LOAD}]}, "load: must have drawn_per_s and off_frac where"),
        ("sweep", {"keys": ["gpu"]}, "must name each key of a point in keys"),
        ("sweep", {"best": {"per_usd": None, "goodput": None, "cheapest": {"point": 2}}}, "must have measures of poi"),
        ("sweep", {"points": sweep_json()["points"][1:]}, "must have its points in the order of their numb"),
        ("compare", {"decision": {"verdict": None, "reason": 1}}, "decision.* must be"),
        ("compare", {"decision": MORE | {"n_seeds": 2}}, "must have low_frac and high_frac where it has more_frac"),
        ("compare", {"decision": MORE | {"n_seeds": 8, "low_frac": 0.1}}, "must have low_frac and high_frac where"),
        ("capacity", {"asked": "speed"}, "must have one of 'rate', 'concurrency', 'replicas', 'ratio' as 'asked', got"),
    ],
)
def test_answers_that_contradict_themselves_are_refused(
    command: str, change: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    with pytest.raises(OutputError, match=rule):
        read_result_folders([written(as_json(STUDIES[command]) | change, command, tmp_path / "out")])


@pytest.mark.parametrize(
    "decision",
    [MORE, MORE | {"n_seeds": 2, "low_frac": 0.1, "high_frac": 0.3}, MORE | {"n_seeds": 2, "more_frac": None}],
)
def test_one_seed_has_no_interval_of_its_decision(decision: dict[str, Any], tmp_path: Path) -> None:
    answer = as_json(STUDIES["compare"]) | {"decision": decision}
    read = read_result_folders([written(answer, "compare", tmp_path / "out")])[0].answer
    unknown = dict.fromkeys(("reason", "confidence", "total", "probability", "edge_by"))
    assert read.load_decision.facts() == unknown | decision


@pytest.mark.parametrize(("kind", "least", "most"), [(Count, 0, 10**15), (Size, 1, 10**9), (Index, 0, 10**9)])
def test_whole_numbers_have_bounds(kind: Any, least: int, most: int) -> None:
    adapter = TypeAdapter(kind)
    assert [adapter.validate_python(n) for n in (least, most)] == [least, most]
    for n in (least - 1, most + 1):
        with pytest.raises(ValidationError):
            adapter.validate_python(n)


def test_an_end_that_is_not_finite_is_null_and_whole_numbers_stay_whole() -> None:
    number = Bounded(value=3, low=math.nan, high=math.inf)
    assert json.dumps(number.facts()) == '{"value": 3, "low": null, "high": null}'
    assert json.dumps(Bounded(value=3.0, low=1, high=4.5).facts()) == '{"value": 3.0, "low": 1, "high": 4.5}'


@pytest.mark.parametrize("asked", ["rate", "concurrency"])
def test_a_capacity_without_an_answer_says_where_its_search_stopped(asked: str) -> None:
    answer = capacity_json() | {"asked": asked, "state": "no load", "answer": None}
    schema: TypeAdapter[Any] = TypeAdapter(CapacityAnswer)
    for stopped in ({}, {"stopped_at": None}):
        with pytest.raises(ValidationError, match="must have stopped_at, as it has no answer"):
            schema.validate_python(answer | stopped, strict=True)
    schema.validate_python(answer | {"stopped_at": answer["points"][0]}, strict=True)


if __name__ == "__main__":
    for name, answer in SCHEMAS:
        schema_file(name).write_text(schema_text(answer), encoding="utf-8")
