"""Concurrency: the most clients of a closed loop at which enough requests meet every SLO."""

import math
from collections.abc import Sequence
from typing import Any

from simserve.errors import Problem, ScenarioError
from simserve.scenario import Scenario
from simserve.study.capacity.axis import SearchAxis
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import (
    confidence_facts,
    ends_of,
    load_at_answer,
    per_facts,
    point_facts,
    question_facts,
    state_facts,
)
from simserve.study.capacity.load_curve import load_curve
from simserve.study.capacity.load_curve_facts import CLIENTS, load_curve_facts
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.probed_loads import OnProbe, ProbedLoads, RunsAt
from simserve.study.capacity.question import CapacityQuestion, check_slo
from simserve.study.capacity.rate import Capacity, Unbounded, search_in
from simserve.study.capacity.short_run import short_run_warnings
from simserve.study.intervals import Estimate
from simserve.study.run_seeds import Summary, replicate

MOST = 65_536
"""Highest number of clients that a search runs."""

ENOUGH_TURNS = 10
"""Requests per client, as in benchmarks: with fewer, the burst at the start dominates."""


def study_concurrency(question: CapacityQuestion, progress: OnProbe | None = None) -> CapacityResult:
    """Return the highest concurrency and its load curve. Raises SimserveError without an SLO or a closed loop."""
    check_slo(question.scenario)
    own = clients_of(question.scenario)

    def runs_with(n: float, seeds: Sequence[int]) -> list[Summary]:
        return replicate([with_clients(question.scenario, round(n))], seeds)[0]

    most = min(MOST, question.scenario.workload.n_requests or MOST)
    return study(question, runs_with, SearchAxis(own, 1, max(most, own), is_whole=True), progress)


def study(
    question: CapacityQuestion, runs_with: RunsAt, axis: SearchAxis, progress: OnProbe | None = None
) -> CapacityResult:
    """Return the highest concurrency and its load curve, from any function that runs a number of clients."""
    probed = ProbedLoads(runs_with, question.scenario.seed, progress, question.most_seeds)
    answer = search_in(question, probed, axis)
    more: dict[str, Any] = {"answer": None}
    if isinstance(answer, Capacity):
        n = whole(answer.scale)
        at = probed.at(n.value, len(answer.below.runs))
        more = {"answer": _answer(answer, n, at)}
        more |= load_curve_facts(load_curve(answer, probed, axis), answer.scale, CLIENTS, question.goal_frac)
    return CapacityResult(_facts(answer, probed.points) | more, tuple((None, point) for point in probed.points))


def clients_of(scenario: Scenario) -> int:
    """Return the number of clients. Raises ScenarioError for an open load."""
    client = scenario.workload.client
    if client is None:
        rule = "needs a closed loop to search over: workload.client with its concurrency"
        raise ScenarioError([Problem(f"{scenario.name}: workload", rule, None, "leave out --concurrency for its rate")])
    return int(client["concurrency"])


def with_clients(scenario: Scenario, n: int) -> Scenario:
    """Return the scenario with n clients."""
    client = {**(scenario.workload.client or {}), "concurrency": n}
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"client": client})})


def whole(load: Estimate) -> Estimate:
    """Return a load and its interval rounded down to whole clients."""
    return Estimate(*(end if math.isnan(end) else float(math.floor(end + 1e-9)) for end in vars(load).values()))


def _facts(result: Capacity | Unbounded, points: Sequence[LoadPoint]) -> dict[str, Any]:
    return {
        **question_facts(result.question, short_run_warnings(result), ends_of(result)),
        "asked": "concurrency",
        **state_facts(result),
        "load": load_at_answer(result),
        "points": [
            {"concurrency": round(point.scale), **point_facts(point, result.question.goal_frac)} for point in points
        ],
    }


def _answer(result: Capacity, n: Estimate, at: LoadPoint) -> dict[str, Any]:
    """Return the answer with the throughput at that concurrency."""
    scenario = result.question.scenario
    answered = Estimate(at.mean("requests_per_s"), math.nan, math.nan)
    n_requests = scenario.workload.n_requests
    return {
        **confidence_facts(result.question, result.boundary, is_precise=result.is_precise or n.high - n.low <= 1),
        "concurrency": {key: value if math.isnan(value) else round(value) for key, value in vars(n).items()},
        "attained_frac": at.attained_frac,
        "requests_per_s": answered.value,
        "output_tokens_per_s": at.mean("output_tokens_per_s"),
        "clients_per_gpu": n.value / per_facts(scenario, answered)["fleet"]["n_gpus"],
        "enough_turns": n_requests is None or n_requests >= ENOUGH_TURNS * n.value,
        **per_facts(scenario, answered),
    }
