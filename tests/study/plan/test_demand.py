"""What a scenario asks of a fleet: at its peak, on average, hour by hour."""

from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, load_scenario
from simserve.errors import SimserveError
from simserve.study.plan.options import PEAK_WARM_UP_S, demand_of
from tests.cli.scenarios import write_scenario

LENGTHS = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}


def with_workload(folder: Path, **workload: Any) -> Scenario:
    return load_scenario(write_scenario(folder, workload={"lengths": LENGTHS, **workload}))


def diurnal(folder: Path, rates: list[float], period_s: float, **more: Any) -> Scenario:
    arrivals = {"kind": "diurnal", "rates_per_s": rates, "period_s": period_s, **more}
    return with_workload(folder, arrivals=arrivals, duration_s=period_s)


def test_a_steady_load_is_sized_for_as_it_is(tmp_path: Path) -> None:
    scenario = with_workload(tmp_path, arrivals={"kind": "poisson", "rate_per_s": 8}, n_requests=40)
    result = demand_of(scenario)
    assert (result.kind, result.mean_load_frac, result.hours) == ("arrivals", 1.0, ())
    assert result.sized is scenario
    assert not result.is_deterministic


def test_a_diurnal_load_is_sized_for_its_highest_rate_held_steady(tmp_path: Path) -> None:
    result = demand_of(diurnal(tmp_path, [2.0, 8.0, 4.0, 2.0], 4 * 3600, burstiness=0.5))
    assert result.kind == "diurnal"
    assert result.sized.workload.arrivals == {"kind": "gamma", "rate_per_s": 8.0, "burstiness": 0.5}
    assert result.sized.workload.duration_s == PEAK_WARM_UP_S + 900
    assert result.mean_load_frac == 4.0 / 8.0  # of 2, 8, 4 and 2, linear in between and periodic
    assert result.sized.origins["model"] == "explicit"  # what was written is still known


@pytest.mark.parametrize(("peak", "lasts_s"), [(8.0, 900.0), (0.5, 2000.0), (40.0, 500.0), (1000.0, 180.0)])
def test_the_peak_lasts_for_enough_requests_but_not_for_too_many(tmp_path: Path, peak: float, lasts_s: float) -> None:
    result = demand_of(diurnal(tmp_path, [0.0, peak], 86_400))
    assert result.sized.workload.duration_s == PEAK_WARM_UP_S + lasts_s


def test_each_hour_has_its_highest_rate(tmp_path: Path) -> None:
    """Points every two hours; the last hour falls back toward the first point."""
    result = demand_of(diurnal(tmp_path, [0.0, 8.0, 4.0], 6 * 3600))
    assert result.hours == pytest.approx((0.5, 1.0, 1.0, 0.75, 0.5, 0.25))


def test_a_point_within_an_hour_counts(tmp_path: Path) -> None:
    result = demand_of(diurnal(tmp_path, [0.0, 8.0], 3600))
    assert result.hours == pytest.approx((1.0,))


def test_a_replayed_trace_is_the_same_with_every_seed_unless_it_is_spread(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + 3 * "0,8,2\n" + 3 * "1,8,2\n")
    for spread, is_deterministic in (("none", True), ("uniform", False)):
        trace = {"path": str(tmp_path / "a.csv"), "spread": spread}
        result = demand_of(load_scenario(write_scenario(tmp_path, workload={"trace": trace})))
        assert (result.kind, result.is_deterministic) == ("trace", is_deterministic)


def test_a_closed_loop_is_no_demand(tmp_path: Path) -> None:
    loop = with_workload(tmp_path, client={"kind": "closed_loop", "concurrency": 4}, n_requests=40)
    with pytest.raises(SimserveError, match=r"tiny: workload.client: a plan needs a demand with a rate.*; give"):
        demand_of(loop)
