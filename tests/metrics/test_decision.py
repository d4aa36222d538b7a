"""The one rule of met, edge and missed, case by case."""

import pytest

from simserve.metrics.answer import BEYOND_FRAC, decide
from simserve.metrics.decision import beyond_warning
from simserve.metrics.goal import probability, wilson


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


@pytest.mark.parametrize("off_frac", [-0.05, 0.05])
def test_a_load_off_by_as_much_as_is_tolerated_decides(off_frac: float) -> None:
    assert decide((0.995, 1.0), 0.99, load_off_frac=off_frac) == "met"
    assert decide((0.9, 0.95), 0.99, load_off_frac=off_frac) == "missed"


@pytest.mark.parametrize("beyond_frac", [None, 0.0, 1 - BEYOND_FRAC, 0.0501, 0.5, 0.9499, 0.95, 1.0])
def test_a_load_that_may_be_beyond_capacity_has_a_warning(beyond_frac: float | None) -> None:
    warnings = beyond_warning(beyond_frac, "this load")
    assert len(warnings) == (beyond_frac is not None and beyond_frac > 1 - BEYOND_FRAC)
    for text in warnings:
        assert text.startswith("this load is beyond capacity")
        assert ("so the queue grows" in text) == ((beyond_frac or 0) >= 0.95)


def test_no_probability_is_called_certain() -> None:
    chances = [0.0, 0.005, 0.0051, 0.012, 0.5, 0.9949, 0.995, 1.0]
    assert [*map(probability, chances)] == ["<1%", "<1%", "1%", "1%", "50%", "99%", ">99%", ">99%"]


def test_an_interval_of_wilson_has_the_shares_that_the_observed_one_is_likely_under() -> None:
    """Its ends are the shares of which the observed one is `quantile` standard errors away."""
    for frac, n in ((0.3, 10), (0.9, 50.5), (0.99, 400)):
        low, high = wilson(frac, n, 1.96)
        assert low < frac < high
        for end in (low, high):
            assert (frac - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / n)
    assert [*wilson(1.0, 20, 2.0), *wilson(0.0, 20, 2.0)] == pytest.approx([20 / 24, 1.0, 0.0, 4 / 24])
