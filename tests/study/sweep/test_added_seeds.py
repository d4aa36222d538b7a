"""Seeds are added where they may change the answer of a sweep, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.sweep import CheapestPoint
from simserve.study.sweep.facts import sweep_facts
from simserve.study.sweep.sweep import added_seeds
from tests.study.sweeps import made_up, outcomes, run

EDGE, MET, MISSED, NEAR = 0.99, 0.995, 0.5, 0.96
"""Known to 0.001: on both sides of the goal of 99%, above it, far below it, and at four times the misses allowed."""

UNSURE = [0.97, 1.0] * 4
"""Eight seeds whose mean of 98.5% has an interval that reaches beyond 99%."""


def runs(*shares: float, usd: float = 4.0, **changes: Any) -> list[Any]:
    return [run(3 + at, usd=usd, slo_attainment__frac=share, **changes) for at, share in enumerate(shares)]


def test_every_edge_has_eight_seeds_first(tmp_path: Path) -> None:
    sweep = made_up(tmp_path, runs(EDGE, usd=4.0), runs(MET, usd=8.0), runs(EDGE, usd=12.0), runs(MISSED, usd=2.0))
    assert added_seeds(sweep.points) == {0: 8, 2: 8}


def test_what_may_be_the_answer_is_confirmed_and_what_is_dearer_or_far_off_is_not(tmp_path: Path) -> None:
    sweep = made_up(tmp_path, runs(NEAR, usd=4.0), runs(MET, usd=8.0), runs(MET, usd=12.0), runs(MISSED, usd=2.0))
    assert added_seeds(sweep.points) == {0: 8, 1: 8}


def test_what_failed_or_saturated_has_no_more_seeds(tmp_path: Path) -> None:
    assert added_seeds(made_up(tmp_path, runs(EDGE, saturated=True), []).points) == {}


@pytest.mark.parametrize(("usd", "more"), [(4.0, True), (8.0, False)])
def test_an_edge_has_still_more_seeds_where_it_is_cheaper_than_what_surely_meets_the_slo(
    tmp_path: Path, usd: float, more: bool
) -> None:
    sweep = made_up(tmp_path, runs(*UNSURE, usd=usd), runs(*[MET] * 8, usd=6.0))
    wanted = added_seeds(sweep.points)
    assert wanted.keys() == ({0} if more else set())
    assert all(16 <= n <= 32 for n in wanted.values())


def test_without_a_sure_point_the_cheapest_edge_is_decided_first(tmp_path: Path) -> None:
    sweep = made_up(tmp_path, runs(*UNSURE, usd=8.0), runs(*UNSURE, usd=4.0))
    assert added_seeds(sweep.points).keys() == {1}


def test_a_load_that_every_seed_repeats_has_one_seed(tmp_path: Path) -> None:
    workload = {
        "arrivals": {"kind": "constant", "rate_per_s": 8},
        "lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8},
        "n_requests": 40,
    }
    assert added_seeds(made_up(tmp_path, runs(EDGE), workload=workload).points) == {}


def test_an_edge_that_is_cheaper_than_the_sure_point_is_named_as_tied_and_does_not_meet_the_goal(
    tmp_path: Path,
) -> None:
    sweep = made_up(tmp_path, runs(*[MET] * 8, usd=8.0), runs(*UNSURE, usd=6.0), runs(*UNSURE, usd=4.0))
    answer = sweep_facts(sweep)
    assert (answer.best.cheapest, answer.tied) == (CheapestPoint(point=0), [2, 1])
    assert [point.decision for point in answer.points] == ["met", "edge", "edge"]
    assert [point.meets_goal for point in answer.points] == [True, False, False]
    assert answer.points[1].answer is not None
    assert answer.points[1].answer.n_runs == 8


def test_a_run_whose_load_is_far_off_the_nominal_one_does_not_decide_alone(tmp_path: Path) -> None:
    """Nothing of it can be told from `made_up`: the outcome of a run that drew 15% less says so."""
    off = run(outcomes=[outcomes(MET)[0] | {"off_frac": -0.15}])
    sweep = made_up(tmp_path, [off])
    assert sweep_facts(sweep).points[0].decision == "edge"
    assert added_seeds(sweep.points) == {0: 8}
