"""Loads so light that nobody arrives are the end of a search, not its failure."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from simserve import load_scenario
from simserve.errors import NoArrivals
from simserve.study.capacity.boundary import Boundary, Unbounded
from simserve.study.capacity.question import CapacityQuestion, ProbedLoads, RunsAt
from simserve.study.capacity.rate import study
from simserve.study.run_seeds import Run
from tests.cli.scenarios import write_scenario
from tests.study.served import as_runs, highest_rate, runs_at

GOAL = 0.99


def requested(folder: Path, *overrides: str) -> CapacityQuestion:
    return CapacityQuestion(load_scenario(write_scenario(folder), overrides=overrides), GOAL, 0.03)


def with_nobody_below(least: float, run: RunsAt, seeds_from: int = 0) -> RunsAt:
    """The same, but that with those seeds nobody arrives at less than that."""

    def result(load: float, seeds: Sequence[int]) -> list[Run]:
        if load < least and max(seeds) >= seeds_from:
            raise NoArrivals("workload.arrivals: got none")
        return run(load, seeds)

    return result


def test_where_no_load_holds_the_search_ends_at_the_lightest_that_somebody_comes_with(tmp_path: Path) -> None:
    result = highest_rate(requested(tmp_path), with_nobody_below(0.3, runs_at({"ttft_s": lambda load: 1.0})))
    assert isinstance(result, Unbounded)
    assert not result.is_met
    assert 0.3 <= result.last.scale < 0.3 * 1.03


def test_a_load_that_holds_is_found_though_nobody_comes_at_half_of_it(tmp_path: Path) -> None:
    missed = {"ttft_s": lambda load: 0.01 * (load / 0.35) ** 8}  # 1, 0.5, and 0.25 is too light
    result = highest_rate(requested(tmp_path), with_nobody_below(0.3, runs_at(missed)))
    assert isinstance(result, Boundary)
    assert result.load.value == pytest.approx(0.35, rel=1e-3)


def test_the_curve_leaves_out_what_nobody_comes_with(tmp_path: Path) -> None:
    missed = {"ttft_s": lambda load: 0.01 * load**8}
    facts = study(requested(tmp_path), with_nobody_below(0.25, runs_at(missed))).answer.facts()
    assert facts["answer"]["offered_per_s"]["value"] == pytest.approx(10, rel=1e-3)
    assert facts["curve"][0]["offered_per_s"] == pytest.approx(3, rel=0.05)


def test_where_nobody_comes_with_a_further_seed_the_answer_is_that_of_the_first(tmp_path: Path) -> None:
    question = CapacityQuestion(requested(tmp_path).scenario, GOAL, 1e-9)
    result = highest_rate(
        question, with_nobody_below(99.0, runs_at({"ttft_s": lambda load: 0.01 * load**8}), seeds_from=3 + 8)
    )
    assert isinstance(result, Boundary)
    assert len(result.below.runs) == 8
    assert not result.half_frac <= 1e-9


def test_runs_in_which_nobody_counts_are_not_held_to_anything(tmp_path: Path) -> None:
    question = requested(tmp_path)
    probed = ProbedLoads(question, runs_at({"ttft_s": lambda load: 0.0}, n=1))
    assert probed.if_any(1.0, 2) is not None
    empty = {"slo_attainment": {"n_met": 0, "n_arrived": 0}, "requests": {"arrived": 0}}
    assert ProbedLoads(question, lambda load, seeds: as_runs(empty for _ in seeds)).if_any(1.0, 2) is None


def test_a_short_scenario_whose_slo_no_rate_meets_says_so(tmp_path: Path) -> None:
    data = load_scenario(write_scenario(tmp_path)).to_dict()
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": 4},
        "duration_s": 5,
        "lengths": data["workload"]["lengths"],
    }
    short = load_scenario(write_scenario(tmp_path, workload=workload), overrides=["slo.ttft_s=0.001"])
    result = highest_rate(CapacityQuestion(short, GOAL, 0.03))
    assert isinstance(result, Unbounded)
    assert not result.is_met
    assert result.last.by_slo()["ttft_s"] == 0.0
