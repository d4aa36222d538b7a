"""Runs side by side: every answer comes once, and one run that kills its process costs nobody else anything."""

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from simserve.forks import can_fork
from simserve.study import processes
from simserve.study.processes import Lost, _cancel, forked, in_processes
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


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give three cores, whatever the machine and the threads of the test runner."""
    monkeypatch.setattr(processes, "cpu_count", lambda: 3)
    monkeypatch.setattr(processes, "can_fork", lambda: True)


@pytest.mark.usefixtures("three_cores")
def test_copies_of_this_process_answer_while_it_does_something_else() -> None:
    owner = os.getpid()
    with forked(lambda place: (10 * place, os.getpid()), 9) as answers:
        time.sleep(0.5)  # the copies need none of it
        result = dict(answers)
    assert {place: number for place, (number, _) in result.items()} == {place: 10 * place for place in range(9)}
    assert owner not in [process for _, process in result.values()]


def _slowly(place: int) -> int:
    time.sleep(0.05)
    return os.getpid()


@pytest.mark.usefixtures("three_cores")
def test_this_process_works_too_once_it_asks() -> None:
    with forked(_slowly, 12) as answers:
        result = dict(answers)
    assert os.getpid() in result.values()
    assert sorted(result) == list(range(12))


@pytest.mark.usefixtures("three_cores")
def test_copies_go_on_while_this_process_works_though_their_answers_fill_a_pipe() -> None:
    with forked(lambda place: (_slowly(place), bytes(1 << 20)), 24) as answers:
        processes = Counter(process for _, (process, _) in answers)
    del processes[os.getpid()]
    assert len(processes) == 2
    assert min(processes.values()) > 1


@pytest.mark.usefixtures("three_cores")
def test_what_a_dead_or_failing_copy_leaves_is_done_here(capfd: pytest.CaptureFixture[str]) -> None:
    owner = os.getpid()

    def work(place: int) -> int:
        if os.getpid() != owner and place == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.getpid() != owner and place == 2:
            raise ValueError("only there")
        return 10 * place

    with forked(work, 6) as answers:
        time.sleep(0.5)
        assert dict(answers) == {place: 10 * place for place in range(6)}
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("three_cores")
def test_what_fails_here_too_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError), forked(lambda place: 1 // (place - 2), 4) as answers:
        list(answers)


@pytest.mark.usefixtures("three_cores")
def test_copies_end_with_what_they_were_begun_for() -> None:
    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt), forked(lambda place: time.sleep(60), 4):
        raise KeyboardInterrupt
    assert time.monotonic() - started_s < 30


def test_without_other_cores_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 1)
    with forked(lambda place: (place, os.getpid()), 3) as answers:
        assert list(answers) == [(place, (place, os.getpid())) for place in range(3)]
    with forked(lambda place: place, 0) as answers:
        assert list(answers) == []


def test_no_copy_is_made_where_a_thread_may_hold_a_lock() -> None:
    is_done = threading.Event()
    thread = threading.Thread(target=is_done.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        is_done.set()
        thread.join()
