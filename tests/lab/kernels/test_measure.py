"""Timing a card: the stop rule, and a table that is either complete or named otherwise."""

import csv
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simserve import catalog
from simserve.errors import CalibrationError, OutputError
from simserve.lab.kernels import held_out
from simserve.lab.kernels.attention import HEADS
from simserve.lab.kernels.measure import (
    FEWEST,
    MOST,
    WARM_UP,
    Measurement,
    NotTimed,
    TimedKernel,
    measure,
    partial_path,
)
from simserve.lab.kernels.shapes import MODELS, TENSOR, key_of, shapes_to_time
from simserve.lab.kernels.table import SHAPES, read_timings
from tests.cost.specs import H100
from tests.lab.kernels.fake_card import FakeCard, seconds

SOME = [{"op": "gemm", "dtype": "bf16", "m": m, "n": 4096, "k": 4096} for m in range(1, 21)]
FOREVER_S = 1e9


class OneKernel(FakeCard):
    """A card whose kernels take these times in turn; the last one from then on."""

    def __init__(self, *times_s: float) -> None:
        super().__init__()
        self.times_s = times_s

    def prepare(self, shape: Mapping[str, Any]) -> TimedKernel:
        def times() -> Iterator[float]:
            yield from self.times_s
            while True:
                yield self.times_s[-1]

        return TimedKernel("one", times().__next__)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def timed(card: FakeCard, folder: Path) -> dict[str, str]:
    """The row of one shape."""
    measure(SOME[:1], card, folder / "t.csv", FOREVER_S)
    (row,) = rows_of(folder / "t.csv")
    return row


def test_a_steady_kernel_is_repeated_a_few_times_after_its_warm_up(tmp_path: Path) -> None:
    row = timed(OneKernel(*[1.0] * WARM_UP, 2e-5), tmp_path)
    assert (float(row["latency_s"]), int(row["n_repeats"]), float(row["error_frac"])) == (2e-5, FEWEST, 0)


def test_an_interruption_does_not_move_the_median(tmp_path: Path) -> None:
    row = timed(OneKernel(*[1.0] * WARM_UP, 2e-5, 9.0, 2e-5), tmp_path)
    assert float(row["latency_s"]) == 2e-5


def test_a_kernel_that_trembles_is_repeated_until_its_median_is_known(tmp_path: Path) -> None:
    low, high = 1.9e-5, 2.1e-5
    row = timed(OneKernel(*[low, high] * (MOST + WARM_UP)), tmp_path)
    assert int(row["n_repeats"]) == MOST  # 1.253 x 10% / 1.349 / sqrt(60) = 1.2% > 1%
    assert float(row["error_frac"]) == pytest.approx(1.253 * 0.1 / 1.349 / MOST**0.5, rel=0.05)


def test_medians_that_stay_uncertain_are_counted(tmp_path: Path) -> None:
    shaking = OneKernel(*[1e-5, 4e-5] * (MOST + WARM_UP))
    assert measure(SOME[:2], shaking, tmp_path / "t.csv", FOREVER_S).n_unsteady == 2


def test_the_row_of_a_shape_is_within_its_error_of_the_truth(tmp_path: Path) -> None:
    measure(SOME, FakeCard(), tmp_path / "t.csv", FOREVER_S)
    for row, shape in zip(rows_of(tmp_path / "t.csv"), SOME, strict=True):
        assert float(row["latency_s"]) == pytest.approx(seconds(shape), rel=5 * 0.01)
        assert (row["op"], row["kernel"], row["device"], row["m"]) == ("gemm", "fake", "a fake H100", str(shape["m"]))


def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    with pytest.raises(KeyboardInterrupt):
        measure(SOME, FakeCard(fails_after=8), table, FOREVER_S)
    assert not table.exists()
    assert len(rows_of(partial_path(table))) == 8
    with partial_path(table).open("a") as file:
        file.write("gemm,1.2e-")  # a process that was killed while it wrote
    later = FakeCard()
    result = measure(SOME, later, table, FOREVER_S)
    assert (result.n_done, result.n_shapes, result.is_complete) == (20, 20, True)
    assert [shape["m"] for shape in later.prepared] == list(range(9, 21))
    assert sorted(int(row["m"]) for row in rows_of(table)) == list(range(1, 21))
    assert list(tmp_path.iterdir()) == [table]


