"""Cost error: how far log r may be off because costs are, by draws of costs on equal seeds and errors of servers."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from simserve.metrics.goal import CAP
from simserve.metrics.tails import Factors, Sample, log_of
from simserve.tables.columns import Floats

FEWEST_DRAWS = 2
"""Draws below the cap for a spread of their own."""

SCORES = np.linspace(-3.0, 3.0, 13)
"""Standard normal scores at which errors of servers are evaluated; log r is interpolated between them."""

N_POINTS = 101
"""Points over which such an error is integrated, evenly by probability."""

STEPS = ("tpot_s", "itl_s", "e2e_s")
"""Limits that share the error of steps; TTFT has one of its own."""


@dataclass(frozen=True)
class Pair:
    """A run with nominal costs, and one of the same requests with drawn costs."""

    nominal: Sample
    drawn: Sample


def cost_error(pairs: Sequence[Pair], goal_frac: float) -> tuple[float, int]:
    """Return the spread of log r between draws of costs, without the noise of the pairs, and its degrees of freedom.

    A saturated draw has no r: it counts in the probability that the load is beyond capacity, unless hardly any other is
    left. Pairs without requests tell nothing.
    """
    pairs = [pair for pair in pairs if pair.nominal.n and pair.drawn.n]
    known = [pair for pair in pairs if pair.drawn.queue != "growing" and pair.drawn.r(goal_frac) < CAP]
    known = known if len(known) >= FEWEST_DRAWS else pairs
    if len(known) < FEWEST_DRAWS:
        return 0.0, 1
    shifts = np.array([_shift(pair.nominal, pair.drawn, goal_frac) for pair in known])
    return math.sqrt(max(float(shifts.var(ddof=1)) - pair_noise(known, goal_frac), 0.0)), len(known) - 1


def pair_noise(pairs: Sequence[Pair], goal_frac: float) -> float:
    """Return the variance by noise of the difference of log r within a pair; 0 without pairs."""
    return float(np.square(half_gaps(pairs, goal_frac)).sum()) / 4 / max(1, len(pairs))


def half_gaps(pairs: Iterable[Pair], goal_frac: float) -> Floats:
    """Return by how much the differences of log r in the halves of each pair differ, `(n_pairs,)`."""
    halves = [
        [_shift(*parts, goal_frac) for parts in zip(pair.nominal.sections(2), pair.drawn.sections(2), strict=True)]
        for pair in pairs
    ]
    return np.array([one - other for one, other in halves])


def _shift(nominal: Sample, drawn: Sample, goal_frac: float) -> float:
    return log_of(drawn.r(goal_frac)) - log_of(nominal.r(goal_frac))


def server_errors(whole: Sample, goal_frac: float, server_sd: Mapping[str, float]) -> Floats:
    """Return what errors of servers add to log r, at points of equal probability."""
    near = whole.beyond(goal_frac)
    return over_errors(near.limits, server_sd, lambda factors: log_of(near.r(goal_frac, factors)))


def over_errors(limits: Iterable[str], server_sd: Mapping[str, float], value_of: Callable[[Factors], float]) -> Floats:
    """Return a value over errors of servers, less its value without, at points of equal probability, `(n_points,)`.

    value_of: the value with latencies times factors, by limit. Monotone errors of waits and of steps are independent.
    """
    sds = {name: server_sd.get(name, 0.0) for name in limits}
    return over_scores(sds, lambda wait, step: value_of(factors_at(sds, wait, step)))


def factors_at(server_sd: Mapping[str, float], wait: float, step: float) -> Factors:
    """Return the factors of servers' errors at standard normal scores of waits and of steps."""
    return {name: math.exp(sd * (step if name in STEPS else wait)) for name, sd in server_sd.items()}


def over_scores(server_sd: Mapping[str, float], value: Callable[[float, float], float]) -> Floats:
    """Return a value over scores of waits and of steps, less its value without errors, as `over_errors` does.

    server_sd: those of all that the value depends on.
    """
    of_waits, of_steps = server_sd.get("ttft_s", 0.0), max(server_sd.get(name, 0.0) for name in STEPS)
    if of_waits == 0 and of_steps == 0:
        return np.zeros(1)
    waits, steps = (SCORES if sd else np.zeros(1) for sd in (of_waits, of_steps))
    grid = np.array([[value(wait, step) for step in steps] for wait in waits]) - value(0.0, 0.0)
    scores = np.array([NormalDist().inv_cdf((k + 0.5) / N_POINTS) for k in range(N_POINTS)])
    along = np.array([np.interp(scores, steps, row) for row in grid]) if of_steps else grid
    both = np.array([np.interp(scores, waits, column) for column in along.T]) if of_waits else along
    return in_points(both)


def in_points(values: Floats) -> Floats:
    """Return equally likely values as points of equal probability, `(n_points,)`."""
    return np.quantile(values, (np.arange(N_POINTS) + 0.5) / N_POINTS)
