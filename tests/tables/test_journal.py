"""The journal keeps what is finished through anything, drops what is torn, and says whether the answer is older."""

import io
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import OutputError
from simserve.tables.folder import OLDER, SWEEP, check_folder, is_older_answer, result_folder
from simserve.tables.journal import Journal, open_journal
from simserve.tables.swap import lock


class Row(dict[str, Any]):
    """Any mapping as a run."""

    def facts(self) -> dict[str, Any]:
        return dict(self)


ROW = Row({"seed": 0, "status": "finished", "ttft_s.p99": 0.1})


def opened(folder: Path) -> AbstractContextManager[Journal[Row]]:
    """Open a journal that takes any row."""
    return open_journal(folder, SWEEP, read)


def read(row: Any) -> Row:
    return Row(row)


def test_what_was_added_is_there_the_next_time(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b") as journal:
        journal.add("one", ROW)
        journal.add("two", Row({"ttft_s.p99": None}))
    with opened(tmp_path / "a" / "b") as journal:
        assert journal.rows == {"one": ROW, "two": {"ttft_s.p99": None}}


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_torn_anywhere_is_dropped_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    with opened(tmp_path) as journal:
        journal.add("one", ROW)
        journal.add("two", ROW)
    file = tmp_path / "sweep.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["one"]
        journal.add("three", ROW)
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["one", "three"]


def test_a_spoilt_line_in_the_middle_costs_that_run_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for key in ("one", "two", "three"):
            journal.add(key, ROW)
    file = tmp_path / "sweep.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * (len(lines[1]) - 1) + b"\n" + lines[2])
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["one", "three"]


def test_a_journal_is_read_in_few_calls_however_long_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for n in range(50):
            journal.add(str(n), ROW)

    class Counted(io.FileIO):
        n_reads = 0

        def readinto(self, buffer: Any) -> int | None:
            self.n_reads += 1
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> bytes:
            self.n_reads += 1
            return super().read(size)

        def readall(self) -> bytes:
            self.n_reads += 1
            return super().readall()

    with Counted(tmp_path / "sweep.jsonl", "r+") as file:
        assert len(Journal(file, tmp_path / "sweep.jsonl", SWEEP, read).rows) == 50
        assert file.n_reads <= 3


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as journal:
        journal.add("one", ROW)
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OutputError, match="No space left on device; free space there, or choose"):
            journal.add("two", ROW)
    monkeypatch.undo()
    with opened(tmp_path) as journal:
        assert list(journal.rows) == ["one"]


def test_two_sweeps_cannot_write_into_one_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(OutputError, match="another sweep is writing there now"),
        opened(tmp_path),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="must be writable"), opened(tmp_path / "file" / "out"):
        pass


FILES = ("sweep.json", "sweep.parquet", "report.html")


def answer(folder: Path, content: str = "old") -> None:
    with result_folder(folder, SWEEP) as new:
        for name in FILES:
            (new / name).write_text(content)


def answered(folder: Path) -> set[str]:
    return {(folder / name).read_text() for name in FILES}


def test_an_earlier_answer_stays_beside_the_journal_which_says_that_it_is_older_from_the_first_run_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    with opened(out) as journal:
        journal.add("one", ROW)
        assert not is_older_answer(out, SWEEP)  # there is none
        answer(out)
    assert not is_older_answer(out, SWEEP)
    with opened(out):
        assert not is_older_answer(out, SWEEP)
    for key in ("two", "three"):
        with opened(out) as journal:
            journal.add(key, ROW)
        assert (answered(out), is_older_answer(out, SWEEP)) == ({"old"}, True)
    lines = (out / "sweep.jsonl").read_bytes().splitlines(keepends=True)
    assert [n for n, line in enumerate(lines) if line == OLDER] == [1]
    answer(out, "new")
    assert (answered(out), is_older_answer(out, SWEEP)) == ({"new"}, False)
    with opened(out) as journal:
        assert list(journal.rows) == ["one", "two", "three"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_a_failure_while_the_answer_is_written_keeps_journal_and_earlier_answer(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    out = tmp_path / "out"
    answer(out)
    with opened(out) as journal:
        journal.add("one", ROW)
        with pytest.raises((failure, OutputError)), result_folder(out, SWEEP) as new:
            (new / "sweep.json").write_text("half")
            raise failure
    assert (answered(out), is_older_answer(out, SWEEP)) == ({"old"}, True)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_what_an_earlier_version_left_half_withdrawn_is_continued_and_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with opened(out) as journal:
        journal.add("one", ROW)
    for name in ("report.html", "sweep.json", ".sweep.parquet.123.partial"):
        (out / name).write_text("half")
    check_folder(out, SWEEP)
    with opened(out) as journal:
        assert list(journal.rows) == ["one"]
        answer(out, "new")
    assert {file.name for file in out.iterdir()} == {"sweep.jsonl", *FILES}
    with opened(out) as journal:
        assert list(journal.rows) == ["one"]


def test_a_journal_beside_a_strangers_file_is_refused_and_both_stay(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.add("one", ROW)
        (tmp_path / "mine.txt").touch()
        with pytest.raises(OutputError, match=r"got mine\.txt; choose another --out"):
            answer(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"sweep.jsonl", "mine.txt"}


def test_a_journal_without_a_run_is_removed_with_the_folders_that_were_made_for_it(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / "sweep.jsonl").exists()
    assert not list(tmp_path.iterdir())
    with opened(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_journal_that_was_swapped_before_it_could_be_locked_takes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs would be lost with the folder that the swap removes."""
    with opened(tmp_path / "out") as journal:
        journal.add("one", ROW)

    def late(descriptor: int) -> None:
        answer(tmp_path / "out")
        lock(descriptor)

    monkeypatch.setattr("simserve.tables.journal.lock", late)
    with pytest.raises(OutputError, match="another sweep is writing there now"), opened(tmp_path / "out"):
        pass
    assert "one" in (tmp_path / "out" / "sweep.jsonl").read_text()
