"""Processes: many runs on all cores of this machine; only plain data goes in and comes out."""

import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from joblib import Parallel, cpu_count, delayed, parallel_config

Task = tuple[Any, ...]
"""Plain data: what one run needs."""

Work = Callable[[Task], Any]
"""A function of a module, plain data in and out. What it raises ends all work, so it had better return its failures."""

IDLE_S = 60
"""Workers that have nothing to do for so long end themselves."""


@dataclass(frozen=True)
class Lost:
    """A task of which nothing can come: its process died of it, or would not take it."""

    reason: str


Answers = Iterator[tuple[int, Any]]
"""The place of a task and what came of it, or Lost; as they finish."""

Runner = Callable[[Work, Sequence[Task]], Answers]
"""Where work is done: `in_processes`, or a cluster's `run`."""


def in_processes(work: Work, tasks: Sequence[Task]) -> Answers:
    """All tasks, as many at once as there are cores; one alone, or on one core, in this process.

    When a process dies (killed for its memory, mostly), what was in its hands or its neighbours' is run again by
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
            for place, answer in _side_by_side(work, _told(left, tasks, given)):
                answered.add(place)
                yield place, answer
            return
        except BrokenProcessPool:
            suspects = [place for place in given if place not in answered]
        yield from ((place, _by_itself(work, tasks[place])) for place in suspects)
        left = [place for place in left if place not in answered and place not in suspects]


def _told(places: Iterable[int], tasks: Sequence[Task], given: list[int]) -> Iterator[tuple[int, Task]]:
    """The tasks one by one; which were handed out stands in `given`."""
    for place in places:
        given.append(place)
        yield place, tasks[place]


def _side_by_side(work: Work, tasks: Iterable[tuple[int, Task]]) -> Answers:
    """Raises BrokenProcessPool where a process dies. One task is one message: what is finished is known at once."""
    with parallel_config(backend="loky", initializer=_leave_interruptions_to_the_parent, idle_worker_timeout=IDLE_S):
        parallel = Parallel(n_jobs=cpu_count(), return_as="generator_unordered", batch_size=1)
    owner = os.getpid()
    with warnings.catch_warnings():  # who stops early knows what is lost
        warnings.filterwarnings("ignore", ".*adjusting the input task iterator", UserWarning)
        yield from parallel(delayed(_placed)(owner, work, place, task) for place, task in tasks)


def _by_itself(work: Work, task: Task) -> Any:
    try:
        return next(_side_by_side(work, [(0, task)]))[1]
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
