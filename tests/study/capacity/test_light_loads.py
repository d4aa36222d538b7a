"""Loads so light that nobody arrives are the end of a search, not its failure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.errors import NobodyArrives
from simserve.study.capacity.probed_loads import RunsAt, Tried
from simserve.study.capacity.question import Question
from simserve.study.capacity.rate import Capacity, Unbounded, find_capacity, search
from simserve.study.capacity.rate_study import study
from tests.cli.scenarios import write_scenario
from tests.study.served import runs_at

GOAL = 0.99


def asked(folder: Path, *overrides: str) -> Question:
    return Question(load_scenario(write_scenario(folder), overrides=overrides), GOAL, 0.03)


def with_nobody_below(least: float, run: RunsAt, seeds_from: int = 0) -> RunsAt:
    """The same, but that with those seeds nobody arrives at less than that."""

    def found(load: float, seeds: Sequence[int]) -> list[dict[str, Any]]:
        if load < least and max(seeds) >= seeds_from:
            raise NobodyArrives("workload.arrivals: got none")
        return run(load, seeds)

    return found


def test_where_no_load_holds_the_search_ends_at_the_lightest_that_somebody_comes_with(tmp_path: Path) -> None:
    found = search(asked(tmp_path), with_nobody_below(0.3, runs_at({"ttft_s": lambda load: 1.0})))
    assert isinstance(found, Unbounded)
    assert not found.is_met
    assert 0.3 <= found.last.scale < 0.3 * 1.03


def test_a_load_that_holds_is_found_though_nobody_comes_at_half_of_it(tmp_path: Path) -> None:
    missed = {"ttft_s": lambda load: 0.01 * (load / 0.35) ** 8}  # 1, 0.5, and 0.25 is too light
    found = search(asked(tmp_path), with_nobody_below(0.3, runs_at(missed)))
    assert isinstance(found, Capacity)
    assert found.scale.value == pytest.approx(0.35, rel=1e-3)


def test_the_curve_leaves_out_what_nobody_comes_with(tmp_path: Path) -> None:
    missed = {"ttft_s": lambda load: 0.01 * load**8}
    facts = study(asked(tmp_path), with_nobody_below(0.25, runs_at(missed))).facts
    assert facts["answer"]["offered_per_s"]["value"] == pytest.approx(10, rel=1e-3)
    assert facts["curve"][0]["offered_per_s"] == pytest.approx(3, rel=0.05)


def test_where_nobody_comes_with_a_further_seed_the_answer_is_that_of_the_first(tmp_path: Path) -> None:
    question = Question(asked(tmp_path).scenario, GOAL, 1e-9)
    found = search(
        question, with_nobody_below(99.0, runs_at({"ttft_s": lambda load: 0.01 * load**8}), seeds_from=3 + 8)
    )
    assert isinstance(found, Capacity)
    assert len(found.below.runs) == 8
    assert not found.is_precise


def test_runs_in_which_nobody_counts_are_not_held_to_anything() -> None:
    tried = Tried(runs_at({"ttft_s": lambda load: 0.0}, n=1), 0)
    assert tried.if_any(1.0, 2) is not None
    empty = {"slo_attainment": {"n_met": 0, "n_arrived": 0}}
    assert Tried(lambda load, seeds: [empty for _ in seeds], 0).if_any(1.0, 2) is None


def test_a_short_scenario_whose_slo_no_rate_meets_says_so(tmp_path: Path) -> None:
    data = load_scenario(write_scenario(tmp_path)).to_dict()
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": 4},
        "duration_s": 5,
        "lengths": data["workload"]["lengths"],
    }
    short = load_scenario(write_scenario(tmp_path, workload=workload), overrides=["slo.ttft_s=0.001"])
    found = find_capacity(Question(short, GOAL, 0.03))
    assert isinstance(found, Unbounded)
    assert not found.is_met
    assert found.last.by_slo()["ttft_s"] == 0.0
