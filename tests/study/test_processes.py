"""Runs side by side: every answer comes once, and one run that kills its process costs nobody else anything."""

import threading
import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from simserve.study import processes
from simserve.study.processes import Lost, _cancel, in_processes
from tests.study.sweep_work import die, die_once, echo, wait

pytestmark = pytest.mark.usefixtures("all_cores")


def test_every_task_is_answered_once_with_its_place() -> None:
    tasks = [(n,) for n in range(7)]
    assert sorted(in_processes(echo, tasks)) == [(n, 10 * n) for n in range(7)]


def test_one_task_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_concurrent", None)
    assert list(in_processes(echo, [(3,)])) == [(0, 30)]
    assert list(in_processes(echo, [])) == []


def test_a_task_that_kills_its_process_is_lost_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    result = dict(in_processes(die, [(n,) for n in range(9)]))
    lost = result.pop(4)
    assert isinstance(lost, Lost)
    assert "lack of memory" in lost.reason
    assert result == {n: 10 * n for n in range(9) if n != 4}


def test_a_task_whose_process_died_once_is_given_a_second_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    runs = tmp_path / "runs"
    runs.touch()
    result = dict(in_processes(die_once, [(n, str(runs)) for n in range(9)]))
    assert result == {n: 10 * n for n in range(9)}
    assert runs.read_text().split().count("4") == 2


def test_who_stops_early_waits_for_no_long_run_and_the_next_ones_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    started_s = time.monotonic()
    for _ in range(2):
        with closing(in_processes(wait, [(0,), (60,), (60,), (60,), (60,), (60,)])) as reader:
            assert next(reader) == (0, 0)
    assert time.monotonic() - started_s < 30
    assert sorted(in_processes(echo, [(n,) for n in range(7)])) == [(n, 10 * n) for n in range(7)]


def test_tasks_are_called_off_once_they_are_handed_over() -> None:
    """Before that, the executor's thread dies of a KeyError, and says so on stderr."""
    tasks: list[Future[int]] = [Future(), Future()]
    seen: list[list[bool]] = []

    class Executor:
        def shutdown(self, *, kill_workers: bool) -> None:
            assert kill_workers
            seen.append([task.running() for task in tasks])

    assert tasks[0].set_running_or_notify_cancel()
    thread = threading.Timer(0.1, tasks[1].set_running_or_notify_cancel)
    thread.start()
    _cancel(Executor(), tasks)
    thread.join()
    assert seen == [[True, True]]
