"""The gate's rule: no false alarms, real losses found, honest intervals; on counts whose truth is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from simserve.metrics.answers.baseline import LOOKS
from simserve.study.check.gate import FALSE_ALARMS, AttainmentCurve, Loss, answer, loss_between, significance
from simserve.tables.columns import Floats
from tests.effort import runs, wider

Draw = Callable[[np.random.Generator, int, float], Loss]

GOAL = 0.99
SCALES = (0.96, 1.04)
N_ARRIVED = 2000
SLOPE = 17.0
"""Logits of the share that misses, for each unit of the logarithm of the load; as of scenarios/chat_burst.yaml."""


def curve(rng: np.random.Generator, seeds: range, hard: Floats, lost_frac: float = 0.0) -> AttainmentCurve:
    """A server whose p99 goodput is lower by that share: it misses at each load what another misses at a higher one.

    A seed's load is harder by a share `hard`, so that losses are exact, whatever the seeds are like on average.
    """
    place = np.log(np.array(SCALES))[:, None] - math.log(1 - lost_frac) + hard
    missed_frac = 1 / (1 + np.exp(math.log(GOAL / (1 - GOAL)) - SLOPE * place))
    arrived = np.full(missed_frac.shape, N_ARRIVED)
    return AttainmentCurve(SCALES, arrived - rng.binomial(arrived, missed_frac), arrived, tuple(seeds))


def hardness(rng: np.random.Generator, n: int) -> Floats:
    return rng.normal(0.0, 0.04, n)


def paired(rng: np.random.Generator, n: int, lost_frac: float) -> Loss:
    """Sides that share the seeds' hardness, but not what happens to each request."""
    hard = hardness(rng, n)
    return loss_between(curve(rng, range(n), hard), curve(rng, range(n), hard, lost_frac), GOAL)


def unpaired(rng: np.random.Generator, n: int, lost_frac: float) -> Loss:
    """Sides of other seeds, whose hardness is known, but for as much again that is not."""
    known = [hardness(rng, n) for _ in range(2)]
    hard = [each + rng.normal(0.0, 0.02, n) for each in known]
    sides = curve(rng, range(n), hard[0]), curve(rng, range(n, 2 * n), hard[1], lost_frac)
    return loss_between(*sides, GOAL, known)


def test_a_root_is_read_off_a_line_through_the_logits() -> None:
    # 4.5 of 1,000 missed below and 19.5 above, with half a request more each: by hand on a logarithmic scale.
    result = AttainmentCurve((1.0, 2.0), np.array([[996], [981]]), np.array([[1000], [1000]]), (0,))
    near, far, goal = math.log(4.5 / 996.5), math.log(19.5 / 981.5), math.log(0.01 / 0.99)
    assert result.log_root(GOAL) == pytest.approx(math.log(2) * (goal - near) / (far - near))
    assert result.rise() == pytest.approx(far - near)
    assert result.reaches(GOAL)


def test_a_goal_far_beyond_both_loads_is_not_reached() -> None:
    arrived = np.array([[1000], [1000]])
    assert not AttainmentCurve((1.0, 1.1), np.array([[1000], [1000]]), arrived, (0,)).reaches(GOAL)
    assert not AttainmentCurve((1.0, 1.1), np.array([[900], [800]]), arrived, (0,)).reaches(GOAL)
    assert AttainmentCurve((1.0, 1.1), np.array([[999], [993]]), arrived, (0,)).reaches(GOAL)  # a little above both


def test_what_has_not_changed_loses_exactly_nothing() -> None:
    rng = np.random.default_rng(1)
    side = curve(rng, range(32), hardness(rng, 32))
    result = loss_between(side, side, GOAL)
    assert (result.frac, result.error, result.is_paired) == (0.0, 0.0, True)
    assert answer(result, 0.0, significance(len(LOOKS))) == "pass"


@pytest.mark.law("coverage")
@pytest.mark.parametrize("draw", [paired, unpaired])
@pytest.mark.parametrize("lost_frac", [0.0, 0.05])
def test_the_interval_holds_the_true_loss_as_often_as_it_says(draw: Draw, lost_frac: float) -> None:
    rng = np.random.default_rng(2)
    n = runs(1500, quick=375)
    slack = wider(n, 1500)
    result = [draw(rng, 64, lost_frac) for _ in range(n)]
    held = [low <= lost_frac <= high for low, high in (loss.interval() for loss in result)]
    assert abs(np.mean(held) - 0.95) <= 0.015 * slack
    assert np.mean([loss.frac for loss in result]) == pytest.approx(lost_frac, abs=0.001 * slack)
    spread = np.std([loss.log for loss in result])
    assert np.mean([loss.error for loss in result]) == pytest.approx(spread, rel=0.06 * slack)


