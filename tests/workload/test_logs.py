"""Logs of real servers: read under the names that people give their columns, refused by row where they are wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.tables.parquet import write_columns
from simserve.workload.arrivals.vllm_bench import VllmBench
from simserve.workload.readers import read_trace
from simserve.workload.readers.logs import read_log
from simserve.workload.readers.logs.base import Log
from simserve.workload.readers.logs.bench import BenchSummary, WithoutRequests, read_summary
from simserve.workload.streams import streams
from simserve.workload.trace import MOST_TOKENS

TABLE = "arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s,e2e_s\n0,100,5,0.1,0.02,0.18\n2,200,1,0.3,,0.3\n"

BENCH: dict[str, Any] = {
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 2.5,
    "completed": 3,
    "total_input_tokens": 600,
    "mean_ttft_ms": 200.0,
    "input_lens": [100, 200, 300],
    "output_lens": [3, 1, 2],
    "ttfts": [0.1, 0.2, 0.3],
    "itls": [[0.02, 0.04], [], [0.05]],
    "generated_texts": ["a", "b", "c"],
    "errors": ["", "", ""],
}
"""Three requests: TPOT 0.03 s, none, 0.05 s; E2E 0.16, 0.2 and 0.35 s."""


def log_of(folder: Path, text: str, name: str = "log.csv") -> Log:
    path = folder / name
    path.write_text(text)
    return read_log(path)


def bench(folder: Path, seed: int = 0, **changes: Any) -> Log:
    path = folder / "bench.json"
    path.write_text(json.dumps({key: value for key, value in (BENCH | changes).items() if value != "left out"}))
    return read_log(path, seed)


def values(log: Log, name: str) -> list[float]:
    return [float(value) for value in log.measured[name]]


def test_a_table_is_read_as_it_is(tmp_path: Path) -> None:
    log = log_of(tmp_path, TABLE)
    assert log.trace.arrival_s.tolist() == [0, 2]
    assert (log.trace.prompt_tokens.tolist(), log.trace.output_tokens.tolist()) == ([100, 200], [5, 1])
    assert values(log, "ttft_s") == [0.1, 0.3]
    assert values(log, "tpot_s") == pytest.approx([0.02, np.nan], nan_ok=True)
    assert log.trace.max_tokens is not None
    assert log.trace.max_tokens.tolist() == [5, 1]  # what was produced
    assert (log.arrivals, log.place.word, log.place.numbers.tolist()) == ("measured", "line", [2, 3])


@pytest.mark.parametrize(
    "header",
    [
        "timestamp,prompt_len,output_len,ttft,tpot,latency",
        "start_time,input_len,num_decode_tokens,time_to_first_token,time_per_output_token,e2el",
        "Arrival Time,ISL,OSL,TTFT,TPOT,E2E",
        "arrived_at,num_prefill_tokens,completion_tokens,ttft_s,inter_token_latency,request_latency",
    ],
)
def test_other_spellings_of_columns_are_read(header: str, tmp_path: Path) -> None:
    log = log_of(tmp_path, TABLE.replace(TABLE.split("\n")[0], header))
    assert log.trace.prompt_tokens.tolist() == [100, 200]
    assert values(log, "e2e_s") == [0.18, 0.3]
    assert f"{header.split(',')[1]} as prompt_tokens" in log.assumed[-1]


def test_milliseconds_are_read_as_such(tmp_path: Path) -> None:
    log = log_of(tmp_path, "timestamp_ms,isl,osl,ttft_ms,e2e_ms\n5000,100,5,100,180\n7000,200,1,300,300\n")
    assert log.trace.arrival_s.tolist() == [0, 2]
    assert values(log, "ttft_s") == pytest.approx([0.1, 0.3])
    assert values(log, "tpot_s") == pytest.approx([0.02, np.nan], nan_ok=True)


def test_dates_are_times(tmp_path: Path) -> None:
    rows = "2025-01-01T00:00:02Z,200,1,0.3\n2025-01-01T00:00:00Z,100,5,0.1\n"
    log = log_of(tmp_path, "timestamp,isl,osl,ttft\n" + rows)
    assert log.trace.arrival_s.tolist() == [0, 2]
    assert log.trace.prompt_tokens.tolist() == [100, 200]  # in the order of arrival, each with its own times
    assert values(log, "ttft_s") == [0.1, 0.3]
    assert log.place.numbers.tolist() == [3, 2]


def test_lines_of_json_and_parquet_say_the_same_as_csv(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"timestamp": 10.0, "isl": 100, "osl": 5, "ttft": 0.1, "latency": 0.18},
        {"timestamp": 12.0, "isl": 200, "osl": 1, "ttft": 0.3, "latency": None},
    ]
    lines = log_of(tmp_path, "\n".join(json.dumps(row) for row in rows), "log.jsonl")
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns = {name: np.array([np.nan if v is None else v for v in column]) for name, column in columns.items()}
    write_columns(tmp_path / "log.parquet", columns)
    parquet = read_log(tmp_path / "log.parquet")
    for log in (lines, parquet):
        assert log.trace.arrival_s.tolist() == [0, 2]
        assert values(log, "e2e_s") == pytest.approx([0.18, np.nan], nan_ok=True)
        assert values(log, "tpot_s") == pytest.approx([0.02, np.nan], nan_ok=True)
    assert (lines.place.word, parquet.place.word) == ("line", "row")


@pytest.mark.parametrize(
    ("columns", "cells", "missing", "result"),
    [
        ("ttft_s,tpot_s", "0.1,0.02", "e2e_s", 0.18),
        ("tpot_s,e2e_s", "0.02,0.18", "ttft_s", 0.1),
        ("ttft_s,e2e_s", "0.1,0.18", "tpot_s", 0.02),
    ],
)
def test_two_latencies_give_the_third(columns: str, cells: str, missing: str, result: float, tmp_path: Path) -> None:
    log = log_of(tmp_path, f"arrival_s,isl,osl,{columns}\n0,100,5,{cells}\n")
    assert values(log, missing) == pytest.approx([result])


def test_a_limit_of_tokens_is_the_logs_or_the_models(tmp_path: Path) -> None:
    log = log_of(tmp_path, "arrival_s,isl,osl,max_tokens,ttft_s\n0,100,5,16,0.1\n1,100,5,,0.1\n")
    assert log.trace.max_tokens is not None
    assert log.trace.max_tokens.tolist() == [16, MOST_TOKENS]


def test_prefixes_of_a_table_go_with_their_requests(tmp_path: Path) -> None:
    head, rows = (
        "arrival_s,isl,osl,ttft_s,hash_ids,hash_block_tokens\n",
        ("5,40,2,1,0 1,16", "1,20,0,1,9,16", "2,64,3,1,0 1 2,16"),
    )
    log = log_of(tmp_path, head + "\n".join(rows))
    assert log.trace.prompt_tokens.tolist() == [64, 40]
    assert log.trace.prefixes is not None
    assert [log.trace.prefixes.of(i) for i in range(2)] == [[0, 1, 2], [0, 1]]
    named = {"prefix_id": "a", "prefix_tokens": 32, "hash_block_tokens": 16}
    line = json.dumps({"arrival_s": 0, "isl": 40, "osl": 2, "ttft_s": 1, **named})
    prefixes = log_of(tmp_path, line, "log.jsonl").trace.prefixes
    assert prefixes is not None
    assert prefixes.n_ids_of_rows().tolist() == [2]


def test_a_request_without_output_failed(tmp_path: Path) -> None:
    log = log_of(tmp_path, "arrival_s,isl,osl,ttft_s\n0,100,0,\n1,100,5,0.1\n")
    assert (len(log), log.n_failed) == (1, 1)


def test_a_result_of_vllm_is_read_by_its_definitions(tmp_path: Path) -> None:
    log = bench(tmp_path, start_times=[7.0, 9.0, 8.0])
    assert log.trace.arrival_s.tolist() == [0, 1, 2]
    assert log.trace.prompt_tokens.tolist() == [100, 300, 200]
    assert values(log, "ttft_s") == [0.1, 0.3, 0.2]
    assert values(log, "tpot_s") == pytest.approx([0.03, 0.05, np.nan], nan_ok=True)
    assert values(log, "e2e_s") == pytest.approx([0.16, 0.35, 0.2])
    assert (log.arrivals, log.place.word, log.duration_s) == ("measured", "request", 2.5)


def test_failed_requests_of_a_result_are_counted_and_left_out(tmp_path: Path) -> None:
    log = bench(
        tmp_path,
        errors=["", "timed out", ""],
        output_lens=[3, 0, 0],
        ttfts=[0.1, 0.0, 0.0],
        itls=[[0.02, 0.04], [], []],
    )
    assert (len(log), log.n_failed) == (1, 2)
    assert log.trace.prompt_tokens.tolist() == [100]


def test_a_cap_without_times_is_a_closed_loop(tmp_path: Path) -> None:
    log = bench(tmp_path, max_concurrency=2)
    assert (log.arrivals, log.concurrency, log.is_paired, log.has_instants) == ("closed_loop", 2, True, False)
    assert log.trace.prompt_tokens.tolist() == [100, 200, 300]


def test_an_infinite_rate_sends_all_at_once(tmp_path: Path) -> None:
    for rate in ("inf", None):
        log = bench(tmp_path, request_rate=rate)
        assert (log.arrivals, log.trace.arrival_s.tolist()) == ("at_once", [0, 0, 0])


def test_a_rate_without_times_is_drawn_as_the_benchmark_draws(tmp_path: Path) -> None:
    log = bench(tmp_path, seed=5, request_rate=2.0, burstiness=0.5)
    drawn = VllmBench(rate_per_s=2.0, burstiness=0.5).first(3, streams(5))
    assert log.trace.arrival_s.tolist() == pytest.approx((drawn - drawn[0]).tolist())
    assert (log.arrivals, log.is_paired) == ("drawn", False)
    assert "only percentiles can be compared" in log.assumed[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict.fromkeys(("input_lens", "output_lens", "ttfts", "itls"), "left out"), "got a summary only; run the"),
        ({"itls": "left out"}, "got no itls; run the benchmark with --save-result --save-detailed"),
        ({"ttfts": [0.1]}, "must have the same length, got 3, 3, 1, 3, 3; was the file edited?"),
        ({"itls": [[0.02, -1], [], []]}, "request 1: itls must be a list of times, none negative, got [0.02, -1]"),
        ({"itls": [3, [], []]}, "request 1: itls must be a list of times, none negative, got 3"),
        ({"ttfts": [0.1, 0, 0.1]}, "request 2: ttfts must be more than 0 (did the server stream?), got 0"),
        ({"errors": ["x", "x", "x"]}, "must have an answered request, got 3 that failed"),
        ({"request_rate": "fast"}, "request_rate must be a positive number, got 'fast'"),
        ({"max_concurrency": 1.5}, "max_concurrency must be a positive whole number, got 1.5"),
        ({"ramp_up_strategy": "linear"}, "start_times are required when the rate ramps up"),
        ({"start_times": [0, None, 1]}, "request 2: start_times must be a number, got nothing"),
    ],
)
def test_a_result_that_cannot_be_replayed_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        bench(tmp_path, **changes)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("log.csv", "", "log.csv: must be a log, got an empty file; give a table"),
        ("log.csv", TABLE.split("\n")[0], "must hold at least one request, got none"),
        (
            "log.csv",
            "a,b\n1,2\n",
            "columns arrival_s, prompt_tokens, output_tokens are missing, got a, b; arrival_s may",
        ),
        ("log.csv", "arrival_s,isl,ttft_s\n0,1,1\n", "column output_tokens is missing, got arrival_s, isl, ttft_s; "),
        (
            "log.csv",
            "arrival_s,isl,osl\n0,1,1\n",
            "must have some of ttft_s, tpot_s, e2e_s, got arrival_s, isl",
        ),
        ("log.csv", TABLE.replace("0.1,", "-0.1,"), "line 2: ttft_s must not be negative, got '-0.1'; correct"),
        ("log.csv", TABLE.replace("0.1,", "inf,"), "line 2: ttft_s must be a number, got 'inf'"),
        ("log.csv", TABLE.replace("0.1,", "nan,"), "line 2: ttft_s must be a number, got 'nan'"),
        (
            "log.csv",
            TABLE.replace("0.1,", "0.2,"),
            "line 2: TTFT must not be longer than E2E, in seconds, got (0.2, 0.18)",
        ),
        ("log.csv", TABLE.replace("2,200", "x,200"), "line 3: arrival_s must be a number, got 'x'"),
        ("log.csv", TABLE.replace("2,200", "-2,200"), "line 3: an arrival must not be negative, got -2"),
        ("log.csv", TABLE.replace("2,200", "2,0"), "line 3: prompt_tokens must be at least 1, got 0"),
        ("log.csv", TABLE.replace("2,200", "2,1.5"), "line 3: prompt_tokens must be whole, got 1.5"),
        (
            "log.csv",
            "arrival_s,isl,osl,ttft_s,hash_ids\n0,32,1,1,0 1\n",
            "log.csv: column hash_block_tokens is missing beside hash_ids",
        ),
        (
            "log.csv",
            "arrival_s,isl,osl,ttft_s,hash_ids,hash_block_tokens\n2,32,1,1,0 1,16\n1,48,1,1,2 1 3,16\n",
            "line 2: hash_ids must be chained",
        ),
        ("log.json", "[1, 2]", "must be an array of requests, each a JSON object; is it a log?"),
        ("log.json", "3", "must be one JSON object, or one per line, got 3; give a table"),
        ("log.json", '{"name": "x"}', "columns arrival_s, prompt_tokens, output_tokens are missing, got name"),
        ("log.jsonl", '{"isl": 1}\n{"isl"', "log.jsonl:2: must be one JSON object per line (Expecting ':' delimiter)"),
        ("log.jsonl", '{"isl": 1}\n[]', "log.jsonl:2: must be one JSON object per line, got []"),
        ("log.jsonl", f"{json.dumps(BENCH)}\n" * 2, "log.jsonl:1: must be a request, got the result of a benchmark"),
        ("log.parquet", "no", "log.parquet: cannot be read as parquet"),
    ],
)
def test_what_is_no_log_is_refused_by_row(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        log_of(tmp_path, text, name)
    assert sentence in str(error.value)


def test_a_log_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: no such file; give a table of requests"):
        read_log(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="is a folder; name the file in it"):
        read_log(tmp_path)


def test_a_trace_of_a_result_without_start_times_is_sent_as_its_log(tmp_path: Path) -> None:
    """`run` and `calibrate` send it by one rule."""
    log = bench(tmp_path, request_rate=8.0, start_times="left out")
    trace = read_trace(tmp_path / "bench.json")
    assert trace.arrival_s.tolist() == log.trace.arrival_s.tolist()
    assert trace.notes == ("send times are unknown: arrivals are drawn at 8 per second, burstiness 1",)
    assert log.assumed[0] == f"{trace.notes[0]}; only percentiles can be compared, not requests one by one"


def test_a_closed_loop_without_start_times_is_no_trace(tmp_path: Path) -> None:
    assert bench(tmp_path, max_concurrency=16).n_clients == 16
    with pytest.raises(TraceError, match=r"16 clients sent its requests after answers; give client: \{kind: closed"):
        read_trace(tmp_path / "bench.json")


def test_a_result_without_lists_tells_rate_and_mean_lengths(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    summary = {key: value for key, value in BENCH.items() if not isinstance(value, list)}
    path.write_text(json.dumps(summary | {"total_output_tokens": 6, "request_throughput": 1.5, "model_id": "m"}))
    assert read_summary(path) == BenchSummary(3, 1.5, None, 200.0, 2.0, "m")
    with pytest.raises(WithoutRequests, match=r"must have the lists input_lens, .*--save-detailed"):
        read_log(path)
    path.write_text(json.dumps(summary | {"total_input_tokens": None}))
    with pytest.raises(TraceError, match=r"must have completed, total_input_tokens, .*; run"):
        read_summary(path)
