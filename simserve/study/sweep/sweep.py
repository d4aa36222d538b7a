"""Sweep: a scenario at many points, each with the same seeds, on all cores or a cluster; what is finished is kept."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

from simserve.errors import SimserveError
from simserve.metrics.goal import GOAL_FRAC
from simserve.scenario import Scenario
from simserve.study.deterministic_load import check_not_deterministic
from simserve.study.processes import Lost, Runner, Task
from simserve.study.sweep.journal import Journal, key_of
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.run import Row, failed_row, run_row, task_of

MOST_REASONS = 5

OnProgress = Callable[[int, int], None]
"""Called with the runs that are finished, and how many there are."""


@dataclass(frozen=True)
class SweepQuestion:
    """What is asked. At least one point can be run."""

    points: tuple[SweepPoint, ...]
    n_seeds: int
    goal_frac: float = GOAL_FRAC

    @property
    def first(self) -> Scenario:
        """That of the first point that has one: what all have in common is in it."""
        return next(point.scenario for point in self.points if point.scenario is not None)

    @property
    def seeds(self) -> range:
        """Of every point, so that luck does not tell them apart."""
        return range(self.first.seed, self.first.seed + self.n_seeds)

    @cached_property
    def keys(self) -> tuple[tuple[str | None, ...], ...]:
        """What each run is known by, `(n_points, n_seeds)`; None where values do not go together."""
        return tuple(
            tuple(None if point.scenario is None else key_of(point.scenario, seed) for seed in self.seeds)
            for point in self.points
        )


@dataclass(frozen=True)
class Sweep:
    """The answer."""

    question: SweepQuestion
    rows: tuple[tuple[Row, ...], ...]
    """Of each point, one a seed."""


def check_seeds_differ(question: SweepQuestion) -> None:
    """Raises SimserveError where many runs of a point are asked for that would all be alike."""
    for point in question.points if question.n_seeds > 1 else ():
        if point.scenario is not None:
            check_not_deterministic(point.scenario, "--replications", question.n_seeds)


def run_sweep(question: SweepQuestion, journal: Journal, run: Runner, progress: OnProgress | None = None) -> Sweep:
    """Run what the journal does not have yet; it has each run as soon as it is finished.

    Raises OutputError where the disk does not take more, SimserveError where a cluster goes away.
    """
    tasks = _tasks(question, journal)
    failed: dict[str, Row] = {}
    n_all, n_done = n_runs(question), n_runs(question) - len(tasks)
    if progress:
        progress(n_done, n_all)
    with closing(run(run_row, [task for _, task in tasks])) as reader:
        for place, answer in reader:
            key, task = tasks[place]
            row = failed_row(task[1], answer.reason, is_final=False) if isinstance(answer, Lost) else answer
            if row["is_final"]:
                journal.add(key, row)
            else:
                failed[key] = row
            n_done += 1
            if progress:
                progress(n_done, n_all)
    by_key = journal.rows | failed
    return Sweep(question, tuple(_rows(question, place, by_key) for place in range(len(question.points))))


def n_runs(question: SweepQuestion) -> int:
    """All runs there are to do; points that come to the same are one."""
    return len(_keys(question))


def n_left(question: SweepQuestion, journal: Journal) -> int:
    """Those that the journal does not have yet."""
    return len(_keys(question) - journal.rows.keys())


def n_foreign(question: SweepQuestion, journal: Journal) -> int:
    """Finished runs in the journal that the question has no use for."""
    return len(journal.rows.keys() - _keys(question))


def _keys(question: SweepQuestion) -> set[str]:
    return {key for keys in question.keys for key in keys if key is not None}


def _tasks(question: SweepQuestion, journal: Journal) -> list[tuple[str, Task]]:
    """What is to be run, by key: points that come to the same are run once. Seeds first, so all points go forward."""
    result = {}
    for at, seed in enumerate(question.seeds):
        for point, keys in zip(question.points, question.keys, strict=True):
            key = keys[at]
            if point.scenario is not None and key is not None and key not in journal.rows:
                result[key] = task_of(point.scenario, seed)
    return list(result.items())


def _rows(question: SweepQuestion, place: int, by_key: Mapping[str, Row]) -> tuple[Row, ...]:
    point, keys = question.points[place], question.keys[place]
    return tuple(
        failed_row(seed, point.reason or "") if key is None else by_key[key]
        for key, seed in zip(keys, question.seeds, strict=True)
    )


def check_any(sweep: Sweep) -> None:
    """Raises SimserveError where no run came to anything: then there is nothing to compare."""
    every = [row for rows in sweep.rows for row in rows]
    if all(row["status"] == "failed" for row in every):
        reasons = list(dict.fromkeys(str(row["reason"]) for row in every))
        more = [f"and {len(reasons) - MOST_REASONS} more reasons"] if len(reasons) > MOST_REASONS else []
        raise SimserveError("\n".join([f"all {len(every)} runs failed", *reasons[:MOST_REASONS], *more]))