@pytest.mark.law("coverage")
@pytest.mark.parametrize("draw", [paired, unpaired])
def test_there_are_no_more_false_alarms_than_are_allowed(draw: Draw) -> None:
    # 3,000 draws of a rule with 1 in 1,000 hold 8 or more once in a hundred; a rule with 1 in 100 holds 30. Of 1,000
    # draws, 5 or more are as rare, and that rule holds 10.
    rng = np.random.default_rng(3)
    doubt = significance(len(LOOKS))
    alarms = sum(answer(draw(rng, 32, 0.0), 0.0, len(LOOKS) * doubt) == "fail" for _ in range(runs(3000, quick=1000)))
    assert alarms < runs(9, quick=5)
    assert doubt * len(LOOKS) == FALSE_ALARMS
    assert not any(answer(draw(rng, 32, 0.0), 0.02, doubt) == "fail" for _ in range(runs(500, quick=200)))


@pytest.mark.parametrize("draw", [paired, unpaired])
def test_a_real_loss_is_found(draw: Draw) -> None:
    rng = np.random.default_rng(4)
    result = [answer(draw(rng, LOOKS[-1], 0.05), 0.02, significance(len(LOOKS))) for _ in range(runs(400, quick=100))]
    assert result.count("fail") >= 0.95 * len(result)


def test_without_enough_seeds_the_answer_is_open() -> None:
    loss = Loss(0.03, 0.01, 31, is_paired=True)
    assert answer(loss, 0.02, significance(3)) == "open"
    # Student's 99.97% and 95% points of 31 degrees of freedom, from tables: about 3.79 and 1.70.
    assert loss.smallest_found(0.02, significance(3)) == pytest.approx(
        1 - 0.98 * math.exp(-0.01 * (3.79 + 1.70)), rel=0.01
    )


def test_knowing_how_hard_the_seeds_are_tells_two_sides_apart_sooner() -> None:
    rng = np.random.default_rng(5)
    known = [hardness(rng, 64) for _ in range(2)]
    a, b = (curve(rng, range(i * 64, i * 64 + 64), hard) for i, hard in enumerate(known))
    with_control_variate, without = loss_between(a, b, GOAL, known), loss_between(a, b, GOAL)
    assert with_control_variate.error < 0.6 * without.error
    assert not without.is_paired


def test_an_error_that_one_burst_makes_up_is_known_from_few_seeds() -> None:
    arrived = np.full((2, 32), N_ARRIVED)
    even = np.array([[10], [40]]) + np.tile([-5, 5], 16)
    burst = np.array([[10], [40]]) * np.ones(32, np.int64)
    burst[:, 0] = 300
    flat = np.array([[10], [40]]) * np.ones(32, np.int64)
    sides = [AttainmentCurve(SCALES, arrived - missed, arrived, tuple(range(32))) for missed in (even, burst, flat)]
    free = [loss_between(side, sides[2], GOAL).n_free for side in sides[:2]]
    assert free[0] == 31  # two values, one as often as the other: the variance is known as well as can be
    assert free[1] < 3


def test_sides_of_unlike_size_are_held_against_each_other_too() -> None:
    rng = np.random.default_rng(6)
    few, many = curve(rng, range(32), hardness(rng, 32)), curve(rng, range(100, 228), hardness(rng, 128))
    result = loss_between(few, many, GOAL)
    errors = [np.std(-(len(c.seeds) - 1) * c.log_roots_without(GOAL), ddof=1) for c in (few, many)]
    assert result.error == pytest.approx(math.hypot(errors[0] / math.sqrt(32), errors[1] / math.sqrt(128)), rel=0.25)


def test_seeds_that_are_much_harder_on_one_side_leave_more_doubt() -> None:
    rng = np.random.default_rng(8)
    known = [hardness(rng, 64) for _ in range(2)]
    a, b = (curve(rng, range(i * 64, i * 64 + 64), hard) for i, hard in enumerate(known))
    shifted = known[1] + 0.2 + known[0].mean() - known[1].mean()
    near, far = loss_between(a, b, GOAL, known), loss_between(a, b, GOAL, [known[0], shifted])
    spread = sum(float(np.square(each - each.mean()).sum()) for each in known)
    gap = float(known[0].mean() - known[1].mean())
    grown = math.sqrt((2 / 64 + 0.2**2 / spread) / (2 / 64 + gap**2 / spread))  # as a line is less known far out
    assert far.error == pytest.approx(grown * near.error)
