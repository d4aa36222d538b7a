"""Runs commands in processes of their own, with the imports of one, and kills them: after a time, or at a change.

A change is what alters a folder: a file that is opened to be written, moved or removed, or two that are exchanged.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from simserve.cli.main import execute

ALTER = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "ctypes.dlsym"}
"""Audit events of a change; ctypes looks up renameat2 where two folders are exchanged."""

Reply = list[Any]
"""Exit code, or None where the command was killed; the seconds that it ran; its changes, where it ended."""


class Changes:
    """Counts changes, and kills the process group before one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.n = 0
        self._kill_at = kill_at

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event."""
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ALTER:
            if self.n == self._kill_at:
                os.killpg(0, signal.SIGKILL)
            self.n += 1


def command(folder: str, arguments: list[str], kill_at: int | None, reply: int) -> None:
    """Run a command in this process, in a folder, with wall times of 0, so that the same command writes the same."""
    os.setpgid(0, 0)
    os.chdir(folder)
    os.dup2(os.open("../output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    time.perf_counter = lambda: 0.0
    changes = Changes(kill_at)
    sys.addaudithook(changes)
    exit_code = execute(arguments)
    os.write(reply, json.dumps([exit_code, changes.n]).encode())
    os._exit(0)


def run(folder: str, arguments: list[str], kill_after_s: float | None, kill_at: int | None) -> Reply:
    """Run a command in a process of its own, and kill it if it runs for too long."""
    reader, writer = os.pipe()
    started_s = time.monotonic()
    child = os.fork()
    if not child:
        command(folder, arguments, kill_at, writer)
    os.close(writer)
    with suppress(OSError):  # it has ended
        os.setpgid(child, child)  # here too: a kill may come before the child has done it
    ended = 0
    while not ended and (kill_after_s is None or time.monotonic() - started_s < kill_after_s):
        time.sleep(0.0005)
        ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        text = file.read()
    exit_code, n_changes = json.loads(text) if text else (None, None)
    return [exit_code, time.monotonic() - started_s, n_changes]


if __name__ == "__main__":
    import pandas  # noqa: F401  once for all
    import plotly  # noqa: F401
    import xlsxwriter  # noqa: F401

    import simserve.report.page
    import simserve.report.sweep.page
    import simserve.simulation
    import simserve.study.sweep.facts
    import simserve.tables.parquet  # noqa: F401

    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(*json.loads(line))) + "\n")
        sys.stdout.flush()
