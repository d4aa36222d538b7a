"""Types of foreign files: every Arrow type in every column, every JSON type at every key, read or refused."""

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simserve.errors import TraceError
from simserve.workload.readers import read_trace
from simserve.workload.readers.cells import MOST_ID
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.base import Log
from simserve.workload.trace import Trace
from tests.cli.invoke import invoke

WHOLE: dict[str, Any] = {
    f"{sign}int{bits}": pa.array([1, 2], getattr(pa, f"{sign}int{bits}")())
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
NUMBERS: dict[str, Any] = {
    **WHOLE,
    **{name: pa.array([1.0, 2.0], getattr(pa, name)()) for name in ("float32", "float64")},
    "decimal128": pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(9, 2)),
    "decimal256": pa.array([Decimal(1), Decimal(2)], pa.decimal256(50, 0)),
    "dictionary of numbers": pa.array([1, 2]).dictionary_encode(),
}
TEXTS: dict[str, Any] = {
    **{name: pa.array(["1", "2"], getattr(pa, name)()) for name in ("string", "large_string")},
    "dictionary of text": pa.array(["1", "2"]).dictionary_encode(),
}
LISTS: dict[str, Any] = {
    "list": pa.array([[1, 2], [1, 2]]),
    "large_list": pa.array([[1, 2], [1, 2]], pa.large_list(pa.int32())),
    "fixed_size_list": pa.array([[1, 2], [1, 2]], pa.list_(pa.uint64(), 2)),
    "list with an empty one": pa.array([[1, 2], []]),
    "empty lists": pa.array([[], []]),
}
TIMES: dict[str, Any] = {
    f"timestamp {unit} {zone}": pa.array(
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)], pa.timestamp(unit, zone)
    )
    for unit, zone in (("s", None), ("ms", "UTC"), ("us", "Europe/Berlin"), ("ns", None))
}
OTHERS: dict[str, Any] = {
    "bool": pa.array([True, False]),
    "list of lists": pa.array([[[1]], [[2], []]]),
    "list of text": pa.array([["a"], []]),
    "list of floats": pa.array([[1.5], []]),
    "list of flags": pa.array([[True], []]),
    "list of decimals": pa.array([[Decimal("1.50")], []], pa.list_(pa.decimal128(9, 2))),
    "struct": pa.array([{"a": 1}, {"a": 2}]),
    "list of structs": pa.array([[{"a": 1}], []]),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"1", b"\xff"]),
    "fixed_size_binary": pa.array([b"12", b"34"], pa.binary(2)),
    "duration": pa.array([timedelta(1), timedelta(2)]),
    "date": pa.array([date(2026, 1, 1)] * 2),
    "time": pa.array([time(1), time(2)]),
}  # fmt: skip
ALL = NUMBERS | TEXTS | LISTS | TIMES | OTHERS

TRACE: dict[str, Any] = {
    "arrival_s": NUMBERS["float64"],
    **dict.fromkeys(("prompt_tokens", "output_tokens", "max_tokens", "turn", "priority", "e2e_s"), NUMBERS["int64"]),
    **dict.fromkeys(("request_id", "session_id", "slo_class", "tenant"), TEXTS["string"]),
}
HASHED = {"hash_ids": LISTS["empty lists"], "hash_block_tokens": pa.array([1, 1])}
NAMED = {"prefix_id": TEXTS["string"], "prefix_tokens": pa.array([1, 1]), "hash_block_tokens": pa.array([1, 1])}
LOG: dict[str, Any] = {
    "arrival_s": NUMBERS["float64"],
    **dict.fromkeys(("prompt_tokens", "output_tokens", "max_tokens"), NUMBERS["int64"]),
    **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), NUMBERS["float64"]),
}
KINDS = {
    **dict.fromkeys(TRACE, NUMBERS),
    **dict.fromkeys(("request_id", "session_id", "slo_class", "tenant", "prefix_id"), TEXTS | NUMBERS),
    "hash_ids": LISTS,
    **dict.fromkeys(("hash_block_tokens", "prefix_tokens", "ttft_s", "tpot_s"), NUMBERS),
}
"""Types that a column accepts."""


def read_as(read: Any, folder: Path, columns: dict[str, Any]) -> Trace | Log:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    result: Trace | Log = read(folder / "t.parquet")
    return result


