"""Storms: clients that retry so much that it loads the fleet, and overload that retries keep up on their own.

A trigger, such as a lost node or a burst, takes a fleet to a metastable state, and retries keep it there when the
trigger has gone (Bronson et al., HotOS 2021; Huang et al., OSDI 2022).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simserve.metrics.answers.struct import Figures
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.scaling import BIN_S, LEAST_ARRIVALS, LOW_FRAC, runs_of
from simserve.metrics.summary_schema import Measured
from simserve.tables.columns import Columns, Flags, Floats

STORM_FRAC, CALM_FRAC = 1 / 3, 0.1
"""Share of retries in an interval's attempts above which it is one of a storm, and up to which it is calm."""
MOST_LOAD = 1.05
"""Load of an interval over what was served before, at most, noise aside; more is a trigger."""
GROWTH_Z = 1.645
"""Standard errors from a calm's trend of the backlog to its upper bound: 95%, and 93% with ten intervals. With
Student's bound no short calm would count, as three intervals leave one degree of freedom."""
LEAST_CALM, LEAST_BINS, LEAST_RATIO = 3, 4, 2
"""Least intervals of a calm and of a metastable state, and how much longer than its trigger the latter lasts."""


class StormJson(Figures):
    """Load by retries, over the whole run; intervals have 15 s or more, and 20 first attempts or more on average."""

    most_frac: Measured = None
    """[share] Attempts that were retries, in the interval with the most of them."""
    storm_s: Measured = None
    """[s] Time in intervals in which more than a third of the attempts were retries."""
    trigger_s: Measured = None
    """[s] Length of the trigger of a metastable state: a time with fewer GPUs or more load than in the calm before it;
    null without such a state, as are the keys below."""
    metastable_from_s: Measured = None
    """[s] When the trigger had ended."""
    metastable_s: Measured = None
    """[s] How long more than a third of the attempts were still retries then, at a load that was served before."""
    retry_frac: Measured = None
    """[share] Attempts that were retries, in that time."""
    answered_frac: Measured = None
    """[share] Requests that were answered in the end, of those first sent in that time."""


@dataclass(frozen=True)
class _Intervals:
    """What happened in each interval up to the last first attempt, `(n,)` each."""

    length_s: float
    first: Floats
    """First attempts."""
    retries: Floats
    """Later ones."""
    at_once: Floats
    """First attempts of the interval that were answered."""
    in_the_end: Floats
    """Requests first sent in it that were answered at any attempt."""
    answers: Floats
    """Answers received."""
    gpus: Floats
    """GPUs of ready replicas, on average."""
    longest_s: float
    """Longest time from a first attempt to the last retry of its request, of all."""
    patience_s: float
    """Longest time that an answered attempt waited."""

    @property
    def retry_frac(self) -> Floats:
        """Share of retries in the attempts of each interval."""
        return self.retries / np.maximum(self.first + self.retries, 1)


def storms(requests: Columns, lives: Lifetimes) -> StormJson | None:
    """Return the load by retries; None without any."""
    if not (requests["attempt"] > 1).any():
        return None
    intervals = _intervals(requests, lives)
    is_storm, length_s = intervals.retry_frac > STORM_FRAC, intervals.length_s
    known = {"most_frac": float(intervals.retry_frac.max()), "storm_s": float(is_storm.sum()) * length_s}
    states = [each for start, end in runs_of(is_storm) for each in _metastable(intervals, start, end)]
    if not states:
        return StormJson(**known)
    trigger, state = max(states, key=lambda each: each[1].stop - each[1].start)
    columns = intervals.first, intervals.retries, intervals.in_the_end
    n_first, n_retries, n_answered = (float(column[state].sum()) for column in columns)
    return StormJson(
        **known,
        trigger_s=(trigger.stop - trigger.start) * length_s,
        metastable_from_s=trigger.stop * length_s,
        metastable_s=(state.stop - trigger.stop) * length_s,
        retry_frac=n_retries / (n_first + n_retries),
        answered_frac=n_answered / n_first,
    )


