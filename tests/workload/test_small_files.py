"""Small files that would take gigabytes: refused, or read, within 400 MB and 64 bytes a row."""

import gzip
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simserve import input_files
from simserve.errors import TraceError
from simserve.workload.readers import cells, read_trace, text_lines
from tests.cli.scenarios import write_scenario

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the system tells no peak memory")

MEASURED = """
import sys
from simserve.cli.main import execute
code = execute(sys.argv[1:])
status = open("/proc/self/status").read()
print(code, 1024 * int(status.split("VmHWM:")[1].split()[0]), file=sys.stderr)
"""

HEAD = b"arrival_s,prompt_tokens,output_tokens\n"


def result(*arguments: object) -> tuple[int, int, str]:
    """Return the exit code of a command, the peak of its memory, and its error."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    err = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    *lines, last = err.splitlines()
    code, peak_bytes = map(int, last.split())
    return code, peak_bytes, "\n".join(lines)


def law(n_rows: int) -> int:
    return 400_000_000 + 64 * n_rows


def table(n_rows: int, **others: object) -> pa.Table:
    columns = {"arrival_s": np.arange(float(n_rows)), "ttft_s": np.ones(n_rows)}
    counts = dict.fromkeys(("prompt_tokens", "output_tokens", "hash_block_tokens"), np.full(n_rows, 16))
    return pa.table(columns | counts | others)


def packed(path: Path, *parts: tuple[bytes, int]) -> Path:
    """Write a gzip file of parts, each so many times; members of one file follow each other."""
    path.write_bytes(b"".join(gzip.compress(text * min(n, 10**6)) * max(1, n // 10**6) for text, n in parts))
    return path


@pytest.mark.parametrize(
    ("command", "column"), [("trace", "session_id"), ("trace", "comment"), ("validate", "prefix_id")]
)
def test_one_long_text_in_a_dictionary_is_not_copied_to_each_of_its_rows(
    command: str, column: str, tmp_path: Path
) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000, np.int32)), ["x" * 2**20])
    pq.write_table(table(3_000, **{column: text}), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 20_000
    code, peak_bytes, err = result(*reading(command, tmp_path))
    is_read = column != "comment"
    assert code == (2 if is_read else 0), err
    refusal = f"t.parquet: column {column} must be text, got 1,048,576 characters in a cell, over the limit of 128"
    assert (refusal in err) == is_read
    assert peak_bytes < law(0 if is_read else 3_000)


def reading(command: str, folder: Path) -> list[object]:
    """Return the arguments of a command that reads `t.parquet`."""
    path = folder / "t.parquet"
    return ["trace", "info", path] if command == "trace" else ["validate", path, "--scenario", write_scenario(folder)]


def test_a_list_of_a_hundred_million_zeros_is_refused_by_its_metadata(tmp_path: Path) -> None:
    zeros = pa.ListArray.from_arrays(pa.array([0, 10**8], pa.int32()), pa.array(np.zeros(10**8, np.int8)))
    pq.write_table(table(1, hash_ids=zeros), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 20_000
    for command in ("trace", "validate"):
        code, peak_bytes, err = result(*reading(command, tmp_path))
        assert code == 2
        assert "column hash_ids must be in small row groups, got 100,000,000 values of" in err
        assert peak_bytes < law(0)


def test_row_groups_of_a_row_each_are_refused(tmp_path: Path) -> None:
    pq.write_table(table(1_002), tmp_path / "t.parquet", row_group_size=1)
    code, _, err = result("trace", "info", tmp_path / "t.parquet")
    assert code == 2
    assert "t.parquet: must have at most 1,001 row groups, got 1,002; write larger ones" in err


def test_a_packed_file_of_short_rows_is_refused_before_they_are_held(tmp_path: Path) -> None:
    path = packed(tmp_path / "t.csv.gz", (HEAD, 1), (b"0,1,1\n", 150 * 10**6))
    assert path.stat().st_size < 3_900_000
    code, peak_bytes, err = result("trace", "info", path)
    assert (code, err) == (2, f"simserve: error: {path}: must have at most 100,000,000 lines, got more; cut it")
    assert peak_bytes < law(0)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([(HEAD, 1), (b"0", 10**7)], "t:2: a line must have at most 8 MiB, got more; is it the right file?"),
        ([(b'{"timestamp": 1, "x": "', 1), (b"0", 10**7)], "t:1: a line must have at most 8 MiB, got more"),
        ([(b'{"start_times": [', 1), (b"[],", 10**7)], "request 1, 2, 3, 4, 5 and more: start_times must be a number"),
        ([(b'{"input_lens": [[', 1), (b"1,", 10**7)], "t:1: a value must have at most 8 MiB, got more"),
        ([(b"," * 10**6 + HEAD, 1), (b",\n", 10**5)], "line 2, 3, 4, 5, 6 and more: arrival_s must be a number"),
    ],
)  # fmt: skip
def test_a_packed_file_of_another_shape_is_refused_within_the_law(
    parts: list[tuple[bytes, int]], sentence: str, tmp_path: Path
) -> None:
    code, peak_bytes, err = result("trace", "info", packed(tmp_path / "t", *parts))
    assert code == 2
    assert sentence in err
    assert peak_bytes < law(0)


def test_long_pages_of_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    text = pa.array(["x" * 4 * 2**20] * 20)
    pq.write_table(table(20, session_id=text), path, compression="zstd", use_dictionary=False, data_page_size=2**30)
    code, peak_bytes, err = result("trace", "info", path)
    assert (code, "column session_id must be text, got 4,194,304 characters in a cell" in err) == (2, True)
    assert peak_bytes < law(0)


def test_rows_of_parquet_are_counted_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(11), tmp_path / "t.parquet")
    monkeypatch.setattr(text_lines, "free_memory_bytes", lambda: 10 * 64)
    with pytest.raises(TraceError, match=r"t.parquet: must have at most 10 rows, got 11; cut it"):
        read_trace(tmp_path / "t.parquet")


ROWS = {
    "csv": "{},{},{}\n",
    "vllm": '{{"timestamp": {}, "input_length": {}, "output_length": {}, "user": "u"}}\n',
    "log": '{{"arrival_s": {}, "prompt_tokens": {}, "output_tokens": {}, "user": "u"}}\n',
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_row_of_text_takes_no_more_than_the_law(
    kind: str, is_sorted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a file are small here, so that the difference of two sizes is what their rows take."""
    for module, limit in ((text_lines, "PIECE_BYTES"), (text_lines, "HEAD_BYTES"), (input_files, "CHUNK_BYTES")):
        monkeypatch.setattr(module, limit, 2**11)
    monkeypatch.setattr(cells, "BLOCK_ROWS", 500)
    path, peaks = tmp_path / "t", []
    for n_rows in (5_000, 15_000):
        rows = [ROWS[kind].format(at if is_sorted else n_rows - at, 9, 1 + at % 7) for at in range(n_rows)]
        path.write_text("".join([HEAD.decode()] * (kind == "csv") + rows))
        read_trace(path)  # imports what it needs
        tracemalloc.start()
        read_trace(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 10_000 * (64 + 8)  # of max_tokens, which a log always has


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.parquet"])
def test_a_trace_of_millions_of_rows_takes_no_more_than_the_law(name: str, tmp_path: Path) -> None:
    n_rows = 3_000_000
    random = np.random.default_rng(0)
    columns = {"arrival_s": np.arange(n_rows) / 7} | {
        key: random.integers(1, 5_000, n_rows) for key in ("prompt_tokens", "output_tokens")
    }
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        row = ROWS["log" if name == "t.jsonl" else "csv"]
        head = b"" if name == "t.jsonl" else HEAD
        text = head + "".join(row.format(f"{at:.6f}", prompt, output) for at, prompt, output in rows).encode()
        path.write_bytes(gzip.compress(text, 1) if name == "t.csv.gz" else text)
    code, peak_bytes, err = result("trace", "info", path)
    assert code == 0, err
    assert peak_bytes < law(n_rows)


@pytest.mark.thorough
def test_the_law_holds_up_to_the_limit_of_rows(tmp_path: Path) -> None:
    """Rows out of order take the most; two sizes tell what a hundred million take."""
    path, peaks = tmp_path / "t.parquet", []
    for n_rows in (5_000_000, 15_000_000):
        counts = np.random.default_rng(0).integers(1, 9_000, n_rows)
        pq.write_table(pa.table(dict.fromkeys(("arrival_s", "prompt_tokens", "output_tokens"), counts)), path)
        peaks.append(result("trace", "info", path)[1])
    per_row = (peaks[1] - peaks[0]) / 10_000_000
    assert peaks[1] + per_row * (10**8 - 15_000_000) < law(10**8)
