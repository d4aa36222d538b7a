"""What a sweep says of its points: means, fronts and the best, worked by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.sweep import BestPoint, Fronts, SweepAnswer
from simserve.study.sweep.facts import sweep_facts
from simserve.study.sweep.run import failed_row
from simserve.tables.files import json_text
from tests.study.sweeps import made_up, run


def best_of(answer: SweepAnswer) -> dict[str, int]:
    """Return the numbers of the best points by their question."""
    return {name: best.point for name, best in answer.best if best is not None}


def test_means_and_intervals_are_over_the_seeds(tmp_path: Path) -> None:
    result = sweep_facts(made_up(tmp_path, [run(3, 7.0), run(4, 8.0), run(5, 9.0)]))
    goodput = result.points[0].means.goodput_per_s
    assert goodput.value == 8.0
    # Student's t of two degrees of freedom is 4.303 at 97.5%, the standard error is 1 / sqrt(3).
    assert goodput.high is not None
    assert goodput.high - 8.0 == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert result.points[0].n_seeds == 3
    assert result.seeds == [3, 4, 5]


def test_no_interval_goes_below_nothing_or_above_all(tmp_path: Path) -> None:
    unlike = [run(3, 0.5, slo_attainment__frac=0.1), run(4, 20.0, slo_attainment__frac=1.0)]
    means = sweep_facts(made_up(tmp_path, unlike)).points[0].means
    assert means.goodput_per_s.low == 0.0
    assert (means.slo_attainment_frac.low, means.slo_attainment_frac.high) == (0.0, 1.0)


def test_what_saturates_or_fails_is_on_no_front_and_never_the_best(tmp_path: Path) -> None:
    # The second is worse than the first but for its TTFT, the third would be best at everything.
    result = sweep_facts(
        made_up(
            tmp_path,
            [run(goodput=8.0, usd=4.0)],
            [run(goodput=7.0, usd=4.0, ttft_s__p99=0.4, tpot_s__p99=0.6)],
            [run(goodput=99.0, usd=1.0, ttft_s__p99=0.1, tpot_s__p99=0.1, saturated=True)],
            [],
        )
    )
    assert result.fronts == Fronts(cost_goodput=[0], ttft_tpot=[1, 0])
    assert best_of(result) == {"per_usd": 0, "goodput": 0, "cheapest": 0}
    assert [point.status for point in result.points] == ["finished", "finished", "finished", "failed"]
    assert result.points[3].facts() == {
        "point": 3,
        "values": {"cluster.pools.0.replicas": 4},
        "status": "failed",
        "reason": "it does not fit",
        "n_seeds": 0,
        "fleet": None,
        "saturated": None,
        "decision": None,
        "meets_goal": None,
        "answer": None,
        "judged": None,
        "load": None,
        "shared_load": None,
        "measures": None,
        "warnings": [],
    }


def test_the_three_questions_can_have_three_answers(tmp_path: Path) -> None:
    result = sweep_facts(
        made_up(
            tmp_path,
            [run(goodput=9.0, usd=4.0, slo_attainment__frac=0.5)],  # 8,100 a dollar, but half of all miss
            [run(goodput=12.0, usd=8.0)],  # 5,400 a dollar
            [run(goodput=13.0, usd=12.0)],
            [run(goodput=11.0, usd=8.0)],  # as cheap as the second, and gives less
        )
    )
    assert best_of(result) == {"per_usd": 0, "goodput": 2, "cheapest": 1}
    assert result.fronts.cost_goodput == [0, 1, 2]
    assert [point.meets_goal for point in result.points] == [False, True, True, True]


def test_of_equals_the_cheapest_is_named(tmp_path: Path) -> None:
    result = sweep_facts(made_up(tmp_path, [run(goodput=9.0, usd=8.0)], [run(goodput=9.0, usd=4.0)]))
    assert best_of(result)["goodput"] == 1


def test_what_gives_nothing_is_on_no_front_however_cheap(tmp_path: Path) -> None:
    result = sweep_facts(made_up(tmp_path, [run(goodput=0.0, usd=1.0)], [run(goodput=9.0, usd=4.0)]))
    assert result.fronts.cost_goodput == [1]


def test_points_are_told_apart_seed_by_seed(tmp_path: Path) -> None:
    # Both vary by 4 from seed to seed; the second is behind by 0.9 to 1.1 at each, the third ahead and behind by turns.
    result = sweep_facts(
        made_up(
            tmp_path,
            [run(3, 10.0), run(4, 14.0), run(5, 12.0)],
            [run(3, 9.0), run(4, 12.9), run(5, 11.1)],
            [run(3, 13.0), run(4, 10.0), run(5, 12.5)],
        )
    )
    assert result.best.goodput == BestPoint(point=0, not_told_apart=[2])


def test_one_seed_tells_nobody_apart(tmp_path: Path) -> None:
    result = sweep_facts(made_up(tmp_path, [run(goodput=10.0)], [run(goodput=1.0)]))
    assert result.best.goodput == BestPoint(point=0)


def test_a_point_of_which_some_runs_failed_is_not_ranked(tmp_path: Path) -> None:
    failed = failed_row(4, "out of memory", is_final=False)
    result = sweep_facts(made_up(tmp_path, [run(3, 99.0), failed], [run(3, 8.0), run(4, 8.0)]))
    assert result.points[0].status == "partly"
    assert (result.points[0].n_seeds, result.points[0].reason) == (1, "out of memory")
    assert best_of(result)["goodput"] == 1
    assert result.fronts == Fronts(cost_goodput=[1], ttft_tpot=[1])


def test_without_an_slo_there_is_no_best_and_the_json_is_strict(tmp_path: Path) -> None:
    bare: dict[str, Any] = {"goodput": float("nan"), "goodput__per_usd": None, "slo_attainment__frac": None}
    result = sweep_facts(made_up(tmp_path, [run(**bare)], [run(**bare)], slo={}))
    assert best_of(result) == {}
    assert result.fronts == Fronts(cost_goodput=[], ttft_tpot=[0, 1])
    assert json.loads(json_text(result.facts()))["points"][0]["meets_goal"] is None


def test_a_fleet_names_its_cards(tmp_path: Path) -> None:
    fleet = sweep_facts(made_up(tmp_path, [run()])).points[0].fleet
    assert fleet is not None
    assert fleet.gpus == ["h100-sxm"]
