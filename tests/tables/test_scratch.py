"""Scratch files: what lies in them gives the same tables, and little of it is in memory."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import Results, load_scenario, simulate
from simserve.columns import run as columns
from simserve.engine import recorder
from simserve.errors import OutputError
from simserve.tables import parquet, scratch
from simserve.tables.buffers import Buffers
from simserve.tables.columns import Categorical
from simserve.tables.files import plain
from simserve.tables.pieces import cumulated, rows_where, scratch_of
from simserve.tables.scratch import LARGE_BYTES, Scratch
from tests.effort import examples, is_thorough
from tests.test_golden import GOLDEN, digests, run

SOME = (
    "chunked.yaml",
    "disaggregated.yaml",
    "expert_ranks.yaml",
    "host_tier.yaml",
    "speculation.yaml",
    "two_nodes.yaml",
    "users.yaml",
)
"""Scenarios with prompts in chunks, hand-overs, copies to host memory, ranks, proposals, retries and sessions."""


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put every array into a file, and compute a few rows at a time."""
    monkeypatch.setattr(scratch, "PIECE_ROWS", 97)
    monkeypatch.setattr(scratch, "LARGE_BYTES", 64)
    monkeypatch.setattr(recorder, "SPILL_BYTES", 4_000)
    monkeypatch.setattr(columns, "INSTANTS_A_LOOK", 16)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 128)
    yield


def numbers(results: Results) -> object:
    """Return all numbers of a run but its wall time."""
    return plain(results.summary | {"wall_s": 0, "bench": results.vllm_bench})


@pytest.mark.parametrize("name", GOLDEN["short"] if is_thorough() else SOME)
def test_tables_and_numbers_in_pieces_are_the_same_to_the_last_bit(name: str, request: pytest.FixtureRequest) -> None:
    at_once = run(name, is_short=True)
    request.getfixturevalue("small_pieces")
    in_pieces = run(name, is_short=True)
    assert digests(in_pieces) == digests(at_once)
    assert numbers(in_pieces) == numbers(at_once)


SCENARIO = """
schema: simserve/1
name: long
model: llama-3.1-8b
gpu: h100-sxm
engine: vllm
cluster: {pools: [{name: serve, role: both, replicas: 2}]}
workload:
  arrivals: {kind: poisson, rate_per_s: 8}
  lengths: {kind: fixed, prompt_tokens: 512, output_tokens: 40}
  n_requests: 100
measure: {replays: 0}
"""


def run_of(tmp_path: Path, n_requests: int) -> Results:
    """Run the scenario with so many requests."""
    (tmp_path / "long.yaml").write_text(SCENARIO)
    return simulate(load_scenario(tmp_path / "long.yaml", overrides=[f"workload.n_requests={n_requests}"]))


