"""One decision: a run, a number of replicas, a plan and a capacity say the same of the same fleet."""

import pytest

from simserve import Scenario, load_scenario
from simserve.metrics.decision_json import DecisionJson
from simserve.study.capacity.fleet_size import study_fleet_size
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study_rate
from simserve.study.plan.facts import plan_facts
from simserve.study.plan.outcome import Bounds
from simserve.study.plan.plan import PlanQuestion, find_plan
from simserve.study.uncertainty import run_with_replays
from tests.cli.scenarios import write_scenario

GOAL = 0.99
LOAD = (
    "measure.replays=8",
    "workload.arrivals.rate_per_s=400",
    "workload.n_requests=1000",
    "slo={ttft_s: 0.05, tpot_s: 0.012}",
)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    path = write_scenario(tmp_path_factory.mktemp("agree"))
    needed = study_fleet_size(CapacityQuestion(load_scenario(path, overrides=LOAD), GOAL, 0.03), "serve").answer
    assert needed.question == "replicas" and needed.answer is not None
    return load_scenario(path, overrides=(*LOAD, f"cluster.pools.0.replicas={needed.answer.replicas}"))


@pytest.fixture(scope="module")
def of_run(scenario: Scenario) -> DecisionJson:
    decision = DecisionJson.of(run_with_replays(scenario).summary)
    assert decision is not None and decision.n_draws == 8
    return decision


def test_the_fewest_replicas_are_as_sure_as_a_run_with_them(scenario: Scenario, of_run: DecisionJson) -> None:
    answer = study_fleet_size(CapacityQuestion(scenario, GOAL, 0.03), "serve").answer
    assert answer.question == "replicas" and answer.answer is not None
    found = answer.answer
    assert (found.replicas, found.word, of_run.word) == (scenario.cluster.pools[0].replicas, "meets", "meets")
    assert found.r == pytest.approx(of_run.r)
    assert found.probability == pytest.approx(of_run.probability)


def test_a_plan_is_as_sure_of_its_fleet_as_a_run_with_it(scenario: Scenario, of_run: DecisionJson) -> None:
    best = plan_facts(find_plan(PlanQuestion(scenario, Bounds(GOAL, 0, 64), tensors=(1,)))).best
    assert best is not None
    assert (best.needed_replicas, best.decision) == (scenario.cluster.pools[0].replicas, "met")
    assert best.r == pytest.approx(of_run.r)
    assert best.probability == pytest.approx(of_run.probability)


def test_a_capacity_meets_at_the_load_that_a_run_meets_and_counts_on_more(
    scenario: Scenario, of_run: DecisionJson
) -> None:
    answer = study_rate(CapacityQuestion(scenario, GOAL, 0.1)).answer
    assert answer.question == "rate" and answer.own_load is not None and answer.answer is not None
    load = answer.answer.load
    assert answer.own_load.word == of_run.word == "meets"
    assert load.count_on is not None and load.total is not None and load.low is not None
    assert answer.own_load.offered_per_s < load.count_on < load.value
    assert load.total[0] is not None and load.total[0] < load.low
