"""Answer: the decision about the SLO, with the attainment and the interval that it rests on."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from simserve.metrics.answers.struct import Figures, Struct
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC, wilson
from simserve.metrics.summary_schema import Count, Queue, Ratio, Share, Signed, Size

Basis = Literal["run", "replays", "replications"]
Attained = Literal["met", "edge", "missed"]


class AnswerJson(Figures):
    """The decision about the SLO as earlier versions said it, by the attainment."""

    decision: Attained
    """`met` where `decision.word` is `meets`, `missed` where it is `misses` or `saturated`, else `edge`."""
    goal_frac: Share
    """[share] Requests that must meet every limit."""
    attained_frac: Share
    """[share] Requests that do, at the nominal load if `load_off_frac` is 0."""
    low_frac: Share | None
    """[share] Low end of its interval; null if it is unknown."""
    high_frac: Share | None
    """[share] High end of its interval; null if it is unknown."""
    confidence: Share
    """[share] Confidence of the interval: 0.95."""
    n_runs: Count
    """Runs behind it."""
    n_requests: Count
    """Requests of these."""
    basis: Basis
    """`run`: this run alone; `replications`: several seeds, with predicted costs; `replays`: of earlier versions."""
    slo_class: str | None
    """The class with the lowest attainment; null without classes."""
    load_off_frac: Signed
    """[share] How far the load of these figures is off the nominal load; null without a nominal load."""
    queue: Queue | None
    """State of the queue in more than half of the runs, or worse."""
    is_far_below: bool
    """Whether no request missed, and none came within half of a limit."""
    by_slo: dict[str, Share]
    """[share] Requests that meet each limit, mean over the runs."""


CONFIDENCE = 0.95
Z_95 = 1.959964
"""Two-sided 95% quantile of the normal distribution."""

BEYOND_FRAC = 0.95
"""Probability from which the load counts as beyond capacity; below one minus that it counts as within."""

FAR_FRAC = 0.5
"""Share of a limit. If 1% of latencies exceeded the limit, and their tail were no heavier than exponential, 10% would
exceed half of it."""

QUEUE_STATES: tuple[Queue, ...] = ("growing", "critical", "undetermined", "steady")
"""Worst first."""


class Outcome(Struct):
    """One run, or one class of its requests, as the decision sees it."""

    attained_frac: Share
    n_arrived: Size
    n_effective: Annotated[float, Field(gt=0, le=1e18)]
    """Independent requests that carry as much information."""
    off_frac: Signed
    """Drawn over nominal load, less 1; None where there is no nominal load."""
    is_far_below: bool
    """No request missed, and none came within FAR_FRAC of a limit."""
    queue: Queue | None
    by_slo: Mapping[str, Share]
    """Share of requests that met each goal."""
    interval: Annotated[Sequence[Share], Field(min_length=2, max_length=2)] | None = None
    """95%, from within the run."""
    counts: Sequence[Size] = ()
    r: Sequence[Ratio] = ()
    """Requests in groups by r, and r of each group, from the highest on; empty where only shares are known."""


Outcomes = Mapping[str | None, Outcome]
"""One run: its outcome by class; by None where no class has targets."""


def worst_class(runs: Sequence[Outcomes]) -> str | None:
    """Return the class with the lowest attainment over all runs; None where there are no classes."""
    names = dict.fromkeys(name for run in runs for name in run)
    return min(names, key=lambda name: pooled_frac([run[name] for run in runs if name in run]), default=None)


def pooled_frac(runs: Sequence[Outcome]) -> float:
    """Return the share of all requests of these runs that met the SLO."""
    return sum(each.attained_frac * each.n_arrived for each in runs) / sum(each.n_arrived for each in runs)


def queue_over(states: Iterable[Queue | None]) -> Queue | None:
    """Return the state that more than half of the runs have, or worse; None where no run has one."""
    counts = Counter(state for state in states if state is not None)
    n_worse = 0
    for state in QUEUE_STATES:
        n_worse += counts[state]
        if 2 * n_worse > counts.total():
            return state
    return None


def alone_answer(run: Outcomes, goal_frac: float) -> AnswerJson | None:
    """Return the answer of a run on its own, from its outcomes."""
    if not run:
        return None
    name = worst_class([run])
    only = run[name]
    low, high = only.interval or wilson(only.attained_frac, only.n_effective, Z_95)
    attained = (only.attained_frac, low, high)
    return answer([only], goal_frac, attained, "run", slo_class=name, load_off_frac=only.off_frac)


def answer(
    runs: Sequence[Outcome],
    goal_frac: float,
    attained: tuple[float, float, float],
    basis: Basis,
    *,
    slo_class: str | None,
    load_off_frac: float | None,
) -> AnswerJson:
    """Return the answer as the summary holds it.

    attained: the share, and the low and high end of its interval. basis: run, replays or replications. load_off_frac:
    how far the load of these figures is off the nominal load; 0 where they are given at the nominal load.
    """
    frac, low, high = attained
    is_far_below = all(each.is_far_below for each in runs)
    queue, off_frac = queue_over(each.queue for each in runs), load_off_frac or 0.0
    met_fracs = {goal: [each.by_slo[goal] for each in runs if goal in each.by_slo] for goal in runs[0].by_slo}
    return AnswerJson(
        decision=decide((low, high), goal_frac, is_far_below=is_far_below, load_off_frac=off_frac, queue=queue),
        goal_frac=goal_frac,
        attained_frac=frac,
        low_frac=low,
        high_frac=high,
        confidence=CONFIDENCE,
        n_runs=len(runs),
        n_requests=sum(each.n_arrived for each in runs),
        basis=basis,
        slo_class=slo_class,
        load_off_frac=load_off_frac,
        queue=queue,
        is_far_below=is_far_below,
        by_slo={goal: sum(fracs) / len(fracs) for goal, fracs in met_fracs.items()},
    )


def decide(
    interval: tuple[float, float] | None,
    goal_frac: float,
    *,
    is_far_below: bool = False,
    load_off_frac: float = 0.0,
    queue: str | None = None,
) -> Attained:
    """Return the decision about an attainment, given its 95% interval.

    interval: low and high end of the attained share, 0..1; None where there are too few requests for one.
    is_far_below: no request missed and none came within half of a limit, so that a short run is answer enough.
    load_off_frac: drawn over nominal load, less 1; 0 where the interval is already given at the nominal load.
    queue: steady, critical, growing or undetermined. A growing queue misses any SLO in time; a critical one may.
    """
    is_missed = queue == "growing" or (interval is not None and interval[1] < goal_frac)
    if is_missed and load_off_frac <= LOAD_TOLERANCE_FRAC:
        return "missed"
    if is_missed or abs(load_off_frac) > LOAD_TOLERANCE_FRAC or queue == "critical":
        return "edge"
    return "met" if is_far_below or (interval is not None and interval[0] >= goal_frac) else "edge"
