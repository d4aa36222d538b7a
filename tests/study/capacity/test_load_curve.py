"""What lies around a capacity: SLOs and classes alone, the curve, and what they cost."""

from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.scenario import Scenario
from simserve.study.capacity.load_curve import GRID
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study
from simserve.study.run_seeds import Run
from tests.cli.scenarios import write_scenario
from tests.study.served import Missed, runs_at

TPOT_UP_TO, TTFT_UP_TO = 1.0, 2.0
"""Loads at which one in a hundred misses the one SLO, if nothing else is asked."""

MISSED: Missed = {
    "ttft_s": lambda load: 0.01 * (load / TTFT_UP_TO) ** 8,
    "tpot_s": lambda load: 0.01 * (load / TPOT_UP_TO) ** 8,
}
TOGETHER = (1 + (TPOT_UP_TO / TTFT_UP_TO) ** 8) ** (-1 / 8)
"""Where both together reach one in a hundred."""


def requested(folder: Path, **changes: Any) -> CapacityQuestion:
    return CapacityQuestion(load_scenario(write_scenario(folder, **changes)), 0.99, 0.03)


def result(folder: Path, missed: Missed = MISSED, **how: Any) -> dict[str, Any]:
    facts: dict[str, Any] = study(requested(folder), runs_at(missed, **how)).answer.facts()
    return facts


def test_each_slo_alone_has_its_own_rate_and_its_room(tmp_path: Path) -> None:
    facts = result(tmp_path)
    alone = {each["slo"]: each for each in facts["alone"]}
    assert facts["answer"]["offered_per_s"]["value"] == pytest.approx(10 * TOGETHER, rel=1e-3)
    assert alone["tpot_s"]["offered_per_s"]["value"] == pytest.approx(10 * TPOT_UP_TO, rel=2e-3)
    assert alone["ttft_s"]["offered_per_s"]["value"] == pytest.approx(10 * TTFT_UP_TO, rel=2e-3)
    assert alone["ttft_s"]["room_frac"] == pytest.approx(TTFT_UP_TO / TOGETHER - 1, rel=5e-3)
    assert {each["state"] for each in alone.values()} == {"found"}
    assert {each["ends_with"] for each in alone.values()} == {"slo"}


def test_what_the_queue_ends_says_so(tmp_path: Path) -> None:
    facts = result(tmp_path, saturates_at=1.5)
    alone = {each["slo"]: each for each in facts["alone"]}
    assert alone["ttft_s"]["ends_with"] == "queue"
    low, high = (alone["ttft_s"]["offered_per_s"][end] for end in ("low", "high"))
    assert low <= 15.0 <= high
    assert alone["tpot_s"]["ends_with"] == "slo"


def test_an_slo_that_is_never_missed_is_not_followed_for_ever(tmp_path: Path) -> None:
    facts = result(tmp_path, {**MISSED, "ttft_s": lambda load: 0.0})
    (ttft,) = (each for each in facts["alone"] if each["slo"] == "ttft_s")
    assert ttft["state"] == "every load"
    assert ttft["offered_per_s"]["value"] == pytest.approx(40.0, rel=0.02)


def test_requests_are_judged_by_the_class_that_fares_worst(tmp_path: Path) -> None:
    data = load_scenario(write_scenario(tmp_path)).to_dict()
    data["workload"]["classes"] = {"chat": {"share": 0.5}, "batch": {"share": 0.5}}
    data["slo"] = {"classes": {"chat": {"e2e_s": 1.0}, "batch": {"e2e_s": 9.0}}}
    question = CapacityQuestion(Scenario.from_dict(data), 0.99, 0.03)
    classes: Missed = {"chat": lambda load: 0.01 * load**8 * 2, "batch": lambda load: 0.0}
    facts = study(question, runs_at({"e2e_s": lambda load: 0.01 * load**8}, classes=classes)).answer.facts()
    rooms = {each["slo_class"]: each["room_frac"] for each in facts["alone"] if each["slo_class"]}
    assert facts["answer"]["offered_per_s"]["value"] == pytest.approx(10 * 2 ** (-1 / 8), rel=3e-3)
    assert rooms["chat"] == pytest.approx(0.0, abs=3e-3)
    assert rooms["batch"] == pytest.approx(3.0, rel=0.02)


def test_the_curve_spreads_over_the_grid_with_the_same_seeds_and_its_knee_is_where_latency_doubles(
    tmp_path: Path,
) -> None:
    facts = result(tmp_path)
    loads = [point["offered_per_s"] / 10 / TOGETHER for point in facts["curve"]]
    assert loads == sorted(loads)
    assert all(min(abs(load / share - 1) for load in loads) < 0.041 for share in GRID)
    assert {point["n_runs"] for point in facts["curve"]} == {8}
    light = min(loads) * TOGETHER  # of 0.1 (1 + 2 load), twice that of the lightest load is at 0.5 + 2 light
    assert facts["knees"]["ttft_s"]["offered_per_s"] == pytest.approx(10 * (0.5 + 2 * light), rel=0.02)


def test_no_load_is_run_twice_with_a_seed(tmp_path: Path) -> None:
    seen: list[tuple[float, int]] = []
    run = runs_at(MISSED)

    def counted(load: float, seeds: Any) -> list[Run]:
        seen.extend((load, seed) for seed in seeds)
        return run(load, seeds)

    probed = study(requested(tmp_path), counted).probed
    assert len(seen) == len(set(seen)) == sum(len(point.runs) for _, point in probed)


def test_an_answer_of_too_few_requests_asks_for_more_seeds_and_says_if_they_do_not_suffice(tmp_path: Path) -> None:
    question = CapacityQuestion(requested(tmp_path).scenario, 0.999, 0.5)
    facts = study(question, runs_at({"ttft_s": lambda load: 0.001 * load**8}, n=400, control_variate=0)).answer.facts()
    assert facts["answer"]["n_seeds"] == 25  # 10 misses in a thousandth of 10,000 requests
    assert facts["answer"]["n_enough"]
    facts = study(question, runs_at({"ttft_s": lambda load: 0.001 * load**8}, n=40, control_variate=0)).answer.facts()
    assert facts["answer"]["n_seeds"] == 32  # the budget of runs
    assert not facts["answer"]["n_enough"]
