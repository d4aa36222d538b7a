"""Runs side by side: every answer comes once, and one run that kills its process costs nobody else anything."""

from pathlib import Path

import pytest

from simserve.study import processes
from simserve.study.processes import Lost, in_processes
from tests.study.sweep_work import die, die_once, echo


def test_every_task_is_answered_once_with_its_place() -> None:
    tasks = [(n,) for n in range(7)]
    assert sorted(in_processes(echo, tasks)) == [(n, 10 * n) for n in range(7)]


def test_one_task_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_side_by_side", None)
    assert list(in_processes(echo, [(3,)])) == [(0, 30)]
    assert list(in_processes(echo, [])) == []


def test_a_task_that_kills_its_process_is_lost_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    found = dict(in_processes(die, [(n,) for n in range(9)]))
    lost = found.pop(4)
    assert isinstance(lost, Lost)
    assert "more memory than there is" in lost.reason
    assert found == {n: 10 * n for n in range(9) if n != 4}


def test_a_task_whose_process_died_once_is_given_a_second_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    runs = tmp_path / "runs"
    runs.touch()
    found = dict(in_processes(die_once, [(n, str(runs)) for n in range(9)]))
    assert found == {n: 10 * n for n in range(9)}
    assert runs.read_text().split().count("4") == 2
