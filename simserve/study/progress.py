"""Progress: runs of a study that are done and expected, and the seconds left, for whoever shows it."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from simserve.simulation import OnProgress, Progress

RECENT = 20
"""Runs that ended last, by which the seconds left are estimated."""

T = TypeVar("T")


class StudyProgress:
    """Counts runs as they are expected and as they end, and tells it in a line."""

    def __init__(self, show: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._show, self._now_s = show, now_s
        self._n_done = self._n_expected = 0
        self._phase = ""
        self._ends_s = deque([now_s()], maxlen=RECENT + 1)

    def expect(self, n_runs: int) -> None:
        """Add runs to those that are expected: a search adds them as it goes."""
        self._n_expected += n_runs
        self._show(self.line())

    def end_run(self) -> None:
        """Count a run that ended."""
        self._n_done += 1
        self._ends_s.append(self._now_s())
        self._show(self.line())

    def enter(self, phase: str) -> None:
        """Name what is done next."""
        self._phase = phase
        self._show(self.line())

    def of_run(self, run: Progress) -> None:
        """Tell how far a single run is: share done, simulated time, speed and seconds left."""
        wall_s = self._now_s() - self._ends_s[0]
        texts = [f"{run.sim_s:,.1f} s simulated", f"{run.n_done / max(wall_s, 1e-9):,.0f} requests/s"]
        if run.n_total:
            done_frac = min(1.0, run.n_done / run.n_total)
            texts = [
                f"{done_frac:.0%}",
                *texts,
                f"{wall_s * (1 / done_frac - 1):,.0f} s left" if done_frac else "starting",
            ]
        self._show(", ".join(texts))

    def line(self) -> str:
        """Return `24 of 60 runs, 41 s left (1.25 times the load)`."""
        if not self._n_expected:
            return self._phase
        text, n_left = f"{self._n_done:,} of {self._n_expected:,} runs", self._n_expected - self._n_done
        if self._n_done and n_left:
            each_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
            text += f", {n_left * each_s:,.0f} s left"
        return f"{text} ({self._phase})" if self._phase else text


_shown: ContextVar[StudyProgress | None] = ContextVar("shown", default=None)


@contextmanager
def shown_by(progress: StudyProgress) -> Iterator[None]:
    """Count the runs of the block, of whatever study, there."""
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)


def counted(answers: Iterable[T], n_runs: int) -> Iterator[T]:
    """Yield answers of runs as they end, and count them."""
    progress = _shown.get()
    if progress is None:
        yield from answers
        return
    progress.expect(n_runs)
    for answer in answers:
        progress.end_run()
        yield answer


def enter(phase: str) -> None:
    """Name what is done next."""
    if (progress := _shown.get()) is not None:
        progress.enter(phase)


def of_run() -> OnProgress | None:
    """Return what tells how far a single run is; None where nothing shows it."""
    progress = _shown.get()
    return None if progress is None else progress.of_run
