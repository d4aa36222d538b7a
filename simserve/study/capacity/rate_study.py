"""Rate study: the highest rate, that of each SLO and class alone, and latency against rate."""

from collections.abc import Callable
from typing import Any

from simserve.metrics.decision import beyond_warning, within_capacity
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import capacity_facts
from simserve.study.capacity.load_curve import load_curve
from simserve.study.capacity.load_curve_facts import load_curve_facts, requests_per_s
from simserve.study.capacity.probed_loads import OnProbe, ProbedLoads, RunsAt
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import SCALES, Capacity, runs_at_scale, search_in
from simserve.study.capacity_probe import UNKNOWN, NearCapacity, near_capacity
from simserve.study.cost_draws import draws_for
from simserve.study.load_scale import at_scale
from simserve.workload.load import offered_load

Near = Callable[[Capacity], NearCapacity | None]
"""Compares the answer with the capacity of its cluster."""


def study_rate(question: CapacityQuestion, progress: OnProbe | None = None) -> CapacityResult:
    """Return the highest rate and its load curve. Raises SimserveError as `find_capacity` does."""
    return study(question, runs_at_scale(question), progress, near_answer)


def study(
    question: CapacityQuestion, runs_at: RunsAt, progress: OnProbe | None = None, near: Near | None = None
) -> CapacityResult:
    """Return the highest rate and its load curve, from any function that runs a load."""
    probed = ProbedLoads(runs_at, question.scenario.seed, progress, question.most_seeds)
    answer = search_in(question, probed)
    facts = capacity_facts(answer, probed.points)
    if isinstance(answer, Capacity):
        curve = load_curve(answer, probed, SCALES)
        facts |= load_curve_facts(curve, answer.offered_per_s, requests_per_s(answer), question.goal_frac)
        facts = _against_capacity(facts, near and near(answer))
    return CapacityResult(facts, tuple((None, point) for point in probed.points))


def near_answer(answer: Capacity) -> NearCapacity | None:
    """Return how the highest load of the search that meets the goal compares with capacity; None where unknown."""
    scenario = at_scale(answer.question.scenario, answer.below.scale)
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    return near_capacity(scenario, load, answer.below.runs[0], draws_for(scenario))


def _against_capacity(facts: dict[str, Any], near: NearCapacity | None) -> dict[str, Any]:
    """Return the facts with the probability that the answer is beyond capacity, and that the scenario's own load is."""
    answer, own = facts["answer"], facts["own_load"]
    at_answer = UNKNOWN if near is None else near.at(answer["offered_per_s"]["value"]).facts()
    facts["answer"] = {**answer, **at_answer}
    if own is not None:
        chance = None if near is None else near.at(own["offered_per_s"]).probability
        decision = within_capacity(own["decision"], chance)
        facts["own_load"] = {**own, "decision": decision, "probability_beyond_capacity": chance}
    beyond = beyond_warning(at_answer["probability_beyond_capacity"], "the answer")
    facts["warnings"] = [*facts["warnings"], *beyond]
    return facts
