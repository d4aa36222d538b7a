"""Sweep: a scenario at many points with the same seeds, and more seeds where the SLO is on the edge.

Runs use all cores or a cluster; finished runs are kept.
"""

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

from simserve.errors import SimserveError
from simserve.metrics.answers.sweep_runs import SweepRun
from simserve.metrics.goal import GOAL_FRAC, LOOKS
from simserve.scenario import Scenario
from simserve.scenario.template import Override, Template
from simserve.study.deterministic_load import check_not_deterministic, is_deterministic
from simserve.study.processes import Lost, Runner, Task
from simserve.study.run_seeds import OnRun
from simserve.study.slo_answer import more_seeds
from simserve.study.sweep.point_runs import PointRuns
from simserve.study.sweep.points import SweepAxis, SweepPoint, grid, resolved
from simserve.study.sweep.run import failed_row, key_of, run_row, task_of
from simserve.tables.journal import Journal

EDGE_SEEDS = 8
"""Seeds of every point on the edge."""

NEAR_MISS = 5.0
"""Multiple of the allowed misses up to which a point may miss the SLO by chance."""

MOST_REASONS = 5


@dataclass(frozen=True)
class SweepQuestion:
    """Points, seeds and goal of a sweep; at least one point is valid."""

    points: tuple[SweepPoint, ...]
    n_seeds: int
    """Seeds shared by all points."""
    goal_frac: float = GOAL_FRAC

    @property
    def first(self) -> Scenario:
        """Return the scenario of the first valid point."""
        return next(point.scenario for point in self.points if point.scenario is not None)

    @property
    def seeds(self) -> range:
        """Return the seeds that all points share."""
        return range(self.first.seed, self.first.seed + self.n_seeds)

    def key(self, place: int, at: int) -> str | None:
        """Return the key of a run by point and seed index; None for conflicting values."""
        scenario = self.points[place].scenario
        if scenario is None:
            return None
        if (place, at) not in self._known:
            self._known[place, at] = key_of(scenario, self.first.seed + at)
        return self._known[place, at]

    @cached_property
    def _known(self) -> dict[tuple[int, int], str]:
        """Return the cache of keys, as each takes a digest."""
        return {}

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the keys of runs with shared seeds; identical points count once."""
        every = (self.key(place, at) for place in range(len(self.points)) for at in range(self.n_seeds))
        return frozenset(key for key in every if key is not None)


@dataclass(frozen=True)
class Sweep:
    """Question and runs of a sweep."""

    question: SweepQuestion
    rows: tuple[tuple[SweepRun, ...], ...]
    """Runs of each point, one per seed; shared seeds come first."""

    @cached_property
    def points(self) -> list[PointRuns]:
        """Return each point with its runs."""
        pairs = zip(self.question.points, self.rows, strict=True)
        return [PointRuns(point, rows, self.question.n_seeds, self.question.goal_frac) for point, rows in pairs]


def sweep_question(
    template: Template,
    axes: Sequence[SweepAxis],
    listed: Sequence[tuple[Override, ...]],
    n_seeds: int,
    goal_frac: float,
) -> SweepQuestion:
    """Return the question about each combination. Raises SimserveError before anything runs."""
    question = SweepQuestion(resolved(template, grid(axes, listed, n_seeds)), n_seeds, goal_frac)
    check_seeds_differ(question)
    return question


def check_seeds_differ(question: SweepQuestion) -> None:
    """Raise SimserveError for several seeds of a deterministic load."""
    for point in question.points if question.n_seeds > 1 else ():
        if point.scenario is not None:
            check_not_deterministic(point.scenario, "--replications", question.n_seeds)


def run_sweep(question: SweepQuestion, journal: Journal[SweepRun], run: Runner, progress: OnRun | None = None) -> Sweep:
    """Run in rounds what the journal lacks, and add each run once finished.

    Raise OutputError for a full disk, SimserveError for a lost cluster.
    """
    failed: dict[str, SweepRun] = {}
    rounds = _Rounds(question, journal, run, progress)
    wanted = dict.fromkeys(range(len(question.points)), question.n_seeds)
    while True:
        rounds.run(wanted, failed)
        result = Sweep(question, tuple(_rows(question, place, n, journal.rows | failed) for place, n in wanted.items()))
        more = added_seeds(result.points)
        if not more:
            return result
        wanted |= more


class _Rounds:
    """Runs the missing tasks, and counts them."""

    def __init__(
        self, question: SweepQuestion, journal: Journal[SweepRun], run: Runner, progress: OnRun | None
    ) -> None:
        self._question, self._journal, self._run, self._progress = question, journal, run, progress
        self._known: set[str] = set()
        self._n_done = 0

    def run(self, wanted: Mapping[int, int], failed: dict[str, SweepRun]) -> None:
        """Run that many seeds of each point; failures that are not final go into `failed`."""
        tasks = _tasks(self._question, wanted, self._journal.rows.keys() | failed.keys())
        keys = {self._question.key(place, at) for place, n in wanted.items() for at in range(n)} - {None}
        self._n_done += len(keys - self._known) - len(tasks)
        self._known |= {key for key in keys if key is not None}
        self._report()
        with closing(self._run(run_row, [task for _, task in tasks])) as reader:
            for place, answer in reader:
                key, task = tasks[place]
                row = failed_row(task[1], answer.reason, is_final=False) if isinstance(answer, Lost) else answer
                if row.is_final:
                    self._journal.add(key, row)
                else:
                    failed[key] = row
                self._n_done += 1
                self._report()

    def _report(self) -> None:
        if self._progress:
            self._progress(self._n_done, len(self._known))


def added_seeds(points: Sequence[PointRuns]) -> dict[int, int]:
    """Return the points that more seeds may decide, by place, and how many seeds each is to have; empty: none.

    First every edge has EDGE_SEEDS, then each point that may be the cheapest to meet the SLO. Then the edges that are
    cheaper than any point that surely meets it have twice as many each time, from the cheapest on.
    """
    judged = [(place, each) for place, each in enumerate(points) if _may_change(each)]
    first = {place: EDGE_SEEDS for place, each in judged if each.decision == "edge" and len(each.rows) < EDGE_SEEDS}
    if first:
        return first
    sure = [each for each in points if each.is_ranked and each.decision == "met"]
    limit = min((each.usd_per_hour for each in sure), default=math.inf)
    near = [(place, each) for place, each in judged if each.usd_per_hour <= limit]
    second = {place: EDGE_SEEDS for place, each in near if len(each.rows) < EDGE_SEEDS and _is_near(each)}
    if second:
        return second
    edges = [(place, each) for place, each in near if each.decision == "edge" and each.usd_per_hour < limit]
    cheapest = min((each.usd_per_hour for _, each in edges), default=math.inf)
    return {place: more_seeds(len(each.rows)) for place, each in edges if each.usd_per_hour == cheapest}


def _may_change(each: PointRuns) -> bool:
    """Return whether further seeds may change a decision."""
    scenario = each.point.scenario
    if not each.is_ranked or each.answer is None or scenario is None or more_seeds(len(each.rows)) == len(each.rows):
        return False
    return (each.decision == "edge" or _is_near(each)) and not is_deterministic(scenario)


def _is_near(each: PointRuns) -> bool:
    """Return whether a point meets the SLO, or may miss it by chance alone."""
    assert each.answer is not None, "it is judged"
    return 1 - each.answer.attained_frac <= NEAR_MISS * (1 - each.goal_frac)


def n_runs(question: SweepQuestion) -> int:
    """Return how many runs with shared seeds there are to do; identical points count once."""
    return len(question.keys)


def n_left(question: SweepQuestion, journal: Journal[SweepRun]) -> int:
    """Return how many of those the journal lacks."""
    return len(question.keys - journal.rows.keys())


def n_foreign(question: SweepQuestion, journal: Journal[SweepRun]) -> int:
    """Return how many finished runs in the journal belong to another question."""
    left = journal.rows.keys() - question.keys
    for place in range(len(question.points)):
        for start, end in itertools.pairwise((question.n_seeds, *LOOKS)):
            added = {question.key(place, at) for at in range(start, end)} if left else set()
            if end > question.n_seeds and not added & left:
                break  # seeds are added in order
            left = left - added
    return len(left)


def _tasks(question: SweepQuestion, wanted: Mapping[int, int], known: Set[str]) -> list[tuple[str, Task]]:
    """Return the tasks by key: identical points run once; seeds vary slowest, so that all points advance."""
    result = {}
    for at in range(max(wanted.values())):
        for place, n in wanted.items():
            key, scenario = question.key(place, at) if at < n else None, question.points[place].scenario
            if scenario is not None and key is not None and key not in known:
                result[key] = task_of(scenario, question.first.seed + at)
    return list(result.items())


def _rows(question: SweepQuestion, place: int, n: int, by_key: Mapping[str, SweepRun]) -> tuple[SweepRun, ...]:
    reason, seed = question.points[place].reason or "", question.first.seed
    keys = [question.key(place, at) for at in range(n)]
    return tuple(failed_row(seed + at, reason) if key is None else by_key[key] for at, key in enumerate(keys))


def check_any(sweep: Sweep) -> None:
    """Raise SimserveError if all runs failed."""
    every = [row for rows in sweep.rows for row in rows]
    if all(row.status == "failed" for row in every):
        reasons = list(dict.fromkeys(row.reason for row in every if row.reason))
        more = [f"and {len(reasons) - MOST_REASONS} more reasons"] if len(reasons) > MOST_REASONS else []
        raise SimserveError("\n".join([f"all {len(every)} runs failed", *reasons[:MOST_REASONS], *more]))
