"""The journal keeps what is finished through anything, and drops what is torn."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import OutputError
from simserve.scenario import load_scenario
from simserve.study.sweep import journal as sweep_journal
from simserve.study.sweep.journal import Journal, key_of, open_journal
from tests.cli.scenarios import write_scenario

ROW = {"seed": 0, "status": "finished", "ttft_s.p99": 0.1}


def test_what_was_added_is_there_the_next_time(tmp_path: Path) -> None:
    with open_journal(tmp_path / "a" / "b") as journal:
        journal.add("one", ROW)
        journal.add("two", ROW | {"ttft_s.p99": float("nan")})
    with open_journal(tmp_path / "a" / "b") as journal:
        assert journal.rows == {"one": ROW, "two": ROW | {"ttft_s.p99": None}}


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_torn_anywhere_is_dropped_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    with open_journal(tmp_path) as journal:
        journal.add("one", ROW)
        journal.add("two", ROW)
    file = tmp_path / "sweep.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    with open_journal(tmp_path) as journal:
        assert list(journal.rows) == ["one"]
        journal.add("three", ROW)
    with open_journal(tmp_path) as journal:
        assert list(journal.rows) == ["one", "three"]


def test_a_spoilt_line_in_the_middle_costs_that_run_alone(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        for key in ("one", "two", "three"):
            journal.add(key, ROW)
    file = tmp_path / "sweep.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * (len(lines[1]) - 1) + b"\n" + lines[2])
    with open_journal(tmp_path) as journal:
        assert list(journal.rows) == ["one", "three"]


def test_a_journal_is_read_in_few_calls_however_long_it_is(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
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
        assert len(Journal(file, tmp_path).rows) == 50
        assert file.n_reads <= 3


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    with open_journal(tmp_path) as journal:
        journal.add("one", ROW)
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OutputError, match="No space left on device; free space there, or choose"):
            journal.add("two", ROW)
    monkeypatch.undo()
    with open_journal(tmp_path) as journal:
        assert list(journal.rows) == ["one"]


def test_two_sweeps_cannot_write_into_one_folder(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path),
        pytest.raises(OutputError, match="another sweep is writing there now"),
        open_journal(tmp_path),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="must be writable"), open_journal(tmp_path / "file" / "out"):
        pass


def test_a_run_is_known_by_scenario_seed_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    other = load_scenario(write_scenario(tmp_path), overrides=["cluster.pools.0.replicas=2"])
    keys = {key_of(scenario, 0), key_of(scenario, 1), key_of(other, 0)}
    monkeypatch.setattr(sweep_journal, "__version__", "9.9.9")
    keys.add(key_of(scenario, 0))
    assert len(keys) == 4
    renamed = load_scenario(write_scenario(tmp_path), overrides=["name=other"])
    assert key_of(renamed, 0) in keys
