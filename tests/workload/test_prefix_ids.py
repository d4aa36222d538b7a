"""Prefixes of traces: as values, in files of every format that has them, and messages about bad ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.workload.readers import read_trace
from simserve.workload.readers.prefix_ids import CHAINED
from simserve.workload.readers.simserve import write_trace
from simserve.workload.trace import Prefixes, Trace


def prefixes(*rows: list[int], block_tokens: int = 16) -> Prefixes:
    ids = [block for row in rows for block in row]
    ends = np.cumsum([0, *map(len, rows)])
    return Prefixes.from_ids(block_tokens, np.array(ids, np.int64), ends)


def rows_of(result: Prefixes | None) -> list[list[int]]:
    assert result is not None
    return [result.of(row) for row in range(len(result))]


ROWS = [[0, 1, 2], [], [0, 1, 7, 8], [3], []]


def test_ids_are_kept_as_runs_and_come_back_as_they_were() -> None:
    kept = prefixes(*ROWS)
    assert rows_of(kept) == ROWS
    assert kept.n_ids.tolist() == [3, 2, 2, 1]  # 0-2; 0-1 and 7-8; 3
    assert kept.n_ids_of_rows().tolist() == [3, 0, 4, 1, 0]
    ids, offsets = kept.ids()
    assert (ids.tolist(), offsets.tolist()) == ([0, 1, 2, 0, 1, 7, 8, 3], [0, 3, 3, 7, 8, 8])


def test_a_run_ends_with_its_request_though_the_next_one_goes_on_counting() -> None:
    assert prefixes([0, 1], [2, 3]).n_ids.tolist() == [2, 2]


@pytest.mark.parametrize("rows", [slice(1, 4), slice(0, 0), np.array([2, 0, 2]), np.array([4, 3, 2, 1, 0])])
def test_taking_requests_takes_their_prefixes_along(rows: Any) -> None:
    five = np.arange(5)
    trace = Trace(five.astype(np.float64), five + 64, five + 1, prefixes=prefixes(*ROWS), notes=("kept",))
    taken = trace.take(rows)
    assert rows_of(taken.prefixes) == [ROWS[row] for row in five[rows]]
    assert (taken.prompt_tokens - 64).tolist() == five[rows].tolist()
    assert taken.notes == ("kept",)


# -- JSON lines --------------------------------------------------------------------------------------------------------


def lines(folder: Path, *rows: tuple[int, Any], output_length: int = 10) -> Path:
    """Write a file of (input_length, hash_ids)."""
    path = folder / "t.jsonl"
    keys = [
        {"timestamp": i, "input_length": n, "output_length": output_length, "hash_ids": ids}
        for i, (n, ids) in enumerate(rows)
    ]
    path.write_text("\n".join(map(json.dumps, keys)))
    return path


def test_mooncakes_ids_are_of_512_tokens_and_the_last_block_counts_only_if_it_is_full(tmp_path: Path) -> None:
    path = lines(tmp_path, (1024, [0, 1]), (1025, [0, 1, 2]), (600, [0, 3]), (600, []), (100, [4]))
    result = read_trace(path, "mooncake").prefixes
    assert result is not None
    assert result.block_tokens == 512
    assert rows_of(result) == [[0, 1], [0, 1], [0], [], []]


def test_an_id_a_whole_block_is_enough(tmp_path: Path) -> None:
    assert rows_of(read_trace(lines(tmp_path, (1025, [0, 1])), "mooncake").prefixes) == [[0, 1]]


def test_a_trace_without_ids_has_no_prefixes(tmp_path: Path) -> None:
    assert read_trace(lines(tmp_path, (600, []), (600, None)), "mooncake").prefixes is None


def test_prefixes_are_sorted_with_their_requests(tmp_path: Path) -> None:
    path = lines(tmp_path, (512, [5]), (512, [6]))
    path.write_text("\n".join(reversed(path.read_text().split("\n"))))
    assert rows_of(read_trace(path, "mooncake").prefixes) == [[5], [6]]


def test_vllms_ids_are_of_16_tokens_and_are_chained_where_they_are_not(tmp_path: Path) -> None:
    # Blocks A B C, D B C and A B: by contents the second shares B and C with the first, but no prompt prefix.
    trace = read_trace(lines(tmp_path, (48, [10, 20, 30]), (50, [40, 20, 30, 50]), (40, [10, 20, 60])), "vllm")
    first, second, third = rows_of(trace.prefixes)
    assert trace.prefixes is not None
    assert trace.prefixes.block_tokens == 16
    assert third == first[:2]
    assert len({*first, *second}) == 6
    assert CHAINED in trace.notes


def test_ids_that_are_chained_stay_as_they_are(tmp_path: Path) -> None:
    trace = read_trace(lines(tmp_path, (48, [10, 20, 30]), (48, [10, 20, 40])), "vllm")
    assert rows_of(trace.prefixes) == [[10, 20, 30], [10, 20, 40]]
    assert CHAINED not in trace.notes


def test_a_block_that_repeats_inside_a_prompt_is_another_one_each_time(tmp_path: Path) -> None:
    (row,) = rows_of(read_trace(lines(tmp_path, (64, [7, 7, 7, 8])), "vllm").prefixes)
    assert len(set(row)) == 4


def test_blocks_of_512_tokens_are_told_in_a_file_whose_stamps_are_seconds(tmp_path: Path) -> None:
    result = read_trace(lines(tmp_path, (1030, [0, 1, 2])), "vllm").prefixes
    assert result is not None
    assert result.block_tokens == 512


WHOLE = f"hash_ids must be whole numbers in [0, {2**63 - 1}], got "
BAD: dict[str, tuple[list[tuple[int, Any]], str]] = {
    "more than blocks": ([(512, [0]), (1024, [0, 1, 2])], "line 2: hash_ids must be at most one for each block of 512"),
    "more than one block": ([(374, [1]), (396, [1, 2])], "tokens that its prompt has, got '2 for 396 tokens'"),
    "fewer than blocks": (
        [(4096, [0, 1])],
        "line 1: hash_ids must be one for each block of 512 tokens, or none at all",
    ),
    "negative": ([(512, [0]), (512, [-1])], f"line 2: {WHOLE}[-1]"),
    "fraction": ([(512, [1.5])], f"line 1: {WHOLE}[1.5]"),
    "truth": ([(512, [True])], f"line 1: {WHOLE}[True]"),
    "text": ([(512, ["a"])], f"line 1: {WHOLE}['a']"),
    "no list": ([(512, 7)], f"line 1: {WHOLE}7"),
    "too large": ([(512, [2**63])], f"line 1: {WHOLE}[9223372036854775808]"),
    "two predecessors": (
        [(1024, [0, 1]), (1024, [0, 1]), (1024, [2, 1])],
        "line 3: hash_ids must be chained, an id always after the same one, as it stands for all that is before it, "
        "got '1 after 2, and after 0 elsewhere'",
    ),
    "first and not": ([(1024, [0, 1]), (512, [1])], "line 2: hash_ids must be chained"),
    "twice in a row": ([(1536, [0, 1, 0])], "got '0 after 1, and first elsewhere'"),
    "bad prompt too": ([(0, [1, 2])], "line 1: prompt_tokens must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_ids_are_refused_by_row(name: str, tmp_path: Path) -> None:
    rows, text = BAD[name]
    with pytest.raises(TraceError) as error:
        read_trace(lines(tmp_path, *rows), "mooncake")
    assert text in str(error.value)


# -- simserve's own format ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_our_own_files_keep_every_id_and_the_size_of_blocks(ending: str, tmp_path: Path) -> None:
    trace = read_trace(lines(tmp_path, (1024, [0, 1]), (600, []), (1600, [0, 1, 9, 10])), "mooncake")
    path = tmp_path / f"ours{ending}"
    write_trace(trace, path)
    again = read_trace(path).prefixes
    assert again is not None
    assert again.block_tokens == 512
    assert rows_of(again) == [[0, 1], [], [0, 1, 9]]


def ours(folder: Path, header: str, *rows: str) -> Path:
    path = folder / "ours.csv"
    path.write_text("\n".join([f"arrival_s,prompt_tokens,output_tokens,{header}", *rows]))
    return path


def test_ids_in_csv_are_apart_by_spaces_and_may_go_on_into_the_answer(tmp_path: Path) -> None:
    path = ours(tmp_path, "hash_ids,hash_block_tokens", "0,40,10,0 1 2,16", "1,60,5,0 1 2 3,16", "2,9,9,,16")
    assert rows_of(read_trace(path).prefixes) == [[0, 1, 2], [0, 1, 2, 3], []]


def test_a_prefix_may_have_a_name_and_a_length_instead(tmp_path: Path) -> None:
    header = "prefix_id,prefix_tokens,hash_block_tokens"
    path = ours(tmp_path, header, "0,99,1,b,40,16", "1,99,1,a,32,16", "2,99,1,b,64,16", "3,99,1,,0,16", "4,9,1,a,9,16")
    # b: 2 and 4 blocks, a: 2 and none; one name's ids are the beginning of one chain
    first, a, longer, none, short = rows_of(read_trace(path).prefixes)
    assert (longer[:2], len(longer)) == (first, 4)
    assert (len(a), none, short) == (2, [], [])
    assert len({*longer, *a}) == 6


@pytest.mark.parametrize(
    ("header", "row", "text"),
    [
        ("hash_ids", "0", "column hash_block_tokens is missing beside hash_ids; say how many tokens a block has"),
        ("hash_ids,hash_block_tokens", "0 x,16", f"line 2: {WHOLE}'0 x'"),
        ("hash_ids,hash_block_tokens", f"{'9' * 5000},16", f"line 2: {WHOLE}'999"),
        ("hash_ids,hash_block_tokens", "0 1 2 3 4,16", "line 2: hash_ids must be at most one for each block of 16"),
        ("hash_ids,hash_block_tokens", "0,0", "hash_block_tokens must be whole and in [1, 10000000], got 0"),
        ("hash_ids,hash_block_tokens", "0,16\n1,50,10,0,32", "line 3: hash_block_tokens must be the same in all rows"),
        ("hash_ids,prefix_id,hash_block_tokens", "0,a,16", "hash_ids or prefix_id, got both; remove one"),
        ("prefix_id,hash_block_tokens", "a,16", "column prefix_tokens is missing beside prefix_id"),
        ("prefix_id,prefix_tokens,hash_block_tokens", "a,51,16", "line 2: prefix_tokens must be whole and in [0, pro"),
    ],
)  # fmt: skip
def test_what_our_own_files_must_say_of_prefixes(header: str, row: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        read_trace(ours(tmp_path, header, f"0,50,10,{row}"))
    assert text in str(error.value)
