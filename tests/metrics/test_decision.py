"""The one rule of met, edge and missed, case by case."""

import pytest

from simserve.metrics.decision import decide


@pytest.mark.parametrize(
    ("interval", "decision"),
    [
        ((0.99, 1.0), "met"),
        ((0.9899, 1.0), "edge"),
        ((0.97, 0.99), "edge"),
        ((0.97, 0.9899), "missed"),
        (None, "edge"),
    ],
)
def test_the_whole_interval_must_lie_on_one_side_of_the_goal(
    interval: tuple[float, float] | None, decision: str
) -> None:
    assert decide(interval, 0.99) == decision


def test_where_nothing_came_near_a_limit_a_short_run_is_answer_enough() -> None:
    assert decide((0.95, 1.0), 0.99, is_far_below=True) == "met"
    assert decide(None, 0.99, is_far_below=True) == "met"


@pytest.mark.parametrize("off_frac", [-0.15, 0.06])
def test_a_load_that_is_off_cannot_say_met(off_frac: float) -> None:
    assert decide((0.995, 1.0), 0.99, load_off_frac=off_frac) == "edge"
    assert decide((0.995, 1.0), 0.99, is_far_below=True, load_off_frac=off_frac) == "edge"


def test_a_miss_counts_below_the_nominal_load_and_not_above_it() -> None:
    assert decide((0.9, 0.95), 0.99, load_off_frac=-0.15) == "missed"
    assert decide((0.9, 0.95), 0.99, load_off_frac=0.15) == "edge"


def test_a_growing_queue_misses_in_time_and_one_at_capacity_is_never_met() -> None:
    assert decide((0.995, 1.0), 0.99, queue="growing") == "missed"
    assert decide((0.995, 1.0), 0.99, queue="growing", load_off_frac=0.2) == "edge"
    assert decide((0.995, 1.0), 0.99, queue="critical") == "edge"
    assert decide((0.9, 0.95), 0.99, queue="critical") == "missed"
