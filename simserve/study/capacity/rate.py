"""Rate: the highest rate at which a given share of requests meets every SLO; at 99%, the p99 goodput."""

from collections.abc import Callable, Sequence
from functools import partial

from simserve.metrics.answers.capacity import RateCapacity
from simserve.metrics.answers.capacity_found import FoundRate
from simserve.metrics.answers.capacity_loads import LoadCurve, ProbedLoad
from simserve.metrics.decision import OLD_WORDS, Decision, beyond_warning
from simserve.study.capacity.boundary import Boundary, SearchAxis, Unbounded
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import bounded, efficiency_of, load_warnings, precision_of, probed_load, search_of
from simserve.study.capacity.load_curve import REQUESTS_PER_S, load_curve
from simserve.study.capacity.load_margin import LoadMargin, load_margin
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion, ProbedLoads, RunsAt, check_slo
from simserve.study.capacity.search import Goal, Search
from simserve.study.capacity_probe import NearCapacity, near_capacity
from simserve.study.cost_draws import draws_for
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.fleet import at_scale
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run
from simserve.workload.load import offered_load

WIDEST = 2.0**10
"""Largest factor between a load of the search and the scenario's own."""

SCALES = SearchAxis(1.0, 1 / WIDEST, WIDEST)
"""Multiples of the scenario's rates."""

Near = Callable[[CapacityQuestion, Boundary], NearCapacity | None]
"""Compares the answer with the capacity of its cluster."""


def study_rate(question: CapacityQuestion) -> CapacityResult:
    """Return the highest rate, that of each SLO and class alone, and latency against rate. Raises SimserveError without
    an SLO, or without a rate to search over."""
    return study(question, runs_at_scale(question), near_answer, drawn_at_scale(question))


def runs_at_scale(question: CapacityQuestion) -> RunsAt:
    """Return a function that runs the scenario at multiples of its rates. Raises as `study_rate` does."""
    check_slo(question.scenario)
    at_scale(question.scenario, 1.0)

    def runs(scale: float, seeds: Sequence[int]) -> list[Run]:
        enter(f"{scale:.3g} times the load")
        return each_run(Run.of, [at_scale(question.scenario, scale)], seeds)[0]

    return runs


def drawn_at_scale(question: CapacityQuestion) -> DrawnCosts | None:
    """Return draws of the costs at multiples of the scenario's rates; None where costs count as exact."""
    scenario = question.scenario
    if question.effort.by == "noise":
        return None
    return DrawnCosts.of(scenario, partial(at_scale, scenario), question.most_seeds)


def study(
    question: CapacityQuestion, runs_at: RunsAt, near: Near | None = None, costs: DrawnCosts | None = None
) -> CapacityResult:
    """Return the highest rate and its load curve, from any function that runs a load.

    costs: draws of the costs at a load; None: costs count as exact.
    """
    probed = ProbedLoads(question, runs_at)
    highest = Search(probed, SCALES, Goal(question.goal_frac, question.precision_frac)).highest()
    points, curve, margin, own = probed.points, None, None, None
    if isinstance(highest, Boundary):
        curve = load_curve(highest, probed, SCALES, REQUESTS_PER_S)
        compared = near and near(question, highest)
        at_answer = compared and compared.at(highest.offered_per_s.value)
        margin = load_margin(highest, probed.points, question.goal_frac, costs, at_answer)
        own = None if costs is None else _own_decision(question, points, runs_at, costs)
    answer = rate_answer(question, highest, points, curve, margin, own)
    return CapacityResult(answer, tuple((None, point) for point in probed.points))


def near_answer(question: CapacityQuestion, answer: Boundary) -> NearCapacity | None:
    """Return how the highest load of the search that meets the goal compares with capacity; None where unknown."""
    scenario, first = at_scale(question.scenario, answer.at.scale), answer.at.runs[0]
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    return near_capacity(scenario, load, first.load.nominal_per_s, first.service_s, draws_for(scenario))


def rate_answer(
    question: CapacityQuestion,
    highest: Boundary | Unbounded,
    points: Sequence[LoadPoint],
    curve: LoadCurve | None = None,
    margin: LoadMargin | None = None,
    own: Decision | None = None,
) -> RateCapacity:
    """Return the answer from the loads of its search, what lies around it, how sure it is, and the decision about the
    scenario's own load."""
    goal_frac = question.goal_frac
    found_rate = _highest_rate(question, highest, margin, own) if isinstance(highest, Boundary) and margin else None
    beyond = [] if found_rate is None else beyond_warning(found_rate.probability_beyond_capacity, "the answer")
    search = search_of(question, "rate", highest, [*load_warnings(highest.ends[-1]), *beyond])
    return RateCapacity(
        **vars(search),
        own_load=next((_own_load(question, each, highest, margin, own) for each in points if each.scale == 1), None),
        answer=found_rate,
        points=[probed_load(each, goal_frac, offered_per_s=_offered_per_s(each, highest)) for each in points],
        **({} if curve is None else vars(curve)),
    )


def _highest_rate(question: CapacityQuestion, answer: Boundary, margin: LoadMargin, own: Decision | None) -> FoundRate:
    rate, least = answer.offered_per_s, 1 / answer.load.value if own is not None and own.word == "meets" else 0.0
    return FoundRate(
        **vars(precision_of(question, answer)),
        scale=bounded(answer.load),
        offered_per_s=margin.with_ends(rate, question.effort, least),
        **vars(efficiency_of(question.scenario, rate)),
        probability_beyond_capacity=None if margin.near is None else margin.near.probability,
        near_capacity=None if margin.near is None else margin.near.facts(),
    )


def _own_decision(
    question: CapacityQuestion, points: Sequence[LoadPoint], runs_at: RunsAt, costs: DrawnCosts
) -> Decision | None:
    """Return the decision of `run` about the scenario's own load; None where that or its costs were not run."""
    own, first = next((point for point in points if point.scale == 1), None), question.scenario.seed

    def more(places: range) -> list[Run]:
        return runs_at(1.0, range(first + places.start, first + places.stop))

    return None if own is None else costs.settled(own, question.goal_frac, question.effort, more)[1]


def _own_load(
    question: CapacityQuestion,
    point: LoadPoint,
    highest: Boundary | Unbounded,
    margin: LoadMargin | None,
    decision: Decision | None,
) -> ProbedLoad:
    """Return the scenario's own load; without a decision, by how far it is from the answer, if there is one."""
    own = probed_load(point, question.goal_frac)
    if margin is None or not isinstance(highest, Boundary):
        return own
    ratio = point.scale / highest.load.value
    word, chance = margin.word(ratio, question.effort.confidence), margin.probability(ratio)
    if decision is not None:
        word, chance = decision.word, decision.probability
    known = {"decision": OLD_WORDS.get(word, "edge"), "word": word, "probability": chance}
    beyond = None if margin.near is None else margin.near.at(own.offered_per_s).probability
    return own.model_copy(update=known | {"probability_beyond_capacity": beyond})


def _offered_per_s(point: LoadPoint, highest: Boundary | Unbounded) -> float:
    """Return the nominal rate; without one, the drawn rate scaled to the answer's seeds, so that rates are in order."""
    if not isinstance(highest, Boundary) or point.load.nominal_per_s:
        return point.offered_per_s
    same_seeds = highest.at.first(len(point.runs))
    return point.offered_per_s * highest.at.offered_per_s / same_seeds.offered_per_s
