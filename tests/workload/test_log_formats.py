"""Logs as tools write them: each format becomes the same two requests, and each can be run, whatever its latencies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simserve
from simserve.errors import SimserveError, TraceError
from simserve.workload.readers import detect, read_trace
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.glossary import LogReading, given_names
from simserve.workload.readers.logs.records import read_records

START_NS = 1_764_000_000_000_000_000


def aiperf(at_s: float, n_in: int, n_out: int, ttft_ms: float, e2e_ms: float, **about: Any) -> dict[str, Any]:
    start_ns = START_NS + round(at_s * 1e9)
    metrics = {
        "input_sequence_length": {"value": n_in, "unit": "tokens"},
        "output_sequence_length": {"value": n_out, "unit": "tokens"},
        "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
        "request_latency": {"value": e2e_ms, "unit": "ms"},
        "inter_chunk_latency": {"value": [1.0, 2.0], "unit": "ms"},
    }
    metadata = {
        "request_start_ns": start_ns,
        "request_end_ns": start_ns + round(e2e_ms * 1e6),
        "x_correlation_id": "abc",
        "turn_index": 0,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    return {"metadata": metadata | about, "metrics": metrics, "error": None}


AIPERF = [
    aiperf(0.0, 9, 9, 9.0, 90.0, benchmark_phase="warmup"),
    aiperf(1.0, 374, 44, 100.0, 1000.0),
    aiperf(2.0, 374, 44, 100.0, 1000.0, was_cancelled=True),
    {
        "metadata": {"request_start_ns": START_NS + 3 * 10**9, "benchmark_phase": "profiling"},
        "metrics": {"error_isl": {"value": 5, "unit": "tokens"}},
        "error": {"code": 500, "type": "x", "message": "y"},
    },
    aiperf(5.3145, 396, 109, 200.0, 2000.0, x_correlation_id="def", turn_index=1),
]


def guided(at_s: float, n_in: int, n_out: int, ttft_ms: float, e2e_s: float) -> dict[str, Any]:
    return {
        "request_start_time": 1.764e9 + at_s,
        "request_latency": e2e_s,
        "prompt_tokens": n_in,
        "output_tokens": n_out,
        "time_to_first_token_ms": ttft_ms,
        "inter_token_latency_ms": 1e9,  # which is not read: E2E and TTFT tell it
        "info": {"conversation_id": "a", "turn_index": 0},
    }


GUIDELLM = {
    "benchmarks": [
        {
            "requests": {
                "successful": [guided(0.0, 374, 44, 100.0, 1.0)],
                "incomplete": [guided(9.0, 1, 1, 1.0, 1.0)],
                "errored": [guided(0.5, 374, 0, 0.0, 0.1)],
            }
        },
        {"requests": {"successful": [guided(4.3145, 396, 109, 200.0, 2.0)], "incomplete": [], "errored": []}},
    ]
}


def span(at_s: float, n_in: int, n_out: int, ttft_s: float, e2e_s: float, **more: Any) -> dict[str, Any]:
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "qwen",
        "gen_ai.usage.input_tokens": n_in,
        "gen_ai.usage.output_tokens": n_out,
        "gen_ai.latency.time_to_first_token": ttft_s,
    } | more
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    start_ns = START_NS + round(at_s * 1e9)
    return {
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + round(e2e_s * 1e9)),
        "attributes": [
            {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
            for key, value in about.items()
        ],
    }


AGENT = {"gen_ai.operation.name": "invoke_agent"}
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {"spans": [span(0, 374, 44, 0.1, 1.0), span(0, 1, 1, 0.1, 9.0, **AGENT)]},
                {"spans": [span(4.3145, 396, 109, 0.2, 2.0), span(1, 3, 1, 0.1, 1.0, **{"error.type": "timeout"})]},
            ]
        }
    ]
}

LITELLM = [
    {
        "id": f"chatcmpl-{i}",
        "status": status,
        "cache_hit": cached,
        "model": "gpt",
        "prompt_tokens": n_in,
        "completion_tokens": n_out,
        "startTime": 1.764e9 + at_s,
        "completionStartTime": 1.764e9 + at_s + ttft_s,
        "endTime": 1.764e9 + at_s + e2e_s,
        "messages": {"redacted": True},
    }
    for i, (at_s, n_in, n_out, ttft_s, e2e_s, status, cached) in enumerate(
        [
            (0.0, 374, 44, 0.1, 1.0, "success", None),
            (1.0, 374, 44, 0.001, 0.001, "success", True),
            (2.0, 7, 0, 0.1, 0.2, "failure", None),
            (4.3145, 396, 109, 0.2, 2.0, "success", False),
        ]
    )
]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


CSV = """started at,Input Tokens,output-tokens,TTFT_ms,e2e_us,note
2026-11-28T10:00:00Z,374,44,100,1000000,a
2026-11-28T10:00:04.3145Z,396,109,200,2000000,b
"""

FILES = {
    "profile_export.jsonl": lines(AIPERF),
    "guidellm.json": json.dumps(GUIDELLM, indent=1),
    "spans.json": json.dumps(OTLP, indent=1),
    "spans.jsonl": f"{json.dumps(OTLP)}\n",
    "litellm.jsonl": lines(LITELLM),
    "litellm.json": json.dumps(LITELLM),
    "millis.csv": "timestamp,isl,osl,ttft_ms,latency\n1764000000000,374,44,100,1\n1764000004314.5,396,109,200,2\n",
    "nanos.csv": "sent_at,isl,osl,ttft_ns,latency_s\n"
    f"{START_NS},374,44,1e8,1\n{START_NS + 4_314_500_000},396,109,2e8,2\n",
    "usage.jsonl": lines(
        [
            {
                "created_at": "2026-11-28T10:00:00+00:00",
                "usage": {"prompt_tokens": 374, "completion_tokens": 44},
                "ttft": {"value": 100, "unit": "ms"},
                "duration_s": 1.0,
            },
            {
                "created_at": "2026-11-28T10:00:04.3145+00:00",
                "usage": {"prompt_tokens": 396, "completion_tokens": 109},
                "ttft": {"value": 200, "unit": "ms"},
                "duration_s": 2.0,
            },
        ]
    ),
}


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(FILES[name])
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_log_has_its_requests_and_latencies(name: str, tmp_path: Path) -> None:
    log = read_log(written(tmp_path, name))
    assert (log.trace.prompt_tokens.tolist(), log.trace.output_tokens.tolist()) == ([374, 396], [44, 109])
    assert log.trace.arrival_s.tolist() == pytest.approx([0.0, 4.3145], abs=1e-4)
    assert log.measured["ttft_s"].tolist() == pytest.approx([0.1, 0.2], abs=1e-6)
    assert log.measured["e2e_s"].tolist() == pytest.approx([1.0, 2.0], abs=1e-6)
    assert log.measured["tpot_s"].tolist() == pytest.approx([0.9 / 43, 1.8 / 108], abs=1e-6)


@pytest.mark.parametrize("name", FILES)
def test_run_takes_what_validate_takes(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    assert detect(path) == ("log", None)
    log, trace = read_log(path), read_trace(path)
    assert trace.arrival_s.tolist() == log.trace.arrival_s.tolist()
    scenario = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "workload": {"trace": {"path": str(path)}},
        "measure": {"replays": 0},
    }
    requests = simserve.simulate(scenario).requests
    assert requests["prompt_tokens"].tolist() == [374, 396]
    assert set(requests["status"]) == {"finished"}


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, "profile_export.jsonl"))
    assert log.n_failed == 2
    assert "1 left out: they are of the warm-up" in log.assumed
    assert read_log(written(tmp_path, "guidellm.json")).assumed[-1] == "1 left out: they did not finish"
    assert (
        read_log(written(tmp_path, "spans.json")).assumed[-1] == "1 left out: their spans are of no request to a model"
    )
    gateway = read_log(written(tmp_path, "litellm.jsonl"))
    assert (gateway.n_failed, gateway.model) == (1, "gpt")
    assert "1 left out: a cache before the server answered" in gateway.assumed


def test_columns_without_a_meaning_are_told(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, "litellm.jsonl"))
    assert "columns not read: id, messages.redacted" in log.assumed


def test_sessions_of_a_log_stay_sessions(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "profile_export.jsonl"))
    assert trace.session_id is not None and trace.turn is not None and trace.e2e_s is not None
    assert trace.session_id.tolist() == ["abc", "def"]
    assert trace.turn.tolist() == [0, 1]
    assert trace.e2e_s.tolist() == [1.0, 2.0]


def test_names_that_the_glossary_does_not_know_are_given(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("when,a,b,first\n5,374,44,100\n9.3145,396,109,200\n")
    names = given_names("arrival_s=when, prompt_tokens=a, output_tokens=b, ttft_ms=first")
    log = read_log(path, reading=LogReading(names))
    assert log.measured["ttft_s"].tolist() == [0.1, 0.2]
    trace = read_trace(path, names=names)
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.3145])
    workload = {
        "trace": {"path": str(path), "columns": {name: own for name, own in names.items() if name != "ttft_ms"}}
    }
    scenario = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": workload}
    assert len(simserve.simulate(scenario).requests) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arrival_s", "--map: must be OURS=THEIRS,..., got arrival_s; ours are arrival_s, prompt_tokens"),
        ("when=a", "--map: must be OURS=THEIRS,..., got when=a; ours are"),
        ("arrival_s=", "--map: must be OURS=THEIRS,..., got arrival_s=; ours are"),
    ],
)
def test_a_map_of_no_names_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SimserveError) as caught:
        given_names(text)
    assert sentence in str(caught.value)


def test_two_columns_that_could_be_the_arrival_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("timestamp,start_time,isl,osl\n5,1,374,44\n9,2,396,109\n")
    with pytest.raises(TraceError, match=r"2 columns could be the arrival: start_time or timestamp; say which"):
        read_trace(path)
    assert read_trace(path, names={"arrival_s": "timestamp"}).arrival_s.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.jsonl", '{"metadata": {"request_start_ns": 1}}\n{"x"\n', "a.jsonl:2: must be one JSON object a line"),
        ("a.json", '{"resourceSpans": [{"scopeSpans": [3]}]}', "is no export of otlp: a part has another shape"),
        ("a.json", '{"benchmarks": [{"successful": 1}]}', "is no export of guidellm: a part has another shape"),
        ("a.json", '{"resourceSpans": [],\n "x": ', "a.json:2: must be JSON (Expecting value); was it cut?"),
        ("a.json", '{"resourceSpans": []}', "columns arrival_s, prompt_tokens, output_tokens are missing, got none"),
        ("a.json", "[1]", "must be an array of requests, each a JSON object"),
        ("a.csv", "time,isl,osl\nx,1,1\n", "time must be a"),
    ],
)
def test_what_is_no_such_log_is_refused(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert sentence in str(caught.value)


def test_names_are_for_logs(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="names of columns are for a log, got format azure; leave the format out"):
        read_trace(written(tmp_path, "millis.csv"), "azure", {"arrival_s": "timestamp"})
    with pytest.raises(TraceError, match=r"--map arrival_s=when: no such column; "):
        read_trace(written(tmp_path, "millis.csv"), names={"arrival_s": "when"})


def test_records_know_their_lines(tmp_path: Path) -> None:
    records = read_records(written(tmp_path, "profile_export.jsonl"), "aiperf")
    assert (records.word, records.numbers) == ("line", [2, 3, 4, 5])


# Prometheus


def series(name: str, *values: float, **labels: str) -> dict[str, Any]:
    return {
        "metric": {"__name__": name, **labels},
        "values": [[1_764_000_000 + 3600 * i, str(value)] for i, value in enumerate(values)],
    }


COUNTS = [
    series("vllm:request_success_total", 100, 700, 700, 300, engine="0", finished_reason="stop"),
    series("vllm:request_success_total", 0, 60, 120, 180, engine="0", finished_reason="length"),
]
BUCKETS = [
    *(
        series("vllm:request_prompt_tokens_bucket", 0, n, n, n, le=le)
        for le, n in (("100", 0), ("200", 90), ("+Inf", 90))
    ),
    *(series("vllm:request_generation_tokens_bucket", 0, n, n, n, le=le) for le, n in (("10", 50), ("20", 100))),
]


def export(folder: Path, result: list[dict[str, Any]], kind: str = "matrix") -> Path:
    path = folder / "export.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}))
    return path


def test_counters_become_arrivals_and_histograms_lengths(tmp_path: Path) -> None:
    path = export(tmp_path, [*COUNTS, *BUCKETS])
    assert detect(path) == ("prometheus", None)
    trace = read_trace(path)
    by_hour = np.bincount((trace.arrival_s + 1e-9).astype(np.int64) // 3600, minlength=3)
    assert len(trace) == 660 + 60 + 360  # the server began again in the third hour, at 300
    assert abs(by_hour[0] - 660) <= 5  # the first request is at 0
    assert trace.prompt_tokens.min() > 100
    assert trace.prompt_tokens.max() <= 200
    assert (trace.output_tokens <= 10).mean() == pytest.approx(0.5, abs=0.05)
    assert trace.output_tokens.max() <= 20
    assert trace.notes[0] == "1080 requests are drawn from counts in steps of 3600 s"
    assert read_trace(path).arrival_s.tolist() == trace.arrival_s.tolist()


def test_a_rate_and_means_are_enough(tmp_path: Path) -> None:
    rate = series("", 0.5, 0.25, 0.0)
    rate["metric"] = {}
    tokens = [
        series("vllm:prompt_tokens_total", 0, 180_000, 270_000),
        series("vllm:generation_tokens_total", 0, 18_000, 27_000),
    ]
    trace = read_trace(export(tmp_path, [rate, *tokens]))
    assert len(trace) == 1800 + 900
    assert set(trace.prompt_tokens.tolist()) == {100}
    assert set(trace.output_tokens.tolist()) == {10}


@pytest.mark.parametrize(
    ("result", "kind", "sentence"),
    [
        (COUNTS, "matrix", "must have lengths of the prompt: request_prompt_tokens_bucket or prompt_tokens_total, got"),
        (
            BUCKETS,
            "matrix",
            "must have a counter of requests or a rate, got request_gen",
        ),
        ([], "matrix", "must have a counter of requests or a rate, got no series"),
        (COUNTS, "vector", "must be a matrix, got a 'vector'; use /api/v1/query_range"),
        ([{"metric": 3}], "matrix", "a series must have metric and values, got {'metric': 3}; export it again"),
        ([series("vllm:request_success_total", 5, 5)], "matrix", "must have requests, got none in 1 steps"),
    ],
)
def test_an_export_without_requests_is_refused(
    result: list[dict[str, Any]], kind: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(export(tmp_path, result, kind))
    assert sentence in str(caught.value)