def test_each_row_is_in_the_file_before_the_next_shape_begins(tmp_path: Path) -> None:
    table, seen = tmp_path / "mine.csv", []

    def look(result: Measurement) -> None:
        seen.append((result.n_done, len(rows_of(partial_path(table)))))

    measure(SOME[:4], FakeCard(), table, FOREVER_S, look)
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_no_time_leaves_a_partial_table(tmp_path: Path) -> None:
    result = measure(SOME, FakeCard(), tmp_path / "mine.csv", -1)
    assert (result.n_done, result.is_complete) == (0, False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv.partial"]
    assert measure(SOME, FakeCard(), tmp_path / "mine.csv", FOREVER_S).is_complete


def test_shapes_that_the_card_cannot_run_are_counted_by_reason(tmp_path: Path) -> None:
    shapes = [*SOME, {"op": "host_copy", "direction": "to_host", "bytes": 1024}]
    result = measure(shapes, FakeCard(lacks=("host_copy",)), tmp_path / "t.csv", FOREVER_S)
    assert result.not_timed == {("host_copy", "no such kernel"): 1}
    assert result.is_complete
    assert len(rows_of(tmp_path / "t.csv")) == 20


def test_a_card_that_runs_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="a shape must run on a fake H100, got no such kernel; try another"):
        measure(SOME, FakeCard(lacks=("gemm",)), tmp_path / "t.csv", FOREVER_S)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("op,m\ngemm,1\n", "must be a table that lab measure began; remove it"),
        ("\x00\x01\n", "must be a table that lab measure began; remove it"),
        (None, "must be of the card at hand, a fake H100, got another card; remove it"),
    ],
)
def test_a_partial_table_of_something_else_is_refused_and_kept(text: str | None, rule: str, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    if text is None:
        measure(SOME[:2], FakeCard(), table, FOREVER_S)
        text = table.read_text().replace("a fake H100", "another card")
        table.unlink()
    partial_path(table).write_text(text)
    with pytest.raises(CalibrationError, match=rule):
        measure(SOME, FakeCard(), table, FOREVER_S)
    assert partial_path(table).read_text() == text


def test_a_table_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(OutputError, match=r"mine\.csv: must not exist, as a measurement replaces none; name another"):
        measure(SOME, FakeCard(), tmp_path / "mine.csv", FOREVER_S)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"mine\.csv\.partial: must be writable, got No such file or directory; make"):
        measure(SOME, FakeCard(), tmp_path / "none" / "mine.csv", FOREVER_S)


def test_two_processes_do_not_write_one_table(tmp_path: Path) -> None:
    partial = partial_path(tmp_path / "mine.csv")
    partial.touch()
    other = os.open(partial, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(OutputError, match="is written by another process; wait for it or name another table"):
            measure(SOME, FakeCard(), tmp_path / "mine.csv", FOREVER_S)
    finally:
        os.close(other)


def default_shapes(n_gpus: int = 8) -> tuple[Mapping[str, Any], ...]:
    return shapes_to_time([catalog.load_model(name) for name in MODELS], H100, ("bf16", "fp8"), n_gpus)


def test_shapes_are_whole_unique_and_can_be_read_as_a_table(tmp_path: Path) -> None:
    shapes = default_shapes()
    assert len({key_of(shape) for shape in shapes}) == len(shapes)
    assert all(set(shape) == {"op", *SHAPES[shape["op"]]} for shape in shapes)
    pd.DataFrame(shapes).assign(latency_s=1e-3).to_csv(tmp_path / "t.csv", index=False)
    assert len(read_timings(tmp_path / "t.csv")) == len(shapes)


@pytest.mark.parametrize("op", ["gemm", "prefill_attention", "decode_attention"])
def test_the_default_models_have_shapes_to_hold_out_and_shapes_to_fit(op: str) -> None:
    rows = pd.DataFrame([shape for shape in default_shapes() if shape["op"] == op])
    held = held_out(rows, ("n", "k") if op == "gemm" else HEADS)
    assert 0.1 < held.mean() < 0.5
    assert (~held).sum() > 200


def test_any_first_part_of_the_shapes_is_a_sample_of_all_operations() -> None:
    shapes = [shape["op"] for shape in default_shapes(1)]
    for op in ("gemm", "prefill_attention", "decode_attention", "host_copy"):
        assert shapes[: len(shapes) // 3].count(op) == pytest.approx(shapes.count(op) / 3, rel=0.3)
    sizes = [shape.get("n_gpus", 1) for shape in default_shapes(8)]
    assert sizes == sorted(sizes)  # the processes of a group start once


def test_collectives_are_of_the_gpus_at_hand() -> None:
    def groups(n_gpus: int) -> set[int]:
        return {shape["n_gpus"] for shape in default_shapes(n_gpus) if "n_gpus" in shape}

    assert groups(1) == set()
    assert groups(3) == {2}
    assert groups(8) == set(TENSOR[1:])


def test_a_model_of_ones_own_adds_its_layers() -> None:
    own = catalog.load_model("qwen2.5-7b")
    shapes = shapes_to_time([own], H100, ("bf16",), 1)
    pairs = {(shape["k"], shape["n"]) for shape in shapes if shape["op"] == "gemm"}
    assert (3584, 2 * 18944) in pairs  # gate and up
    assert (18944 // 2, 3584) in pairs  # down, on two GPUs
    assert {shape["n_heads"] for shape in shapes if "n_heads" in shape} == {28, 14, 7}


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-next-80b-a3b", "nemotron-h-56b", "gemma-3-1b"])
def test_models_of_every_kind_have_shapes(name: str) -> None:
    shapes = shapes_to_time([catalog.load_model(name)], H100, ("bf16", "fp8"), 1)
    assert {"gemm", "host_copy"} <= {shape["op"] for shape in shapes}


def test_not_timed_is_no_error_of_a_user() -> None:
    assert not issubclass(NotTimed, CalibrationError)
