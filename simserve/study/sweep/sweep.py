"""Sweep: a scenario at many points with the same seeds, and more seeds where the SLO is on the edge.

Runs use all cores or a cluster; finished runs are kept.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property

from simserve.errors import SimserveError
from simserve.metrics.answers.sweep_runs import SweepRun
from simserve.study.fleet import is_deterministic
from simserve.study.processes import Lost, Runner, Task
from simserve.study.progress import counted
from simserve.study.sweep.point_runs import PointRuns
from simserve.study.sweep.question import SweepQuestion
from simserve.study.sweep.run import COSTS, failed_row, run_row, task_of
from simserve.tables.journal import Journal

EDGE_SEEDS = 8
"""Seeds of every point on the edge."""

NEAR_MISS = 5.0
"""Multiple of the allowed misses up to which a point may miss the SLO by chance."""

MOST_REASONS = 5


@dataclass(frozen=True)
class Sweep:
    """Question and runs of a sweep."""

    question: SweepQuestion
    rows: tuple[tuple[SweepRun, ...], ...]
    """Runs of each point with the predicted costs, one per seed; shared seeds come first."""
    known: Mapping[str, SweepRun] = field(default_factory=dict)
    """All rows by key, those of draws of costs too."""

    @cached_property
    def points(self) -> list[PointRuns]:
        """Return each point with its runs."""
        question, points = self.question, list[PointRuns]()
        for place, rows in enumerate(self.rows):
            keys, point = [question.key(place, at) for at in range(len(rows))], question.points[place]
            shared = question.n_seeds, question.goal_frac, question.effort
            points.append(PointRuns(point, rows, *shared, keys, self.known))
        for place in sorted(question.smaller, key=lambda place: len(question.smaller[place])):
            smaller = [points[other] for other in question.smaller[place]]
            points[place] = replace(points[place], smaller=smaller)
        return points


def run_sweep(question: SweepQuestion, journal: Journal[SweepRun], run: Runner) -> Sweep:
    """Run in rounds what the journal lacks, and add each run once finished. Raise OutputError for a full disk,
    SimserveError for a lost cluster."""
    failed: dict[str, SweepRun] = {}
    wanted = dict.fromkeys(range(len(question.points)), question.n_seeds)
    while True:
        run_tasks(journal, run, _tasks(question, wanted), failed)
        known = journal.rows | failed
        result = Sweep(question, tuple(_rows(question, place, n, known) for place, n in wanted.items()), known)
        more = added_seeds(result.points)
        of_costs = {} if more else {key: task for each in result.points for key, task in each.next_tasks.items()}
        if not more and not of_costs:
            return result
        run_tasks(journal, run, of_costs, failed)
        wanted |= more


def run_tasks(journal: Journal[SweepRun], run: Runner, wanted: Mapping[str, Task], failed: dict[str, SweepRun]) -> None:
    """Run the tasks that have not run, by key; failures that are not final go into `failed`."""
    tasks = [(key, wanted[key]) for key in wanted if key not in journal.rows and key not in failed]
    with closing(run(run_row, [task for _, task in tasks])) as reader:
        for place, answer in counted(reader, len(tasks)):
            key, task = tasks[place]
            row = failed_row(task[1], answer.reason, is_final=False) if isinstance(answer, Lost) else answer
            if row.is_final:
                journal.add(key, row)
            else:
                failed[key] = row


def added_seeds(points: Sequence[PointRuns]) -> dict[int, int]:
    """Return the points that more seeds may decide, by place, and how many seeds each is to have; empty: none.

    First every edge has EDGE_SEEDS, then each point that may be the cheapest to meet the SLO. Once the costs of those
    are drawn, edges that are cheaper than any point that surely meets it have as many as the next look of `run`, from
    the cheapest on, unless cost error keeps them there.
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
    edges = [(place, each) for place, each in near if _is_open(each) and each.usd_per_hour < limit]
    cheapest = min((each.usd_per_hour for _, each in edges), default=math.inf)
    return {place: _next_look(each) for place, each in edges if each.usd_per_hour == cheapest}


def _next_look(each: PointRuns) -> int:
    """Return the number of seeds of the next look at a point; as many as it has after the last."""
    return next((look for look in each.effort.looks() if look > len(each.rows)), len(each.rows))


def _may_change(each: PointRuns) -> bool:
    """Return whether further seeds may change a decision."""
    scenario = each.point.scenario
    if not each.is_ranked or each.answer is None or scenario is None or _next_look(each) == len(each.rows):
        return False
    return (each.decision == "edge" or _is_near(each)) and not is_deterministic(scenario)


def _is_open(each: PointRuns) -> bool:
    """Return whether a point is on the edge with the costs known, by noise or too short runs."""
    return each.decision == "edge" and not each.cost_tasks and (each.decided is None or each.decided.edge_by != "cost")


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
    n_rows = Counter(key.partition(COSTS)[0] for key in journal.rows)
    left = n_rows.keys() - question.keys
    for place in range(len(question.points)):
        for start, end in itertools.pairwise((question.n_seeds, *question.effort.looks())):
            added = {question.key(place, at) for at in range(start, end)} if left else set()
            if end > question.n_seeds and not added & left:
                break  # seeds are added in order
            left = left - added
    return sum(n_rows[key] for key in left)


def _tasks(question: SweepQuestion, wanted: Mapping[int, int]) -> dict[str, Task]:
    """Return the tasks by key: identical points run once; seeds vary slowest, so that all points advance."""
    result = {}
    for at in range(max(wanted.values())):
        for place, n in wanted.items():
            key, scenario = question.key(place, at) if at < n else None, question.points[place].scenario
            if scenario is not None and key is not None:
                result[key] = task_of(scenario, question.first.seed + at)
    return result


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
