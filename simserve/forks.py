"""Forks: copies of this process, which see all its data and answer through a pipe."""

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from simserve.interruptions import leave_interruptions_to_the_parent, uninterrupted


def can_fork() -> bool:
    """Return whether a copy of this process is safe: Linux, and no other thread that could hold a lock."""
    return sys.platform == "linux" and threading.active_count() == 1


@dataclass(frozen=True)
class Copy:
    """A copy of this process, and where its answers arrive."""

    process: Any
    answers: Any

    @classmethod
    def of(cls, work: Callable[[Any, int], None]) -> "Copy":
        """Begin work(pipe for answers, this process's id) in a copy of this process; an exception ends the copy."""
        fork = get_context("fork")
        reader, writer = fork.Pipe(duplex=False)
        process = fork.Process(target=_run, args=(work, writer, os.getpid()), daemon=True)
        with uninterrupted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads of numpy, which survives a fork
            process.start()
        writer.close()
        return cls(process, reader)

    def end(self) -> None:
        """Kill the copy if it still runs."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.answers.close()


def _run(work: Callable[[Any, int], None], answers: Any, owner: int) -> None:
    leave_interruptions_to_the_parent()
    try:
        work(answers, owner)
    except Exception:
        os._exit(1)
