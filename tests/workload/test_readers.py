"""Trace files of every format, and messages about bad ones."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simserve import Scenario, input_files, load_results, simulate
from simserve.errors import TraceError
from simserve.workload.info import stamp_s, trace_info
from simserve.workload.readers import cells, detect, read_trace, simserve, text_lines
from simserve.workload.readers.simserve import write_trace
from simserve.workload.replay import replay
from simserve.workload.streams import streams
from simserve.workload.trace import MOST_TOKENS, Trace
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
FILES = {
    "azure.csv": AZURE,
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
    '{"timestamp": 4314, "input_length": 396, "output_length": 109, "hash_ids": [2]}\n',
    "burstgpt.csv": BURST + "5,a,1,ChatGPT,374,44,418,API\n6,b,1,ChatGPT,9,0,9,API\n9.3145,c,1,GPT-4,396,109,505,API\n",
    "vllm.jsonl": '{"timestamp": 1.0, "input_length": 374, "output_length": 44}\n'
    '{"timestamp": 5.3145, "input_length": 396, "output_length": 109}\n',
    "bench.json": json.dumps({"start_times": [7.0, 11.3145], "input_lens": [374, 396], "output_lens": [44, 109]}),
    "ours.csv": "arrival_s,prompt_tokens,output_tokens\n0,374,44\n4.3145,396,109\n",
}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_told_apart_and_read(name: str, tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, name, FILES[name]))
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert trace.output_tokens.tolist() == [44, 109]
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.3145], abs=1e-3)


def test_a_packed_trace_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    assert len(read_trace(path)) == 2


def test_failed_calls_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "b.csv", FILES["burstgpt.csv"]))
    assert "1 failed calls" in trace.notes[0]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_trace_survives_our_own_format(ending: str, tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "azure.csv", AZURE))
    path = tmp_path / f"ours{ending}"
    write_trace(trace, path)
    again = read_trace(path)
    assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert again.arrival_s.tolist() == pytest.approx(trace.arrival_s.tolist(), abs=1e-6)


def test_a_csv_trace_is_written_the_same_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, texts = written(tmp_path, "t.jsonl", FILES["mooncake.jsonl"]), []
    for n_rows in (1000, 1):
        monkeypatch.setattr(simserve, "PIECE_ROWS", n_rows)
        write_trace(read_trace(path), tmp_path / "ours.csv")
        texts.append((tmp_path / "ours.csv").read_text())
    assert texts[0] == texts[1]
    assert texts[0].count("\n") == 1 + len(read_trace(path)) > 2


def test_an_unsorted_trace_is_sorted_and_says_so(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n5,1,1\n2,2,2\n9,3,3\n"
    trace = read_trace(written(tmp_path, "t.csv", text))
    assert trace.prompt_tokens.tolist() == [2, 1, 3]
    assert trace.arrival_s.tolist() == [0, 3, 7]
    assert "sorted" in trace.notes[0]


VLLM_ROW = '{"timestamp": 1, "input_length": 3, "output_length": 4}\n'
HEAD = "arrival_s,prompt_tokens,output_tokens\n"
BAD = {
    "empty file": ("t.csv", "", "got an empty file"),
    "header only": ("t.csv", HEAD, "must hold at least one request, got none"),
    "missing column": ("t.csv", "arrival_s,prompt_token,output_tokens\n1,2,3\n", "did you mean prompt_token"),
    "negative arrival": ("t.csv", HEAD + "0,1,1\n-3,1,1\n", "line 3: an arrival must not be negative, got -3"),
    "not a number": ("t.csv", HEAD + "0,1,1\n1,x,1\n", "line 3: prompt_tokens must be a number, got 'x'"),
    "missing value": ("t.csv", HEAD + "0,1,1\n1,,1\n2,1\n", "line 3: prompt_tokens must be a number, got nothing"),
    "nan": ("t.csv", HEAD + "nan,1,1\n", "line 2: arrival_s must be a number"),
    "zero outputs": ("t.csv", HEAD + "0,1,1\n1,1,0\n", "line 3: output_tokens must be at least 1, got 0"),
    "many bad rows": ("t.csv", HEAD + "0,0,1\n" * 9, "line 2, 3, 4, 5, 6 and 4 more: prompt_tokens"),
    "after a failed call": (
        "b.csv",
        BURST + "1,a,1,M,9,0,9,API\n2,b,1,M,0,5,5,API\n",
        "line 3: prompt_tokens must be at least 1",
    ),
    "half tokens": ("t.csv", HEAD + "0,1.5,1\n", "prompt_tokens must be whole"),
    "duplicate ids": ("t.csv", "request_id," + HEAD + "a,0,1,1\nb,0,1,1\na,1,1,1\n", "line 2, 4: request_id must be"),
    "truncated JSON": ("t.jsonl", FILES["mooncake.jsonl"][:-20], "2: must be one JSON object a line"),
    "lacking keys": ("t.jsonl", '{"timestamp": 1, "input_length": 3}\n', "output_length is missing"),
    "bad stamp": ("t.csv", AZURE + "yesterday,1,1\n", "line 4: TIMESTAMP must be a date and time"),
    "unknown": ("t.csv", "a,b,c\n1,2,3\n", "prompt_tokens, output_tokens are missing, got a, b, c; arrival_s may also"),
    "header below blanks": ("t.csv", "\n\narrival_s,prompt_token,output_tokens\n", "t.csv:3: column prompt_tokens"),
    "unknown below blanks": ("t.csv", "\n\na,b,c\n", "output_tokens are missing, got a, b, c"),
    "a column twice": ("t.csv", "arrival_s," + HEAD + "1,1,1,1\n", "t.csv:1: column arrival_s must appear once"),
    "value over two lines": ("t.csv", "request_id," + HEAD + 'a,0,1,1\n"b\nc",0,0,1\n', "line 3: prompt_tokens"),
    "stamps in nanoseconds": ("t.csv", HEAD + "0,1,1\n1.7e18,1,1\n", "line 3: an arrival must be at most 1e+11 s"),
    "too deep JSON": ("t.jsonl", VLLM_ROW + "[" * 100_000, "t.jsonl:2: must be one JSON object a line (has more"),
    "too long a number": ("t.jsonl", VLLM_ROW + "1" * 5000, "t.jsonl:2: must be one JSON object a line (a number"),
    "result too deep": ("t.json", '{"start_times": ' + "[" * 100_000, "must be one JSON object (has more than 100"),
    "result too wide": (
        "t.json",
        json.dumps({"start_times": [1e308, -1e308], "input_lens": [1, 1], "output_lens": [1, 1]}),
        "request 1: an arrival must be at most 1e+11 s",
    ),
    "unequal arrays": (
        "t.json",
        json.dumps({"start_times": [1], "input_lens": [1, 2], "output_lens": [1]}),
        "must have the same length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_with_place_rule_and_value(name: str, tmp_path: Path) -> None:
    file, text, sentence = BAD[name]
    with pytest.raises(TraceError) as error:
        read_trace(written(tmp_path, file, text))
    assert sentence in str(error.value)
    assert str(tmp_path / file) in str(error.value)


def what_is_read(path: Path) -> list[list[float]] | str:
    try:
        trace = read_trace(path)
    except TraceError as error:
        return str(error)
    return [trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64])
def test_a_file_reads_the_same_in_pieces_of_any_size(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = FILES | {f"{name} {file}": text for name, (file, text, _) in BAD.items() if name != "many bad rows"}
    texts = {name: text for name, text in texts.items() if len(text) < 5_000}
    texts["quoted.csv"] = "request_id," + HEAD + '"a\nb, ""c""\r\nd",0,1,1\n\ne,1,2,2\n"f\n\n",2,0,3\n'
    texts["umlauts.csv"] = "\ufeffrequest_id," + HEAD + "äöü€,0,1,1\n"
    whole = {name: what_is_read(written(tmp_path, name, text)) for name, text in texts.items()}
    monkeypatch.setattr(text_lines, "PIECE_BYTES", chunk_bytes)
    monkeypatch.setattr(input_files, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(cells, "BLOCK_ROWS", 2)
    assert {name: what_is_read(tmp_path / name) for name in texts} == whole
    assert "line 7: prompt_tokens must be at least 1, got 0" in str(whole["quoted.csv"])


def test_files_that_cannot_be_read_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(TraceError, match="got a folder"):
        read_trace(tmp_path, "azure")
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"arrival_s\xff\n")
    with pytest.raises(TraceError, match="must be UTF-8 text, got byte 9"):
        read_trace(latin)
    with pytest.raises(TraceError, match="did you mean azure"):
        read_trace(latin, "azur")


def test_lines_are_those_of_the_file_with_blank_ones_counted(tmp_path: Path) -> None:
    csv = written(tmp_path, "t.csv", HEAD + "0,1,1\n\n\n1,0,1\n")
    with pytest.raises(TraceError, match="line 5: prompt_tokens"):
        read_trace(csv)
    spaced = written(tmp_path, "spaced.csv", "\n" + HEAD + "0,1,1\n  \n1,1,1\n")
    assert len(read_trace(spaced)) == 2
    windows = written(tmp_path, "windows.csv", (HEAD + "0,1,1\n\n1,0,1\n").replace("\n", "\r\n"))
    with pytest.raises(TraceError, match="line 4: prompt_tokens"):
        read_trace(windows)
    one = json.dumps({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]})
    lines = written(tmp_path, "t.jsonl", f"{one}\n\n{one.replace('600', '0')}\n")
    with pytest.raises(TraceError, match="line 3: prompt_tokens"):
        read_trace(lines)


PACKED = gzip.compress(AZURE.encode() * 100)


@pytest.mark.parametrize("packed", [PACKED[:-20], PACKED[:40] + b"?" * 9 + PACKED[49:], PACKED + b"junk", PACKED[:2]])
def test_a_packed_file_that_is_damaged_is_an_error_of_the_file(packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match=r"azure\.csv\.gz: cannot be read .* check that it is complete"):
        read_trace(path)


def test_a_trace_of_a_mistyped_year_can_still_be_looked_at(tmp_path: Path) -> None:
    info = trace_info(read_trace(written(tmp_path, "t.csv", HEAD + "0,1,1\n5,2,2\n1e10,1,1\n")))
    # Windows of 1 s: 1e10 of them, three with one request each; the last instant counts in the last window.
    assert info["index_of_dispersion"]["1 s"] == pytest.approx(1.0, abs=1e-6)


def test_stamps_with_and_without_a_zone_are_the_same_instants(tmp_path: Path) -> None:
    zoned = AZURE.replace("6805900", "6805900+00:00").replace("9951690", "9951690Z")
    plain = read_trace(written(tmp_path, "plain.csv", AZURE))
    assert read_trace(written(tmp_path, "zoned.csv", zoned)).arrival_s.tolist() == plain.arrival_s.tolist()
    with pytest.raises(TraceError, match="line 2: TIMESTAMP must be a date and time in UTC"):
        read_trace(written(tmp_path, "east.csv", AZURE.replace("6805900", "6805900+02:00")))


@pytest.mark.parametrize(("n_blocks", "progress"), [(2, "mooncake"), (64, "vllm")])
def test_the_size_of_hashed_blocks_tells_milliseconds_from_seconds(
    n_blocks: int, progress: str, tmp_path: Path
) -> None:
    row = {"timestamp": 1000, "input_length": 1024, "output_length": 1, "hash_ids": list(range(n_blocks))}
    path = written(tmp_path, "t.jsonl", "\n".join(json.dumps(row | {"timestamp": at}) for at in (0, 1000)))
    assert detect(path)[0] == progress
    assert read_trace(path).arrival_s.tolist() == [0.0, 1.0 if progress == "mooncake" else 1000.0]


def test_the_real_mooncake_files_are_told_as_such() -> None:
    if not TRACES.is_dir():
        pytest.skip("the real traces are not here")
    assert {detect(path)[0] for path in TRACES.glob("mooncake*.jsonl")} == {"mooncake"}


def test_whole_columns_are_integers_and_a_trace_with_all_of_them_can_be_served(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,max_tokens,turn,priority\n0,10,5,8,1,0\n1,10,50,8,2,1\n"
    path = written(tmp_path, "t.csv", text)
    trace = read_trace(path)
    for name in ("prompt_tokens", "output_tokens", "max_tokens", "turn", "priority"):
        assert getattr(trace, name).dtype == np.int64
    scenario = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "ideal"}
    results = simulate(Scenario.from_dict({**scenario, "workload": {"trace": {"path": str(path)}}}))
    assert results.requests["output_tokens"].tolist() == [5, 8]  # the second is cut at its max_tokens
    assert results.requests["turn"].tolist() == [1, 2]


def replayed(path: Path, n_requests: int | None = None, duration_s: float | None = None, **spec: object) -> Trace:
    given = {"path": str(path), "format": "auto", "rate_scale": 1.0, "spread": "none", "next_turn": ""} | spec
    workload = SimpleNamespace(n_requests=n_requests, duration_s=duration_s)
    return replay(SimpleNamespace(columns={}, **given), Path(), streams(0), workload)


def test_a_replay_is_scaled_and_cut_as_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEAD + "".join(f"{i},10,5\n" for i in range(100)))
    assert replayed(path, rate_scale=2.0).arrival_s[-1] == 49.5
    assert len(replayed(path, n_requests=7)) == 7
    assert len(replayed(path, duration_s=10.0)) == 10
    assert len(replayed(path, duration_s=10.0, rate_scale=2.0)) == 20


def test_coarse_stamps_are_noticed_and_can_be_spread(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEAD + "".join(f"{3 * (i // 10)},10,5\n" for i in range(400)))
    clumped, even = replayed(path), replayed(path, spread="uniform")
    assert "steps of 3 s" in clumped.notes[-1]
    assert stamp_s(even) is None
    assert np.all(np.diff(even.arrival_s) >= 0)
    assert np.all(np.abs(even.arrival_s - clumped.arrival_s) <= 3.0)


@pytest.mark.skipif(not TRACES.exists(), reason="the real traces are not beside the checkout")
def test_real_traces_are_told_apart_and_read_whole() -> None:
    result = {path.name: (detect(path)[0], len(read_trace(path))) for path in sorted(TRACES.iterdir())}
    assert result == {
        "azure_llm_2023_code.csv": ("azure", 8819),
        "azure_llm_2023_conv.csv": ("azure", 19366),
        "mooncake_conversation.jsonl": ("mooncake", 12031),
        "mooncake_synthetic.jsonl": ("mooncake", 3993),
    }
    info = trace_info(read_trace(TRACES / "mooncake_conversation.jsonl"))
    assert info["stamp_s"] == pytest.approx(3.0, abs=0.01)
    assert info["rate_per_s"] == pytest.approx(3.4, abs=0.01)


def test_a_message_repeats_no_more_than_a_field_of_a_file_that_is_no_trace(tmp_path: Path) -> None:
    secret = "hunter2:$6$" + "s" * 50
    texts = {"a.csv": f"{secret}\n", "b.csv": f"{secret},user name\n{secret}\n", "c.jsonl": f'{{"{secret}": 1}}\n'}
    texts |= {"d.csv": f"{HEAD}{secret},1,1\n", "e.jsonl": f"{secret}\n"}
    for name, text in texts.items():
        for format in ("auto", "azure", "mooncake"):
            with pytest.raises(TraceError) as error:
                read_trace(written(tmp_path, name, text), format)
            assert "s" * 40 not in str(error.value), (name, format)
            assert name == "d.csv" or "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (b"0,1,1," + b"?" * 99, r"cannot be read \(is larger than 1 MiB unpacked\)"),
        (b"0,1,1", r"must have at most 65,536 lines, which take 0.00391 GiB, all free memory, got more; cut it"),
    ],
)
def test_a_small_file_that_unpacks_to_more_than_memory_holds_is_refused(
    row: bytes, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_bytes(gzip.compress(HEAD.encode() + (row + b"\n") * 100_000))
    monkeypatch.setattr(text_lines, "free_memory_bytes", lambda: 4 * 2**20)
    with pytest.raises(TraceError, match=f"t.csv: {sentence}"):
        read_trace(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_may_lack_a_session_with_its_turn_and_a_limit(suffix: str, tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,max_tokens,session_id,turn\n0,9,9,,a,1\n1,9,9,20,,\n"
    path = written(tmp_path, "t.csv", text)
    if suffix == "parquet":
        path = tmp_path / "t.parquet"
        columns = {name: [0, 1] if name == "arrival_s" else [9, 9] for name in HEAD.strip().split(",")}
        more = {"max_tokens": [None, 20], "session_id": ["a", None], "turn": [1, None]}
        pq.write_table(pa.table(columns | more), path)
    trace = read_trace(path)
    assert trace.turn is not None and trace.turn.tolist() == [1, 0]
    assert trace.max_tokens is not None and trace.max_tokens.tolist() == [MOST_TOKENS, 20]
    with pytest.raises(TraceError, match="line 3: turn must be a number, got nothing"):
        read_trace(written(tmp_path, "u.csv", text.replace(",20,,", ",20,b,")))


def test_a_run_of_sessions_beside_batch_jobs_can_be_replayed(tmp_path: Path) -> None:
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
    client = {"kind": "closed_loop", "concurrency": 2}
    prefixes = {"kind": "conversations", "turns": 2, "think_s": 1.0, "next_turn": "after_answer"}
    batch = {"n_requests": 3, "lengths": lengths, "at_s": 0.5}
    workload = {"client": client, "lengths": lengths, "prefixes": prefixes, "n_requests": 12, "batch": batch}
    assert invoke("run", write_scenario(tmp_path, workload=workload), "--out", tmp_path / "a").exit_code == 0
    again = write_scenario(tmp_path, workload={"trace": {"path": str(tmp_path / "a" / "requests.parquet")}})
    outcome = invoke("run", again, "--out", tmp_path / "b")
    assert outcome.exit_code == 0, outcome.err
    first, second = (load_results(tmp_path / name).requests for name in "ab")
    assert first["turn"].isna().sum() == second["turn"].isna().sum() == 3
    assert first["session_id"].nunique() == second["session_id"].nunique()


@pytest.mark.parametrize("length", [-(2**70), -1, 2**70])
def test_a_length_out_of_range_is_refused_by_its_line_whatever_the_format(length: int, tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": length, "output_length": 5, "hash_ids": [1, 2]}
    with pytest.raises(TraceError, match=r"line 1: prompt_tokens must be at (least 1|most 10000000), got "):
        read_trace(written(tmp_path, "t.jsonl", json.dumps(row)))
