"""Ctrl-C waits for the end of a block that must be whole, and ends no process before it can ignore it."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from joblib.externals.loky import get_reusable_executor

from simserve.interruptions import uninterrupted
from simserve.study import processes
from simserve.study.processes import in_processes
from tests.study.sweep_work import echo


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_ctrl_c_waits_for_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        interrupt()
        done.append("whole")
    assert done == ["whole"]


def test_the_next_ctrl_c_is_served_at_once() -> None:
    with uninterrupted():
        pass
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, set()) & {signal.SIGINT}
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_process_that_begins_in_the_block_is_deaf_from_birth() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(0.2)"]
    with uninterrupted(), subprocess.Popen(sleep) as process:
        os.kill(process.pid, signal.SIGINT)  # as a rule before Python has begun
        assert process.wait(timeout=30) == 0


@pytest.mark.usefixtures("all_cores")
def test_a_ctrl_c_in_the_executor_waits_until_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its middle it could leave a lock held, or a semaphore that nobody removes."""
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    done: list[str] = []

    class Executor:
        def __init__(self, executor: Any) -> None:
            self.executor = executor

        def submit(self, *task: object) -> object:
            interrupt()
            done.append("submit")
            return self.executor.submit(*task)

        def shutdown(self, **how: object) -> None:
            interrupt()
            self.executor.shutdown(**how)
            done.append("shutdown")

    monkeypatch.setattr(
        processes, "get_reusable_executor", lambda *n, **how: Executor(get_reusable_executor(*n, **how))
    )
    with pytest.raises(KeyboardInterrupt):
        list(in_processes(echo, [(n,) for n in range(7)]))
    assert done == ["submit"] * processes.AHEAD * 2 + ["shutdown"]
