"""One decision: a run, a number of replicas, a plan, a capacity, a sweep and a comparison say the same of one fleet."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from simserve import Scenario, load_scenario
from simserve.metrics.answers.comparison import NoDecision
from simserve.metrics.answers.sweep import PointOfSweep
from simserve.metrics.answers.sweep_runs import read_run
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.metrics.summary_schema import DecisionJson
from simserve.study.capacity.fleet_size import study_fleet_size
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study_rate
from simserve.study.compare.compare import ComparedSide, compare
from simserve.study.fleet import gains_by_replicas, with_replicas
from simserve.study.plan.facts import plan_facts
from simserve.study.plan.outcome import Bounds
from simserve.study.plan.plan import PlanQuestion, find_plan
from simserve.study.processes import in_processes
from simserve.study.sweep.facts import sweep_facts
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.question import SweepQuestion
from simserve.study.sweep.sweep import run_sweep
from simserve.study.uncertainty import run_with_replays
from simserve.tables.folder import SWEEP
from simserve.tables.journal import open_journal
from tests.cli.scenarios import write_scenario

GOAL = 0.99
LOAD = (
    "measure.replays=8",
    "workload.arrivals.rate_per_s=400",
    "workload.n_requests=1000",
    "slo={ttft_s: 0.05, tpot_s: 0.012}",
)


SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    path = write_scenario(tmp_path_factory.mktemp("agree"))
    needed = study_fleet_size(CapacityQuestion(load_scenario(path, overrides=LOAD), GOAL, 0.03), "serve").answer
    assert needed.question == "replicas" and needed.answer is not None
    return load_scenario(path, overrides=(*LOAD, f"cluster.pools.0.replicas={needed.answer.replicas}"))


@pytest.fixture(scope="module")
def of_run(scenario: Scenario) -> DecisionJson:
    decision = run_with_replays(scenario).decision
    assert decision is not None and decision.n_draws == 8
    return decision


def test_the_fewest_replicas_are_as_sure_as_a_run_with_them(scenario: Scenario, of_run: DecisionJson) -> None:
    answer = study_fleet_size(CapacityQuestion(scenario, GOAL, 0.03), "serve").answer
    assert answer.question == "replicas" and answer.answer is not None
    found = answer.answer
    assert (found.replicas, found.word, of_run.word) == (scenario.cluster.pools[0].replicas, "meets", "meets")
    assert found.r == pytest.approx(of_run.r)
    assert found.probability == pytest.approx(of_run.probability)
    assert answer.decision is not None and (answer.decision.word, answer.decision.r) == ("meets", found.r)


def test_a_plan_is_as_sure_of_its_fleet_as_a_run_with_it(scenario: Scenario, of_run: DecisionJson) -> None:
    answer = plan_facts(find_plan(PlanQuestion(scenario, Bounds(GOAL, 0, 64), tensors=(1,))))
    best = answer.best
    assert best is not None
    assert answer.decision is not None and (answer.decision.word, answer.decision.r) == ("meets", best.r)
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
    assert answer.decision is not None and answer.decision.word == "meets"
    assert load.count_on is not None and load.total is not None and load.low is not None
    assert answer.own_load.offered_per_s < load.count_on < load.value
    assert load.total[0] is not None and load.total[0] < load.low


def swept(
    folder: Path, scenarios: Sequence[Scenario], n_seeds: int = 1, effort: Effort = DEFAULT_EFFORT
) -> Sequence[PointOfSweep]:
    points = tuple(SweepPoint(place, (), scenario) for place, scenario in enumerate(scenarios))
    with open_journal(folder / "sweep", SWEEP, read_run) as journal:
        question = SweepQuestion(points, n_seeds, GOAL, effort)
        return sweep_facts(run_sweep(question, journal, in_processes)).points


def as_json(decision: DecisionJson | None) -> str:
    assert decision is not None
    return decision.model_dump_json()


def test_a_point_of_a_sweep_is_what_a_run_of_it_says_to_the_digit(
    scenario: Scenario, of_run: DecisionJson, tmp_path: Path
) -> None:
    (point,) = swept(tmp_path, [scenario])
    assert as_json(point.judged) == as_json(of_run)
    assert (point.decision, point.n_seeds) == ("met", of_run.n_runs)


def test_more_replicas_meet_as_fewer_do_without_draws_of_their_own_and_a_run_agrees(
    scenario: Scenario, of_run: DecisionJson, tmp_path: Path
) -> None:
    more = with_replicas(scenario, {0: scenario.cluster.pools[0].replicas + 1})
    larger, fewer = swept(tmp_path, [more, scenario])
    assert as_json(fewer.judged) == as_json(of_run)
    judged = larger.judged
    assert judged is not None
    assert (judged.word, judged.n_draws, judged.r_total, judged.probability) == ("meets", 0, None, None)
    assert judged.why == "fewer replicas meet the SLO with cost error"
    of_more = run_with_replays(more).decision
    assert of_more is not None and of_more.word == "meets"


def test_where_fewer_replicas_do_not_meet_more_are_drawn(scenario: Scenario, tmp_path: Path) -> None:
    one = with_replicas(scenario, {0: 1})
    fewer, larger = swept(tmp_path, [one, scenario])
    assert fewer.word in ("likely_misses", "misses", "saturated")
    assert larger.judged is not None and larger.judged.n_draws == 8


@pytest.mark.parametrize(
    ("changes", "gains"),
    [
        ((), True),
        (("cluster.pools.0.scheduler={kind: static, batch_size: 8}",), False),
    ],
)
def test_more_replicas_gain_where_no_batch_waits(changes: tuple[str, ...], gains: bool, tmp_path: Path) -> None:
    assert gains_by_replicas(load_scenario(write_scenario(tmp_path), overrides=changes)) is gains


@pytest.mark.parametrize("name", ["conversations", "agents", "disaggregated", "mixed_pool"])
def test_replicas_that_requests_are_tied_to_or_of_several_pools_are_drawn(name: str) -> None:
    assert not gains_by_replicas(load_scenario(SCENARIOS / f"{name}.yaml"))


def test_a_sweep_says_what_runs_say_where_cost_error_decides(tmp_path: Path) -> None:
    """By noise alone the first meets the SLO and the others miss it, as sweeps said when they took costs as exact."""
    path, pool = write_scenario(tmp_path), "cluster.pools.0.replicas=2"
    limits = [f"slo={{ttft_s: 0.05, tpot_s: {limit_s}}}" for limit_s in (0.0085, 0.0078, 0.0075)]
    scenarios = [load_scenario(path, overrides=(*LOAD[:-1], pool, limit)) for limit in limits]
    points = swept(tmp_path / "total", scenarios)
    of_runs = [run_with_replays(scenario).decision for scenario in scenarios]
    assert [as_json(point.judged) for point in points] == list(map(as_json, of_runs))
    assert [point.word for point in points] == ["likely_meets", "edge", "likely_misses"]
    assert all(point.is_tied_by_cost for point in points)
    by_noise = swept(tmp_path / "noise", scenarios, 8, Effort(by="noise"))
    assert [point.word for point in by_noise] == ["meets", "misses", "misses"]


def test_a_side_of_a_comparison_is_what_a_run_of_it_says_to_the_digit(
    scenario: Scenario, of_run: DecisionJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simserve.study.compare.compare.carried_load", lambda *_: NoDecision(reason="not asked"))
    edge = with_replicas(scenario, {0: 2})
    answer = compare(ComparedSide("a", scenario), ComparedSide("b", edge), 2)
    assert as_json(answer.judged.a) == as_json(of_run)
    assert as_json(answer.judged.b) == as_json(run_with_replays(edge).decision)
