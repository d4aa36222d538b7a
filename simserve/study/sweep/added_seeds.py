"""Seeds that a sweep adds to points near the edge of the SLO."""

import math
from collections.abc import Sequence

from simserve.study.deterministic_load import is_deterministic
from simserve.study.slo_answer import MOST_SEEDS, more_seeds
from simserve.study.sweep.point_runs import COST, PointRuns

EDGE_SEEDS = 8
"""Seeds of every point on the edge."""

NEAR_MISS = 5.0
"""Multiple of the allowed misses up to which a point may miss the SLO by chance."""


def added_seeds(points: Sequence[PointRuns]) -> dict[int, int]:
    """Return the points that more seeds may decide, by place, and how many seeds each is to have; empty: none.

    First every edge has EDGE_SEEDS, then each point that may be the cheapest to meet the SLO. Then the edges that are
    cheaper than any point that surely meets it have up to MOST_SEEDS, from the cheapest on.
    """
    judged = [(place, each) for place, each in enumerate(points) if _may_change(each)]
    first = {place: EDGE_SEEDS for place, each in judged if each.decision == "edge" and len(each.rows) < EDGE_SEEDS}
    if first:
        return first
    sure = [each for each in points if each.is_ranked and each.decision == "met"]
    limit = min((each.value(COST) for each in sure), default=math.inf)
    near = [(place, each) for place, each in judged if each.value(COST) <= limit]
    second = {place: EDGE_SEEDS for place, each in near if len(each.rows) < EDGE_SEEDS and _is_near(each)}
    if second:
        return second
    edges = [(place, each) for place, each in near if each.decision == "edge" and each.value(COST) < limit]
    cheapest = min((each.value(COST) for _, each in edges), default=math.inf)
    return {place: _wanted(each) for place, each in edges if each.value(COST) == cheapest}


def _may_change(each: PointRuns) -> bool:
    """Return whether further seeds may change a decision."""
    scenario = each.point.scenario
    if not each.is_ranked or each.answer is None or scenario is None or len(each.rows) >= MOST_SEEDS:
        return False
    return (each.decision == "edge" or _is_near(each)) and not is_deterministic(scenario)


def _is_near(each: PointRuns) -> bool:
    """Return whether a point meets the SLO, or may miss it by chance alone."""
    assert each.answer is not None, "it is judged"
    return 1 - float(each.answer["attained_frac"]) <= NEAR_MISS * (1 - each.goal_frac)


def _wanted(each: PointRuns) -> int:
    assert each.answer is not None, "it is judged"
    return more_seeds(each.answer, len(each.rows))
