"""Costs cancel in a comparison as far as one error stands behind both sides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import load_scenario
from simserve.metrics.margin import Margin
from simserve.study.capacity.drawn_loads import RatioCurve
from simserve.study.compare.carried_load import SideCosts, with_costs
from tests.cli.scenarios import write_scenario
from tests.study.capacity.test_load_margin import GOAL, LOADS, SPREAD, STEEP, costs, point

NOISE = Margin(0.0, 0.01, 31)


def side(folder: Path, *highest: float, server_sd: float = 0.0, **changes: Any) -> SideCosts:
    """A side whose highest load is 1, and that of its draws at those multiples of it."""
    curve = RatioCurve.of([point(load) for load in LOADS], GOAL, len(highest))
    assert curve is not None
    scenario = load_scenario(write_scenario(folder, **changes))
    return SideCosts(scenario, costs(*highest, server_sd=server_sd), curve, 1.0)


def test_what_a_draw_does_to_both_sides_cancels(tmp_path: Path) -> None:
    margin = with_costs(NOISE, side(tmp_path, *SPREAD), side(tmp_path, *SPREAD))
    assert (margin.cost_sd, margin.noise_sd) == (0.0, 0.01)
    assert margin.interval(0.95) == NOISE.interval(0.95)


def test_draws_of_their_own_are_off_by_the_spread_of_their_differences(tmp_path: Path) -> None:
    other = SPREAD[3:] + SPREAD[:3]
    margin = with_costs(NOISE, side(tmp_path, *SPREAD), side(tmp_path, *other))
    assert margin.cost_sd == pytest.approx((np.log(other) - np.log(SPREAD)).std(ddof=1), rel=0.05)
    assert margin.n_cost_free == 7


def test_errors_of_like_servers_cancel_and_those_of_others_add_up(tmp_path: Path) -> None:
    a, b = (side(tmp_path, 1.0, 1.0, server_sd=0.2) for _ in range(2))
    assert with_costs(NOISE, a, b).points.std() == pytest.approx(0.0, abs=1e-9)
    other = side(tmp_path, 1.0, 1.0, server_sd=0.2, gpu="h200-sxm")
    assert with_costs(NOISE, a, other).points.std() == pytest.approx(0.2 * 2**0.5 / STEEP, rel=0.05)