def storm_warnings(storm: StormJson | None) -> list[str]:
    """Return a warning of a metastable state, or of a retry storm."""
    if storm is None or not storm.storm_s or storm.most_frac is None:
        return []
    remedy = "cap retries with workload.retries.budget_frac, or shed load (cluster.admission)"
    if storm.metastable_s is None or storm.retry_frac is None or storm.answered_frac is None:
        most = f"up to {storm.most_frac:.0%} of attempts were retries, for {storm.storm_s:.0f} s more than a third"
        return [f"a retry storm: {most}; {remedy}"]
    since = f"{storm.metastable_s:.0f} s after a trigger of {storm.trigger_s:.0f} s had ended"
    shares = f"{storm.retry_frac:.0%} of attempts are retries and {storm.answered_frac:.0%} of requests are answered"
    return [
        f"metastable: {since}, the fleet was still overloaded, at a load that it served before",
        f"in that retry storm, {shares}; {remedy}",
    ]


def _intervals(requests: Columns, lives: Lifetimes) -> _Intervals:
    arrival_s, first_s, is_first = requests["arrival_s"], requests["first_sent_s"], requests["attempt"] == 1
    last_s = max(float(first_s.max()), 1e-9)
    n = max(1, int(min(last_s / BIN_S, is_first.sum() / LEAST_ARRIVALS)))
    edges_s = np.linspace(0.0, last_s, n + 1)
    is_answered = requests["status"].is_("finished")

    def counts(at_s: Floats, some: Flags) -> Floats:
        return np.histogram(at_s[some], edges_s)[0].astype(np.float64)

    return _Intervals(
        last_s / n,
        counts(arrival_s, is_first),
        counts(arrival_s, ~is_first),
        counts(arrival_s, is_first & is_answered),
        counts(first_s, is_answered),
        counts(requests["finish_s"], is_answered),
        lives.gpus @ lives.lived_s(edges_s, "ready_s", "draining_s") / (last_s / n),
        float((arrival_s - first_s).max()),
        float((requests["finish_s"] - arrival_s)[is_answered].max(initial=0.0)),
    )


def _metastable(of: _Intervals, start: int, end: int) -> Iterator[tuple[slice, slice]]:
    """Yield each trigger of a storm, and the intervals of the storm after it that are metastable.

    These follow a calm state, in which nearly all first attempts were answered. A trigger is a row of intervals with
    fewer GPUs than then, or with clearly more load. After it the storm lasts longer than the trigger did, and than any
    request was retried, though there are as many GPUs as in the calm, and no more load than was answered then. By the
    growth of the backlog in the calm, first attempts alone would not have filled the queue since.
    """
    is_calm = (of.retry_frac <= CALM_FRAC) & (of.at_once >= LOW_FRAC * of.first) & (of.first > 0)
    calms = [run for run in runs_of(is_calm) if run[1] <= start and run[1] - run[0] >= LEAST_CALM]
    if not calms:
        return
    calm = slice(*calms[-1])
    answers, gpus = of.answers[calm][1:], float(of.gpus[calm].max())  # in the first, answers only begin to come
    served = float(np.median(answers))
    is_disturbed = (of.gpus < gpus * (1 - 1e-9)) | (of.first > MOST_LOAD * served + 3 * np.sqrt(served))
    triggers = [run for run in runs_of(is_disturbed) if calm.stop <= run[1]]
    if not triggers or triggers[0][0] > start:
        return  # the storm came first, as where the load is beyond capacity
    for trigger, following in pairwise([*triggers, (end, end)]):
        state = slice(max(start, trigger[1]), min(following[0], end))
        n = state.stop - trigger[1]
        least = max(LEAST_BINS, LEAST_RATIO * (trigger[1] - trigger[0]), of.longest_s / of.length_s)
        first = of.first[state]
        is_low = of.in_the_end[state].sum() < LOW_FRAC * first.sum()
        filled = _growth(np.cumsum((of.first - of.answers)[calm])) * (state.stop - calm.stop)
        is_filled = filled > served * of.patience_s / of.length_s
        if state.start < state.stop and n >= least and is_low and not is_filled:
            noise = 2 * np.sqrt(served / len(answers) + served / len(first))
            if first.mean() <= served + noise:
                yield slice(*trigger), state


def _growth(backlog: Floats) -> float:
    """Return the upper bound of a linear trend, for each interval."""
    n = len(backlog)
    at = np.arange(n) - (n - 1) / 2
    slope = float(at @ backlog / (at @ at))
    rest = backlog - backlog.mean() - slope * at
    return slope + GROWTH_Z * float(np.sqrt(rest @ rest / (n - 2) / (at @ at)))
