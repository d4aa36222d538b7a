"""A side finds the loads that its goal lies between, whatever it is that runs."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from simserve import Scenario, load_scenario
from simserve.errors import NoArrivals
from simserve.metrics.figures import Summary
from simserve.metrics.tails import Sample
from simserve.study.check import side as side_module
from simserve.study.check.gate import AttainmentCurve
from simserve.study.check.side import Boundless, GateSide, Grid
from simserve.study.fleet import at_scale
from simserve.study.run_seeds import Run
from tests.cli.scenarios import write_scenario
from tests.summaries import summary_of

GOAL = 0.99
N_ARRIVED = 10_000
RATE_PER_S = 8.0
"""Of the scenario itself."""


NO_SAMPLE = Sample({}, 1.0, None, None)


class Server:
    """Stands in for simulations: misses 1% at `capacity`, and e^steepness times that where the load is e times it.

    Under the `least` load nobody arrives.
    """

    def __init__(self, capacity: float, steepness: float, least: float = 0.0) -> None:
        self.capacity = capacity
        self.least = least
        self.steepness = steepness
        self.n_runs = 0

    def each_run(self, _: object, scenarios: Sequence[Scenario], seeds: Sequence[int]) -> list[list[Run]]:
        return [[Run(self._run(each, seed), NO_SAMPLE) for seed in seeds] for each in scenarios]

    def _run(self, scenario: Scenario, seed: int) -> Summary:
        self.n_runs += 1
        assert scenario.workload.arrivals is not None
        scale = scenario.workload.arrivals["rate_per_s"] / RATE_PER_S
        if scale < self.least:
            raise NoArrivals("workload.arrivals: got none")
        odds = math.exp(min(self.steepness * math.log(scale / self.capacity), 30.0)) / 99
        n_missed = min(round(N_ARRIVED * odds / (1 + odds)) + seed % 2, N_ARRIVED)
        return summary_of({"slo_attainment": {"n_met": N_ARRIVED - n_missed, "n_arrived": N_ARRIVED}})


def side(folder: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> GateSide:
    monkeypatch.setattr(side_module, "each_run", server.each_run)
    return GateSide(load_scenario(write_scenario(folder)), GOAL)


def test_loads_of_a_grid_are_a_ratio_apart() -> None:
    grid = Grid.around(2.0, 1.08)
    assert (grid.scale(0), grid.scale(1)) == (1.925, 2.078)
    assert grid.scale(2) == pytest.approx(2.078 * 1.0795, rel=1e-3)
    assert grid.at(-1).scale(1) == grid.scale(0)


@pytest.mark.parametrize("capacity", [0.05, 0.93, 1.0, 7.3])
def test_a_grid_is_found_wherever_the_goal_lies(
    capacity: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = side(tmp_path, monkeypatch, Server(capacity, 17)).find_grid()
    assert isinstance(result, Grid)
    assert result.below < capacity < result.above == pytest.approx(1.08 * result.below, rel=1e-3)


def test_where_misses_rise_steeply_the_loads_are_nearer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = side(tmp_path, monkeypatch, Server(1.3, 300)).find_grid()
    assert isinstance(result, Grid)
    assert result.below < 1.3 < result.above < 1.02 * result.below


@pytest.mark.parametrize("lost_frac", [0.0, 0.05, 0.3, -0.4])
def test_what_was_lost_is_found_near_and_far(lost_frac: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = side(tmp_path, monkeypatch, Server(1 - lost_frac, 17)).curve(Grid.around(1.0, 1.08), 32)
    assert isinstance(result, AttainmentCurve)
    assert math.exp(result.log_root(GOAL)) == pytest.approx(1 - lost_frac, rel=0.003)


def test_no_more_is_run_than_two_loads_where_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(1.0, 17)
    requested = side(tmp_path, monkeypatch, server)
    requested.curve(Grid.around(1.0, 1.08), 32)
    assert server.n_runs == 64
    requested.curve(Grid.around(1.0, 1.08), 64)
    assert server.n_runs == 128  # those that were run are kept


@pytest.mark.parametrize(("capacity", "is_met"), [(1e9, True), (1e-9, False)])
def test_where_every_load_holds_or_none_it_says_so(
    capacity: float, is_met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = side(tmp_path, monkeypatch, Server(capacity, 17)).curve(Grid.around(1.0, 1.08), 32)
    assert isinstance(result, Boundless)
    assert result.is_met == is_met


def test_where_no_load_holds_the_grid_ends_where_nobody_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = side(tmp_path, monkeypatch, Server(1e-9, 17, least=0.3)).curve(Grid.around(1.0, 1.08), 32)
    assert isinstance(result, Boundless)
    assert not result.is_met
    assert 0.3 <= result.scale < 0.3 * 1.09


def test_a_load_that_holds_is_found_though_nobody_comes_far_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = side(tmp_path, monkeypatch, Server(0.35, 17, least=0.3)).curve(Grid.around(1.0, 1.08), 32)
    assert isinstance(result, AttainmentCurve)
    assert math.exp(result.log_root(GOAL)) == pytest.approx(0.35, rel=0.003)


def test_none_of_none_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = summary_of({"slo_attainment": {"n_met": 0, "n_arrived": 0}})
    monkeypatch.setattr(side_module, "each_run", lambda kept, scenarios, seeds: [[(empty, NO_SAMPLE) for _ in seeds]])
    result = GateSide(load_scenario(write_scenario(tmp_path)), GOAL).find_grid()
    assert isinstance(result, Boundless)
    assert not result.is_met


def test_what_is_like_the_baseline_is_read_off_the_same_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid.around(0.8, 1.08)  # far from where the goal lies
    scales = grid.below, grid.above
    counts = [
        [run.attained for run, _ in Server(1.0, 17).each_run(None, [at], range(3, 35))[0]]
        for at in (at_scale(load_scenario(write_scenario(tmp_path)), scale) for scale in scales)
    ]
    met, arrived = (
        np.array([[getattr(each, key) for each in row] for row in counts]) for key in ("n_met", "n_arrived")
    )
    requested = side(tmp_path, monkeypatch, Server(1.0, 17))
    alike = requested.curve(grid, 32, like=AttainmentCurve(scales, met, arrived, tuple(range(3, 35))))
    assert isinstance(alike, AttainmentCurve)
    assert alike.scales == scales
    other = requested.curve(grid, 32)
    assert isinstance(other, AttainmentCurve)
    assert other.scales[0] > 0.9