def test_the_files_of_a_run_in_pieces_are_the_same_but_for_their_row_groups(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    at_once = run_of(tmp_path, 600)
    at_once.write(tmp_path / "at-once")
    request.getfixturevalue("small_pieces")
    in_pieces = run_of(tmp_path, 600)
    in_pieces.write(tmp_path / "in-pieces")
    for name in ("requests", "steps", "spans", "timeseries"):
        one, other = (pq.read_table(tmp_path / each / f"{name}.parquet") for each in ("at-once", "in-pieces"))
        assert one.replace_schema_metadata().equals(other.replace_schema_metadata()), name


@pytest.mark.usefixtures("small_pieces")
def test_rows_leave_memory_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    original = recorder.Recorder.spill

    def spill(self: recorder.Recorder) -> None:
        most.append(sum(len(tail) for buffers in self._buffers for tail in buffers.tails))
        original(self)

    monkeypatch.setattr(recorder.Recorder, "spill", spill)
    peaks = []
    for n_requests in (200, 800):
        most.clear()
        run_of(tmp_path, n_requests)
        peaks.append(max(most))
    assert peaks[1] < recorder.SPILL_BYTES + 16 * 1000  # the rows of 16 sends come before each look
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.usefixtures("small_pieces")
def test_all_columns_of_a_long_run_are_in_files(tmp_path: Path) -> None:
    columns = run_of(tmp_path, 600).columns
    for table in ("requests", "steps", "spans"):
        for name, column in columns[table].items():
            array = getattr(column, "codes", column)
            if array is not None and array.dtype != np.bool_:
                assert is_in_file(array), f"{table}.{name}"


def is_in_file(array: object) -> bool:
    """Tell whether the memory of an array is a map of a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


@pytest.mark.usefixtures("small_pieces")
def test_files_go_with_their_arrays_and_have_no_name(tmp_path: Path) -> None:
    files = Scratch(tmp_path / "out")
    array = files.full(1000, 7, np.int64)
    assert array.sum() == 7000
    assert list(tmp_path.iterdir()) == []
    assert len(files._pages) == 1
    del array
    assert not len(files._pages)


@pytest.mark.usefixtures("small_pieces")
def test_columns_know_where_their_run_keeps_its_arrays() -> None:
    files = Scratch()
    array = files.full(1000, 7, np.int64)
    for column in (array, array[10:], array.view(np.int32), Categorical(array.view(np.int32), ("",))):
        assert scratch_of({"text": None, "in memory": np.zeros(9), "": column}) is files
    assert scratch_of({"in memory": np.zeros(9)}) is not files


@pytest.mark.usefixtures("small_pieces")
def test_released_pages_keep_their_content() -> None:
    files = Scratch()
    array = files.built(1000, lambda piece: np.arange(piece.start, piece.stop) ** 2)
    files.release()
    array[500] = -1
    files.release()
    assert array[999] == 999**2
    assert array[500] == -1


@pytest.mark.usefixtures("small_pieces")
def test_a_disk_without_room_is_an_error_with_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    with pytest.raises(OutputError, match=r"No space left on device; free space there, .* GB of temporary rows"):
        Scratch(tmp_path).empty(1000, np.int64)


def test_a_system_that_cannot_reserve_space_writes_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.posix_fallocate")
    array = Scratch().empty(LARGE_BYTES, np.int32)
    array[-1] = 5
    assert array.sum() == 5


FLOATS = st.lists(st.floats(-1e6, 1e6), max_size=600)


@pytest.mark.law("large")
@settings(max_examples=examples(60))
@given(values=FLOATS)
def test_sums_in_pieces_are_those_of_numpy_to_the_last_bit(values: list[float]) -> None:
    column = np.array(values, np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "PIECE_ROWS", 7)
        sums = cumulated(lambda part: part["value"], {"value": column})
        places = rows_where(lambda part: part["value"] > 0, {"value": column})
    assert sums.tolist() == np.cumsum(column).tolist()
    assert places.tolist() == np.flatnonzero(column > 0).tolist()


@pytest.mark.law("large")
@settings(max_examples=examples(60))
@given(appended=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.booleans()), max_size=60))
def test_buffers_hold_all_rows_in_order_however_often_they_spill(appended: list[tuple[int, int, bool]]) -> None:
    buffers, expected = Buffers(Scratch()), [[], [], []]  # type: ignore[var-annotated]
    buffers.tails += [bytearray() for _ in expected]
    kind = np.dtype([("value", "<i8")])
    for index, value, spills in appended:
        buffers.tails[index] += value.to_bytes(8, "little")
        expected[index].append(value)
        if spills:
            buffers.spill()
    assert [buffers.rows(index, kind)["value"].tolist() for index in range(3)] == expected
    rows, lengths = buffers.all_rows(kind)
    assert rows["value"].tolist() == [value for each in expected for value in each]
    assert lengths == [len(each) for each in expected]
    assert [buffers.n_bytes(index) // 8 for index in range(3)] == lengths
