"""Processes: many runs on all cores of this machine; only plain data is exchanged."""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import connection
from operator import itemgetter
from typing import Any

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor

from simserve.allowed_modules import AllowedModules, allowed_modules, set_allowed_modules
from simserve.errors import SimserveError
from simserve.forks import Copy, can_fork
from simserve.interruptions import leave_interruptions_to_the_parent, uninterrupted

Task = tuple[Any, ...]
"""Plain data: the arguments of one run."""

Work = Callable[[Task], Any]
"""A module-level function of plain data. An exception ends all work, so it should return expected failures."""

IDLE_S = 60
"""Workers that are idle for this long exit."""

INTERRUPTIBLE_S = 0.1
"""A Ctrl-C is served this often while tasks run; inside the executor it could leave a lock or a semaphore behind."""

AHEAD = 2
"""Tasks submitted per process, so that none waits for the next."""

HAND_OVER_S = 1.0
"""Timeout for submitting tasks before they are canceled; it takes milliseconds."""

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
"""Variables that limit libraries to one thread per process, as there is a process per core."""

PLACE_BYTES = 4
"""Bytes of a task's place in a pipe."""


@dataclass(frozen=True)
class Lost:
    """A task without an answer: its process died, or could not take it."""

    reason: str


Answers = Generator[tuple[int, Any], None, None]
"""Pairs of a task's index and its answer, or Lost, as they finish. Closing it early cancels the others."""

Runner = Callable[[Work, Sequence[Task]], Answers]
"""An executor of tasks: `in_processes`, or a cluster's `run`."""

_limits: list[int] = []
"""Limits of the number of processes, the last one first."""


@contextmanager
def limited_to(jobs: int | None) -> Iterator[None]:
    """Use at most so many processes at once; None: one per core. Raises SimserveError."""
    if jobs is None:
        yield
        return
    if not 1 <= jobs <= cpu_count():
        rule = f"must be from 1 to the {cpu_count()} cores of this machine"
        raise SimserveError(f"--jobs: {rule}, got {jobs}; leave it out to use all cores")
    _limits.append(jobs)
    try:
        yield
    finally:
        _limits.pop()


def in_order(answers: Iterable[tuple[int, Any]]) -> list[Any]:
    """Return answers in the order of their tasks."""
    return [answer for _, answer in sorted(answers, key=itemgetter(0))]


def n_jobs() -> int:
    """Return how many processes may work at once."""
    return _limits[-1] if _limits else cpu_count()


def in_processes(work: Work, tasks: Sequence[Task]) -> Answers:
    """Run all tasks, one per core at a time; a single task, or on one core, in this process.

    When a process dies (usually killed for its memory), the tasks in flight are run again one by one. A task that kills
    a process twice is Lost.
    """
    if min(n_jobs(), len(tasks)) <= 1:
        yield from ((place, work(task)) for place, task in enumerate(tasks))
        return
    left = list(range(len(tasks)))
    while left:
        given: list[int] = []
        answered: set[int] = set()
        try:
            with closing(_concurrent(work, _handed_out(left, tasks, given))) as reader:
                for place, answer in reader:
                    answered.add(place)
                    yield place, answer
            return
        except BrokenProcessPool:
            suspects = [place for place in given if place not in answered]
        yield from ((place, _by_itself(work, tasks[place])) for place in suspects)
        left = [place for place in left if place not in answered and place not in suspects]


def _handed_out(places: Iterable[int], tasks: Sequence[Task], given: list[int]) -> Iterator[tuple[int, Task]]:
    """Yield the tasks one by one; `given` lists the indices handed out."""
    for place in places:
        given.append(place)
        yield place, tasks[place]


