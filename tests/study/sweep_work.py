"""Work for the tests of runners; other processes find it by its module."""

import os
import signal
import time
from pathlib import Path
from typing import Any


def echo(task: tuple[Any, ...]) -> int:
    """Ten times the number."""
    return int(task[0]) * 10


def wait(task: tuple[Any, ...]) -> int:
    """So many seconds."""
    time.sleep(float(task[0]))
    return 0


def die(task: tuple[Any, ...]) -> int:
    """Task 4 takes its process with it, always."""
    time.sleep(0.02)
    if task[0] == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(task[0]) * 10


def die_once(task: tuple[Any, ...]) -> int:
    """Task 4 takes its process with it the first time, of which the file is the trace; a line for each run."""
    number, file = int(task[0]), Path(task[1])
    with file.open("a") as lines:
        lines.write(f"{number}\n")
    time.sleep(0.02)
    if number == 4 and file.read_text().split().count("4") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 10
