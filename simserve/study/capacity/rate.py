"""Rate: the highest rate at which a given share of requests meets every SLO; at 99%, the p99 goodput."""

from collections.abc import Callable
from typing import Any

from simserve.metrics.answer import within_capacity
from simserve.metrics.decision import beyond_warning
from simserve.study.capacity.axis import SearchAxis
from simserve.study.capacity.boundary import Boundary, Goal, Search, Unbounded
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import confidence_facts, load_warnings, per_facts, point_facts, search_facts
from simserve.study.capacity.load_curve import REQUESTS_PER_S, load_curve_facts
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.probed_loads import OnProbe, ProbedLoads, RunsAt
from simserve.study.capacity.question import CapacityQuestion, check_slo
from simserve.study.capacity_probe import UNKNOWN, NearCapacity, near_capacity
from simserve.study.cost_draws import draws_for
from simserve.study.load_scale import at_scale
from simserve.study.run_seeds import Run, each_run
from simserve.workload.load import offered_load

WIDEST = 2.0**10
"""Largest factor between a load of the search and the scenario's own."""

SCALES = SearchAxis(1.0, 1 / WIDEST, WIDEST)
"""Multiples of the scenario's rates."""

Near = Callable[[CapacityQuestion, Boundary], NearCapacity | None]
"""Compares the answer with the capacity of its cluster."""


def study_rate(question: CapacityQuestion, progress: OnProbe | None = None) -> CapacityResult:
    """Return the highest rate, that of each SLO and class alone, and latency against rate.

    Raises SimserveError without an SLO, or without a rate to search over.
    """
    return study(question, runs_at_scale(question), progress, near_answer)


def runs_at_scale(question: CapacityQuestion) -> RunsAt:
    """Return a function that runs the scenario at multiples of its rates. Raises as `study_rate` does."""
    check_slo(question.scenario)
    at_scale(question.scenario, 1.0)
    return lambda scale, seeds: each_run(Run.of, [at_scale(question.scenario, scale)], seeds)[0]


def study(
    question: CapacityQuestion, runs_at: RunsAt, progress: OnProbe | None = None, near: Near | None = None
) -> CapacityResult:
    """Return the highest rate and its load curve, from any function that runs a load."""
    probed = ProbedLoads(question, runs_at, progress)
    highest = Search(probed, SCALES, Goal(question.goal_frac, question.precision_frac)).highest()
    facts = rate_facts(question, highest, probed.points)
    if isinstance(highest, Boundary):
        facts |= load_curve_facts(highest, probed, SCALES, REQUESTS_PER_S)
        _put_near(facts, near and near(question, highest))
    return CapacityResult(facts, tuple((None, point) for point in probed.points))


def near_answer(question: CapacityQuestion, answer: Boundary) -> NearCapacity | None:
    """Return how the highest load of the search that meets the goal compares with capacity; None where unknown."""
    scenario = at_scale(question.scenario, answer.below.scale)
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    return near_capacity(scenario, load, answer.below.runs[0], draws_for(scenario))


def rate_facts(
    question: CapacityQuestion, highest: Boundary | Unbounded, points: tuple[LoadPoint, ...]
) -> dict[str, Any]:
    """Return what `simserve capacity --json` prints, but what lies around the answer; `answer` is null without one."""
    goal_frac = question.goal_frac
    own = next((point for point in points if point.scale == 1), None)
    return {
        **search_facts(question, "rate", highest, load_warnings(highest.ends[-1].load)),
        "own_load": None if own is None else point_facts(own, goal_frac),
        "answer": _answer(question, highest) if isinstance(highest, Boundary) else None,
        "points": [{**point_facts(each, goal_frac), "offered_per_s": _offered_per_s(each, highest)} for each in points],
    }


def _answer(question: CapacityQuestion, answer: Boundary) -> dict[str, Any]:
    rate = answer.offered_per_s
    return {
        **confidence_facts(question, answer),
        "scale": vars(answer.load),
        "offered_per_s": vars(rate),
        **per_facts(question.scenario, rate),
    }


def _offered_per_s(point: LoadPoint, highest: Boundary | Unbounded) -> float:
    """Return the nominal rate; without one, the drawn rate scaled to the answer's seeds, so that rates are in order."""
    if not isinstance(highest, Boundary) or point.load["nominal_per_s"]:
        return point.offered_per_s
    same_seeds = highest.below.first(len(point.runs))
    return point.offered_per_s * highest.below.offered_per_s / same_seeds.offered_per_s


def _put_near(facts: dict[str, Any], near: NearCapacity | None) -> None:
    """Add the probability that the answer is beyond capacity, and that the scenario's own load is."""
    answer, own = facts["answer"], facts["own_load"]
    answer |= UNKNOWN if near is None else near.at(answer["offered_per_s"]["value"]).facts()
    if own is not None:
        chance = None if near is None else near.at(own["offered_per_s"]).probability
        own |= {"decision": within_capacity(own["decision"], chance), "probability_beyond_capacity": chance}
    facts["warnings"] += beyond_warning(answer["probability_beyond_capacity"], "the answer")