def _concurrent(work: Work, tasks: Iterable[tuple[int, Task]]) -> Answers:
    """Run tasks concurrently, one message each. Raises BrokenProcessPool where a process dies."""
    n, owner, left = n_jobs(), os.getpid(), iter(tasks)
    running: set[Future[tuple[int, Any]]] = set()
    with uninterrupted():
        executor = get_reusable_executor(
            n,
            timeout=IDLE_S,
            initializer=_begin,
            initargs=(allowed_modules(),),
            env={name: os.environ.get(name, "1") for name in ONE_THREAD},
        )
    try:
        while True:
            with uninterrupted():
                for place, task in islice(left, AHEAD * n - len(running)):
                    running.add(executor.submit(_placed, owner, work, place, task))
                done = wait(running, INTERRUPTIBLE_S, FIRST_COMPLETED).done
            if not running:
                return
            for future in done:
                running.remove(future)
                yield future.result()
    finally:
        if running:
            with uninterrupted():
                _cancel(executor, running)


def _begin(allowed: AllowedModules | None) -> None:
    """Prepare a worker: it imports what its parent may."""
    leave_interruptions_to_the_parent()
    set_allowed_modules(allowed)


def _cancel(executor: Any, running: Iterable["Future[Any]"]) -> None:
    """Cancel the tasks that still run. All tasks must be submitted first: the executor prints a stack trace for a task
    that is canceled while it is being submitted."""
    until_s = time.monotonic() + HAND_OVER_S
    while time.monotonic() < until_s and not all(future.running() or future.done() for future in running):
        time.sleep(0.001)
    executor.shutdown(kill_workers=True)


def _by_itself(work: Work, task: Task) -> Any:
    try:
        with closing(_concurrent(work, [(0, task)])) as reader:
            return next(reader)[1]
    except BrokenProcessPool:
        return Lost("its process was killed twice, most likely for lack of memory; run fewer requests")


def _placed(owner: int, work: Work, place: int, task: Task) -> tuple[int, Any]:
    """Run a task in another process."""
    if os.getppid() != owner:  # the parent is gone, so the answer would be lost
        os._exit(1)
    return place, work(task)


@contextmanager
def forked(work: Callable[[int], Any], n: int) -> Iterator[Answers]:
    """Begin work(0) to work(n - 1) on the other cores, in copies of this process; yields an iterator of the answers.

    The iterator does in this process what has not begun, then waits for the rest; a task is run again here if its
    process died. Without other cores, or where `can_fork` is false, all is done here. n is at most 16,000 (a pipe's
    buffer), and answers wait for this process to finish a task.
    """
    tasks, others = _queue(n), []
    try:
        if n > 1 and can_fork():
            others = [Copy.of(partial(_answer_all, work, tasks)) for _ in range(min(n_jobs() - 1, n))]
        yield _shared(work, n, tasks, others)
    finally:
        for each in others:
            each.end()
        os.close(tasks)


def _queue(n: int) -> int:
    """Return a pipe with the places of all tasks; a read of one is atomic, whoever reads."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(place.to_bytes(PLACE_BYTES) for place in range(n)))
    os.close(writer)
    return reader


def _next(tasks: int) -> int | None:
    place = os.read(tasks, PLACE_BYTES)
    return int.from_bytes(place) if place else None


def _shared(work: Callable[[int], Any], n: int, tasks: int, others: Sequence[Copy]) -> Answers:
    left = set(range(n))
    readers = [each.answers for each in others]
    place = _next(tasks)
    while readers or place is not None:
        if place is not None:
            left.remove(place)
            yield place, work(place)
            place = _next(tasks)
        if not readers:
            continue
        # Between two tasks, too: a copy with a long answer waits until it is read.
        ready: list[Any] = connection.wait(readers, None if place is None else 0)
        for reader in ready:
            try:
                of, answer = reader.recv()
            except EOFError:
                readers.remove(reader)
                continue
            left.remove(of)
            yield of, answer
    for place in sorted(left):
        yield place, work(place)


def _answer_all(work: Callable[[int], Any], tasks: int, answers: Any, owner: int) -> None:
    """Answer tasks in another process; what fails here is left to the parent, which says why."""
    while os.getppid() == owner and (place := _next(tasks)) is not None:
        answers.send((place, work(place)))
