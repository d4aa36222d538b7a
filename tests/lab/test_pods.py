"""Pods of a scaled fleet under open load: one GPU, whose scheduler calls the model in its own process."""

from functools import cache
from math import log
from statistics import fmean, median
from typing import Any, NamedTuple

import pandas as pd
import pytest
from scipy.optimize import brentq

from simserve import catalog, simulate
from simserve.scenario.loader import scenario_from
from simserve.scenario.setup import Distortion
from tests.lab.test_public import DATA

SAME_S = 5.0
"""Rows closer than this are one decision: the controller logged each twice."""
STEADY_FRAC = 0.06
"""In steady state, completions of a minute differ from those at the decision before by no more."""
BUSY_KV_FRAC, BUSY_ITL_MS = 0.8, 40.0
"""A pod beyond both has more requests than it can serve."""
POD: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "engine": {"name": "vllm", "version": "0.12"},
    "cluster": {"pools": [{}]},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 10},
        "lengths": {  # mean 231 and 463 tokens, the cap of the load jobs
            "kind": "lognormal",
            "prompt_tokens": {"median": 130, "sigma": 1.07, "max": 2048},
            "output_tokens": {"median": 370, "sigma": 0.9, "max": 1024},
        },
        "duration_s": 900,
    },
    "measure": {"warmup_s": 120},
}


class Served(NamedTuple):
    """Means of a simulated minute."""

    ttft_ms: float
    itl_ms: float


class Minute(NamedTuple):
    """What a controller read of the last minute when it decided about one pod."""

    run: str
    per_s: float
    """Completions."""
    ttft_ms: float
    itl_ms: float
    kv_frac: float
    is_steady: bool


@pytest.fixture(scope="module")
def minutes() -> list[Minute]:
    """Minutes of one pod that serves, one a decision."""
    if DATA is None or not (DATA / "fleet").is_dir():
        pytest.skip("the recorded fleet is not here")
    rows = pd.read_csv(DATA / "fleet" / "wva_decisions.csv", parse_dates=["time_utc"]).sort_values(["run", "time_utc"])
    rows = rows[~(rows.groupby("run").time_utc.diff().dt.total_seconds() < SAME_S)]
    before = rows.groupby("run").shift()
    kept = (rows.arrival_rate_per_min / before.arrival_rate_per_min - 1).abs() < STEADY_FRAC
    rows["is_steady"] = kept & (rows.current_replicas == 1) & (before.current_replicas == 1)
    rows["per_s"] = rows.arrival_rate_per_min / 60
    rows["kv_frac"] = pd.to_numeric(rows.pods_kv_usage_max_1m, errors="coerce")  # none: several pods report
    is_one = rows.kv_frac.notna() & (rows.ready_replicas.fillna(1) == 1) & (rows.per_s > 0) & (rows.itl_ms > 0)
    return [Minute(*row) for row in rows.loc[is_one, list(Minute._fields)].itertuples(index=False, name=None)]


@cache
def served(per_s: float, host: float = 1.0, request_host_s: float | None = None) -> Served:
    """Return what vLLM would report at that load: the times per token are means over tokens."""
    workload = POD["workload"] | {"arrivals": {"kind": "poisson", "rate_per_s": per_s}}
    scenario = scenario_from(POD | {"workload": workload, "engine": POD["engine"] | {"request_host_s": request_host_s}})
    requests = simulate(scenario, distortion=Distortion(host=host)).requests.query("in_window")
    after_first_s = (requests.e2e_s - requests.ttft_s).sum()
    return Served(1e3 * requests.ttft_s.mean(), 1e3 * after_first_s / (requests.output_tokens - 1).sum())


def steady(minutes: list[Minute], least: float = 0.0, most: float = 30.0, month: str = "") -> list[Minute]:
    """Return the minutes in steady state with so many completions a second."""
    return [each for each in minutes if each.is_steady and least < each.per_s < most and month in each.run]


def median_itl_ms(minutes: list[Minute]) -> float:
    return median(each.itl_ms for each in minutes)


def test_minutes_that_count_are_of_one_pod_in_steady_state(minutes: list[Minute]) -> None:
    ten, twenty = steady(minutes, 9, 11), steady(minutes, 19, 21)
    assert (len(ten), len(twenty), len(steady(minutes))) == (2, 4, 8)
    assert (median_itl_ms(ten), median_itl_ms(twenty)) == pytest.approx((10.54, 17.49))
    assert max(each.kv_frac for each in steady(minutes)) < 0.6


def test_a_pod_answers_as_fast_as_predicted_without_any_factor(minutes: list[Minute]) -> None:
    pairs = [(served(each.per_s), each) for each in steady(minutes)]
    assert fmean(abs(ours.itl_ms / each.itl_ms - 1) for ours, each in pairs) < 0.05
    assert fmean(abs(ours.ttft_ms / each.ttft_ms - 1) for ours, each in pairs) < 0.06


@pytest.mark.thorough
@pytest.mark.parametrize("month", ["202511", "202512"])
def test_the_host_time_of_a_request_is_the_same_in_both_months(minutes: list[Minute], month: str) -> None:
    def bias(host_s: float) -> float:
        return fmean(log(served(each.per_s, 1.0, host_s).itl_ms / each.itl_ms) for each in steady(minutes, month=month))

    shipped_s = catalog.load_engine("vllm", version="0.12", n_gpus=1).request_host_s
    assert brentq(bias, 5e-6, 30e-6, xtol=1e-7) == pytest.approx(shipped_s, rel=0.06)


def test_a_factor_on_host_time_of_one_load_carries_over_to_another(minutes: list[Minute]) -> None:
    ten, twenty = steady(minutes, 9, 11), steady(minutes, 19, 21)
    factor = brentq(lambda host: served(10, host).itl_ms / median_itl_ms(ten) - 1, 0.2, 3, xtol=1e-2)
    assert 0.9 < factor < 1.2
    assert served(20.2, factor).itl_ms == pytest.approx(median_itl_ms(twenty), rel=0.05)


def test_a_pod_with_more_than_it_can_serve_completes_as_many(minutes: list[Minute]) -> None:
    busy = [each.per_s for each in minutes if each.kv_frac > BUSY_KV_FRAC and each.itl_ms > BUSY_ITL_MS]
    workload = POD["workload"] | {"arrivals": {"kind": "poisson", "rate_per_s": 40}, "duration_s": 600}
    finish_s = simulate(POD | {"workload": workload}).requests.finish_s
    assert len(busy) > 8
    assert finish_s.between(300, 600).sum() / 300 == pytest.approx(median(busy), rel=0.08)
