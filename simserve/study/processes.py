"""Processes: many runs on all cores of this machine; only plain data goes in and comes out."""

import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor

Task = tuple[Any, ...]
"""Plain data: what one run needs."""

Work = Callable[[Task], Any]
"""A function of a module, plain data in and out. What it raises ends all work, so it had better return its failures."""

IDLE_S = 60
"""Workers that have nothing to do for so long end themselves."""

AHEAD = 2
"""Tasks handed out for each process, so that none waits for the next."""

HAND_OVER_S = 1.0
"""The longest that it is waited for tasks to be handed over before they are called off; it takes milliseconds."""

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
"""By these, libraries keep to one thread a process, for there is a process a core."""


@dataclass(frozen=True)
class Lost:
    """A task of which nothing can come: its process died of it, or would not take it."""

    reason: str


Answers = Generator[tuple[int, Any], None, None]
"""The place of a task and what came of it, or Lost; as they finish. Closed early, the others are called off."""

Runner = Callable[[Work, Sequence[Task]], Answers]
"""Where work is done: `in_processes`, or a cluster's `run`."""


def in_processes(work: Work, tasks: Sequence[Task]) -> Answers:
    """All tasks, as many at once as there are cores; one alone, or on one core, in this process.

    When a process dies (killed for its memory, mostly), what was in its hands or its neighbors' is run again by
    itself, and whatever kills a process twice is Lost.
    """
    if min(cpu_count(), len(tasks)) <= 1:
        yield from ((place, work(task)) for place, task in enumerate(tasks))
        return
    left = list(range(len(tasks)))
    while left:
        given: list[int] = []
        answered: set[int] = set()
        try:
            with closing(_side_by_side(work, _text(left, tasks, given))) as reader:
                for place, answer in reader:
                    answered.add(place)
                    yield place, answer
            return
        except BrokenProcessPool:
            suspects = [place for place in given if place not in answered]
        yield from ((place, _by_itself(work, tasks[place])) for place in suspects)
        left = [place for place in left if place not in answered and place not in suspects]


def _text(places: Iterable[int], tasks: Sequence[Task], given: list[int]) -> Iterator[tuple[int, Task]]:
    """The tasks one by one; which were handed out stands in `given`."""
    for place in places:
        given.append(place)
        yield place, tasks[place]


def _side_by_side(work: Work, tasks: Iterable[tuple[int, Task]]) -> Answers:
    """Raises BrokenProcessPool where a process dies. One task is one message: what is finished is known at once."""
    n, owner, left = cpu_count(), os.getpid(), iter(tasks)
    executor = get_reusable_executor(
        n,
        timeout=IDLE_S,
        initializer=_leave_interruptions_to_the_parent,
        env={name: os.environ.get(name, "1") for name in ONE_THREAD},
    )
    running: set[Future[tuple[int, Any]]] = set()
    try:
        while True:
            for place, task in islice(left, AHEAD * n - len(running)):
                running.add(executor.submit(_placed, owner, work, place, task))
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(future)
                yield future.result()
    finally:
        if running:
            _call_off(executor, running)


def _call_off(executor: Any, running: Iterable["Future[Any]"]) -> None:
    """End what still runs, for nobody waits for it.

    Not before all of it is handed over: the executor stumbles over a task that is called off in its own hands, and
    prints a stack trace.
    """
    until_s = time.monotonic() + HAND_OVER_S
    while time.monotonic() < until_s and not all(future.running() or future.done() for future in running):
        time.sleep(0.001)
    executor.shutdown(kill_workers=True)


def _by_itself(work: Work, task: Task) -> Any:
    try:
        with closing(_side_by_side(work, [(0, task)])) as reader:
            return next(reader)[1]
    except BrokenProcessPool:
        return Lost(
            "its process was killed, twice: it needs more memory than there is, most likely; run fewer requests"
        )


def _placed(owner: int, work: Work, place: int, task: Task) -> tuple[int, Any]:
    """In another process."""
    if os.getppid() != owner:  # who asked is gone, so nobody would hear of it, and who asks next does it again
        os._exit(1)
    return place, work(task)


def _leave_interruptions_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
