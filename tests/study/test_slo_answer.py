"""Attainment at the nominal load: unbiased, as sure as it says, and `share_of` where nothing is corrected."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.answer import Outcome, Outcomes
from simserve.metrics.outcomes import outcomes
from simserve.study.intervals import share_of
from simserve.study.slo_answer import answer_over, at_nominal, met_probability, slo_answer
from tests.summaries import summary_of


def outcome(attained_frac: float, off_frac: float | None = None, **changes: Any) -> Outcome:
    facts: dict[str, Any] = {"n_arrived": 1000, "n_effective": 1000.0, "is_far_below": False, "queue": "steady"}
    n_arrived = round(1000 * (1 + (off_frac or 0.0)))
    return Outcome(
        attained_frac=attained_frac, off_frac=off_frac, by_slo={}, **facts | {"n_arrived": n_arrived} | changes
    )


def windows(rng: np.random.Generator, n: int) -> list[Outcome]:
    """Draw windows whose misses grow by a factor of e for 20% more load, and vary as much without it."""
    result = []
    for off_frac in rng.normal(0.0, 0.1, n):
        missed_frac = 0.02 * np.exp(5 * off_frac + rng.normal(0.0, 0.5))
        result.append(outcome(1 - min(missed_frac, 1.0), max(off_frac, -0.9)))
    return result


TRUE_FRAC = 1 - 0.02 * float(1.05 * np.exp(0.125) * np.exp(0.125))
"""Mean of misses over mean of arrivals: E[(1 + x) exp(5 x)] = 1.05 exp(0.125) for normal x of standard deviation 0.1;
the last factor is the mean of the other variation."""


@pytest.mark.parametrize("n_runs", [9, 24])
def test_the_interval_holds_the_long_run_share_at_the_nominal_load(n_runs: int) -> None:
    rng = np.random.default_rng(7)
    found = [at_nominal(windows(rng, n_runs)) for _ in range(600)]
    held = np.mean([each.low <= TRUE_FRAC <= each.high for each in found])
    assert 0.90 <= held <= 0.99
    assert np.mean([each.value for each in found]) == pytest.approx(TRUE_FRAC, abs=0.002)


def test_windows_that_drew_little_load_are_not_taken_for_the_nominal_one() -> None:
    rng = np.random.default_rng(3)
    lucky = [each for each in windows(rng, 5000) if each.off_frac is not None and each.off_frac < 0.12]
    too_good = share_of([each.attained_frac for each in lucky], 1e6).value - TRUE_FRAC
    assert too_good > 0.003
    assert abs(at_nominal(lucky).value - TRUE_FRAC) < 0.6 * too_good


@pytest.mark.parametrize(
    "runs",
    [
        [outcome(each) for each in (0.95, 0.97, 0.99, 0.94, 0.96)],
        [outcome(each, off) for each, off in ((0.95, 0.1), (0.97, -0.1), (0.99, 0.0))],
        [outcome(each, 0.0) for each in (0.95, 0.97, 0.99, 0.94, 0.96)],
    ],
    ids=["no nominal load", "three runs", "equal loads"],
)
def test_where_nothing_can_be_corrected_it_is_the_share_of_the_runs(runs: list[Outcome]) -> None:
    assert at_nominal(runs) == share_of([each.attained_frac for each in runs], sum(each.n_effective for each in runs))


def test_more_load_never_makes_it_better() -> None:
    rising = [outcome(0.9 + off, off) for off in (-0.04, -0.02, 0.01, 0.03)]
    pooled = sum(each.attained_frac * each.n_arrived for each in rising) / sum(each.n_arrived for each in rising)
    assert at_nominal(rising).value == pytest.approx(pooled)


def test_runs_without_a_miss_are_as_sure_as_all_their_requests() -> None:
    runs = [outcome(1.0, off, n_effective=25.0) for off in (-0.1, 0.0, 0.05, 0.1)]
    result = at_nominal(runs)
    assert (result.value, result.high) == (1.0, 1.0)
    assert result.low == pytest.approx(100 / (100 + 1.959964**2))  # Wilson's for 100 without a miss


def test_the_class_that_fares_worst_decides() -> None:
    good, bad = outcome(1.0, n_effective=1e5), outcome(0.9, n_effective=1e5)
    found = answer_over([{"chat": good, "batch": bad}] * 4, 0.99)
    assert found is not None
    assert (found.slo_class, found.decision) == ("batch", "missed")
    assert found.attained_frac == pytest.approx(0.9)


def test_loads_that_all_lie_below_the_nominal_one_cannot_say_met() -> None:
    runs: list[Outcomes] = [{None: outcome(1.0, off, n_effective=1e6)} for off in (-0.2, -0.15, -0.1, -0.08)]
    found = answer_over(runs, 0.99)
    assert found is not None
    assert (found.decision, found.load_off_frac) == ("edge", -0.08)


def test_without_an_slo_there_is_no_answer() -> None:
    assert slo_answer([outcomes(summary_of({"requests": {"arrived": 5}}))], 0.99) is None


def test_the_probability_of_meeting_the_goal_is_that_of_one_more_window() -> None:
    rng = np.random.default_rng(5)
    met = np.mean([each.attained_frac >= 0.97 for each in windows(rng, 20_000)])
    told = [met_probability(windows(rng, 9), 0.97) for _ in range(500)]
    assert np.mean([each for each in told if each is not None]) == pytest.approx(met, abs=0.05)


def test_where_no_run_missed_there_is_no_probability_but_a_count() -> None:
    assert met_probability([outcome(1.0, off) for off in (-0.1, 0.0, 0.05, 0.1)], 0.99) is None
    assert met_probability([outcome(0.98, 0.0)] * 3, 0.99) is None
