"""Concurrency: the most clients of a closed loop at which enough requests meet every SLO."""

import math
from collections.abc import Sequence

import numpy as np

from simserve.errors import Problem, ScenarioError
from simserve.metrics.answers.capacity import ConcurrencyCapacity
from simserve.metrics.answers.capacity_found import FoundClients
from simserve.scenario import Scenario
from simserve.study.capacity.boundary import Boundary, SearchAxis
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import efficiency_of, precision_of, probed_load, search_of
from simserve.study.capacity.load_curve import CLIENTS, load_curve
from simserve.study.capacity.load_margin import LoadMargin, load_margin
from simserve.study.capacity.question import CapacityQuestion, ProbedLoads, RunsAt, check_slo
from simserve.study.capacity.search import Goal, Search
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.intervals import Estimate
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run

MOST = 65_536
"""Highest number of clients that a search runs."""

MOST_IN_TILES, CLIFF = 1024, 1.02
"""Requests of a step up to which tiles that they leave empty show, and by how much longer steps are a peak."""

ENOUGH_TURNS = 10
"""Requests per client, as in benchmarks: with fewer, the burst at the start dominates."""


def study_concurrency(question: CapacityQuestion) -> CapacityResult:
    """Return the highest concurrency and its load curve. Raises SimserveError without an SLO or a closed loop."""
    scenario = question.scenario
    check_slo(scenario)
    if scenario.workload.client is None:
        rule = "needs a closed loop to search over: workload.client with its concurrency"
        raise ScenarioError([Problem(f"{scenario.name}: workload", rule, None, "leave out --concurrency for its rate")])
    own = int(scenario.workload.client["concurrency"])

    def runs_with(n: float, seeds: Sequence[int]) -> list[Run]:
        enter(f"{n:g} clients")
        return each_run(Run.of, [with_clients(scenario, round(n))], seeds)[0]

    most = min(MOST, scenario.workload.n_requests or MOST)
    costs = None
    if question.effort.by != "noise":
        costs = DrawnCosts.of(scenario, lambda n: with_clients(scenario, round(n)), question.most_seeds)
    return study(question, runs_with, SearchAxis(own, 1, max(most, own), is_whole=True), costs, peaks_of(scenario))


def study(
    question: CapacityQuestion,
    runs_with: RunsAt,
    axis: SearchAxis,
    costs: DrawnCosts | None = None,
    peaks: Sequence[int] = (),
) -> CapacityResult:
    """Return the highest concurrency and its load curve, from any function that runs a number of clients.

    costs: draws of the costs with a number of clients; None: costs count as exact. peaks: numbers that must meet the
    goal if higher ones are to count.
    """
    probed = ProbedLoads(question, runs_with)
    highest = Search(probed, axis, Goal(question.goal_frac, question.precision_frac)).highest(peaks)
    clients, curve = None, None
    if isinstance(highest, Boundary):
        curve = load_curve(highest, probed, axis, CLIENTS)
        clients = _most_clients(highest, probed, load_margin(highest, probed.points, question.goal_frac, costs, None))
    answer = ConcurrencyCapacity(
        **vars(search_of(question, "concurrency", highest)),
        points=[probed_load(each, question.goal_frac, concurrency=round(each.scale)) for each in probed.points],
        answer=clients,
        **({} if curve is None else vars(curve)),
    )
    return CapacityResult(answer, tuple((None, point) for point in probed.points))


def peaks_of(scenario: Scenario) -> list[int]:
    """Return the numbers of clients of a lone pool that have longer steps than some higher number, as kernels round
    rows up to tiles; with several pools, none is known."""
    first, *others = scenario.setups
    if others:
        return []
    cost, n_replicas = first.step_cost(), first.n_replicas * first.parallel.data
    steps_ps = np.array([cost.tokens_ps(n) + cost.sampled_ps(n) for n in range(1, MOST_IN_TILES + 1)])
    shortest_later = np.minimum.accumulate(steps_ps[::-1])[::-1]
    is_peak = (steps_ps >= np.maximum.accumulate(steps_ps)) & (steps_ps > CLIFF * shortest_later)
    last_of_each = is_peak & ~np.append(is_peak[1:], False)
    return [n_replicas * (n + 1) for n in np.flatnonzero(last_of_each).tolist()]


def with_clients(scenario: Scenario, n: int) -> Scenario:
    """Return the scenario with n clients."""
    client = {**(scenario.workload.client or {}), "concurrency": n}
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"client": client})})


def _most_clients(boundary: Boundary, probed: ProbedLoads, margin: LoadMargin) -> FoundClients:
    """Return the answer in whole clients, with the throughput at that concurrency."""
    question, scenario = probed.question, probed.question.scenario
    n, low, high = (end if math.isnan(end) else math.floor(end + 1e-9) for end in vars(boundary.load).values())
    at = probed.at(float(n), len(boundary.at.runs))
    answered = Estimate(at.mean("requests_per_s"), math.nan, math.nan)
    efficiency = efficiency_of(scenario, answered)
    n_requests = scenario.workload.n_requests
    return FoundClients(
        **vars(precision_of(question, boundary, is_known=high - low <= 1)),
        concurrency=margin.with_ends(boundary.load, question.effort).in_whole,
        attained_frac=at.attained_frac,
        requests_per_s=answered.value,
        output_tokens_per_s=at.mean("output_tokens_per_s"),
        clients_per_gpu=n / efficiency.fleet.n_gpus,
        enough_turns=n_requests is None or n_requests >= ENOUGH_TURNS * n,
        **vars(efficiency),
    )