CASES = [
    *((read_trace, TRACE, name) for name in TRACE),
    *((read_trace, TRACE | HASHED, name) for name in ("hash_ids", "hash_block_tokens")),
    *((read_trace, TRACE | NAMED, name) for name in ("prefix_id", "prefix_tokens")),
    *((read_log, LOG, name) for name in LOG),
    *((read_log, LOG | HASHED, name) for name in ("hash_ids", "hash_block_tokens")),
    *((read_log, LOG | NAMED, name) for name in ("prefix_id", "prefix_tokens")),
]


@pytest.mark.parametrize(("read", "columns", "name"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_column_of_every_arrow_type_is_read_or_refused_by_name(
    read: Any, columns: dict[str, Any], name: str, tmp_path: Path
) -> None:
    accepted = KINDS[name] | (TIMES if read is read_log and name == "arrival_s" else {})
    for kind, column in ALL.items():
        given = column.take(pa.array([0, 0])) if name == "hash_block_tokens" else column
        try:
            read_as(read, tmp_path, columns | {name: given})
        except TraceError as error:
            assert kind not in accepted, (kind, error)
            by_row = f"row 1, 2: {name} must be a number, got '1'"  # text may be dates
            by_name = f"column {name} must be "
            assert (by_row if (read, name) == (read_log, "arrival_s") and kind in TEXTS else by_name) in str(error)
            assert str(tmp_path / "t.parquet") in str(error)
        else:
            assert kind in accepted, kind


def test_the_file_of_the_issue_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "l.parquet"
    pq.write_table(pa.table({"arrival_s": [0.0, 1], "prompt_tokens": [[1, 2], [3, 4]], "output_tokens": [1, 2]}), file)
    outcome = invoke("trace", "info", file)
    assert outcome.exit_code == 2
    assert outcome.err == (
        f"simserve: error: {file}: column prompt_tokens must be numbers, got list<element: int64>; "
        "write it as int64 or double\n"
    )


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_width_have_the_same_values(kind: str, tmp_path: Path) -> None:
    trace = read_as(read_trace, tmp_path, TRACE | {"prompt_tokens": NUMBERS[kind]})
    assert isinstance(trace, Trace)
    assert trace.prompt_tokens.tolist() == [1, 2]


@pytest.mark.parametrize("kind", TIMES)
def test_timestamps_are_instants_in_any_unit_and_zone(kind: str, tmp_path: Path) -> None:
    log = read_as(read_log, tmp_path, LOG | {"arrival_s": TIMES[kind]})
    assert isinstance(log, Log)
    assert log.trace.arrival_s.tolist() == [0.0, 1.0]


def test_whole_floats_are_ids_as_pandas_writes_them_beside_nulls(tmp_path: Path) -> None:
    trace = read_as(read_trace, tmp_path, TRACE | {"session_id": pa.array([7.0, None])})
    assert isinstance(trace, Trace)
    assert trace.session_id is not None
    assert trace.session_id.tolist() == ["7", ""]
    with pytest.raises(TraceError, match=r"column session_id must be text, got .*1\.5.*; write it as string"):
        read_as(read_trace, tmp_path, TRACE | {"session_id": pa.array([1.5, None])})


@pytest.mark.parametrize(
    ("name", "column", "text"),
    [
        ("hash_ids", pa.array([[1], [None]]), "column hash_ids must be lists of whole numbers, got a list with nulls"),
        ("hash_ids", pa.array([[1], [-1]]), f"row 2: hash_ids must be whole numbers in [0, {MOST_ID}], got [-1]"),
        ("hash_ids", pa.array([[1], [2**63]], pa.list_(pa.uint64())), "column hash_ids must be lists of whole numbers"),
        ("prompt_tokens", pa.array([1, None]), "row 2: prompt_tokens must be a number, got nothing"),
        ("prompt_tokens", pa.array([1.5, 2]), "row 1: prompt_tokens must be whole, got 1.5"),
        ("prompt_tokens", pa.array([1, float("inf")]), "row 2: prompt_tokens must be a number, got inf"),
        ("tenant", pa.array(["a", "b" * 129]), "column tenant must be text, got 129 characters in a cell, over the"),
    ],
)  # fmt: skip
def test_cells_that_their_type_allows_and_their_column_does_not_are_refused(
    name: str, column: Any, text: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as error:
        read_as(read_trace, tmp_path, TRACE | HASHED | {name: column})
    assert text in str(error.value)


JSON: dict[str, Any] = {
    "whole": 1,
    "float": 1.0,
    "text": "1",
    "empty text": "",
    "true": True,
    "null": None,
    "list": [1],
    "lists": [[1], [2]],
    "object": {"a": 1},
    "large": 10**400,
    "NaN": float("nan"),
    "infinite": float("inf"),
}
LINE = {"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []}
ROW = {"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "ttft_s": 1, "e2e_s": 1, "max_tokens": 1}
BLOCKS = {"prefix_tokens": 1, "hash_block_tokens": 1}


@pytest.mark.parametrize("kind", JSON)
def test_a_value_of_every_json_type_is_read_or_refused_by_line(kind: str, tmp_path: Path) -> None:
    named = ROW | BLOCKS | {"prefix_id": "a"}
    hashed = ROW | {"hash_ids": [1], "hash_block_tokens": 1}
    may_be_null = {"hash_ids", "prefix_id", "ttft_s", "e2e_s", "max_tokens"}
    for read, row in ((read_trace, LINE), (read_log, named), (read_log, hashed)):
        for name in row:
            accepts = {"hash_ids": {"list"}, "prefix_id": {"whole", "text", "empty text"}}.get(name, {"whole", "float"})
            accepts = accepts | ({"null"} if name in may_be_null else set())
            path = tmp_path / "t.jsonl"
            path.write_text(json.dumps(row) + "\n" + json.dumps(row | {name: JSON[kind]}) + "\n")
            outcome = outcome_of(read, path)
            assert (outcome == "") == (kind in accepts), (name, kind, outcome)
            assert outcome == "" or f"line 2: {name} must be " in outcome


def outcome_of(read: Any, path: Path) -> str:
    try:
        read(path)
    except TraceError as error:
        return str(error)
    return ""


RESULT: dict[str, Any] = {
    "start_times": [0.0, 1.0],
    "input_lens": [1, 1],
    "output_lens": [1, 1],
    "ttfts": [1, 1],
    "itls": [[], []],
    "errors": ["", ""],
    "request_rate": 1.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 1.0,
}
SINGLE = ("request_rate", "burstiness", "max_concurrency", "duration")


@pytest.mark.parametrize("kind", JSON)
def test_a_result_has_its_type_at_every_key_and_in_every_list(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    for name in RESULT:
        accepts = {"errors": {"text", "empty text", "null"}, "itls": {"list"}}.get(name, {"whole", "float"})
        if name in SINGLE:  # an infinite rate is a rate
            accepts = {"whole", "float", "null"} | ({"infinite"} if name in ("request_rate", "duration") else set())
            accepts = accepts | ({"large"} if name in ("request_rate", "duration") else set())
        value = JSON[kind] if name in SINGLE else [RESULT[name][0], JSON[kind]]
        result = RESULT | ({"start_times": None} if name in SINGLE[:3] else {}) | {name: value}
        path.write_text(json.dumps(result))
        outcome = outcome_of(read_log, path)
        assert (outcome == "") == (kind in accepts), (name, kind, outcome)
        assert outcome == "" or f"{name} must be " in outcome


def test_a_list_of_a_result_that_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("start_times", "errors"):
        (tmp_path / "bench.json").write_text(json.dumps(RESULT | {name: "10%"}))
        assert f"{name} must be a list, one for each request, got '10%'" in outcome_of(
            read_log, tmp_path / "bench.json"
        )


@pytest.mark.parametrize("kind", OTHERS)
def test_points_and_timings_of_other_types_are_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"gpu": OTHERS[kind], "latency_s": OTHERS[kind], "op": ["gemm"] * 2}), file)
    outcomes = (
        invoke("sweep", tmp_path / "none.yaml", "--points", file, "--out", tmp_path / "out"),
        invoke("calibrate", "h100-sxm", "--from", file, "--out", tmp_path / "fit"),
    )
    assert [outcome.exit_code for outcome in outcomes] == [2, 2], outcomes
    assert "column latency_s must be numbers, got " in outcomes[1].err
    is_value = kind == "bool" or kind in ("list of text", "list of floats", "list of flags")
    assert ("column gpu must be numbers, flags, text or lists of these, got " in outcomes[0].err) != is_value
