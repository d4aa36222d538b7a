"""Replications of a run: whose files stay, what is said of all runs, and when a search for a precision stops."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, load_scenario, simulate
from simserve.errors import SimserveError
from simserve.metrics.figures import Summary
from simserve.metrics.goodput import FatesJson
from simserve.metrics.reduction import Contents
from simserve.metrics.results import Results
from simserve.metrics.tails import Sample
from simserve.study import precision
from simserve.study.intervals import mean_of, percentile_of, share_of
from simserve.study.precision import (
    FIRST_SEEDS,
    RECORDED,
    Precision,
    add_replications,
    estimate,
    wanted_runs,
)
from simserve.study.run_figures import MEASURES
from simserve.study.slo_answer import MOST_SEEDS
from tests.cli.scenarios import write_scenario
from tests.summaries import summary_of


@pytest.fixture
def small(tmp_path: Path) -> Scenario:
    """300 requests."""
    return load_scenario(write_scenario(tmp_path), overrides=["workload.n_requests=300"])


def test_the_files_stay_those_of_the_first_run_and_the_others_are_rows(small: Scenario) -> None:
    results = simulate(small)
    arrivals = results.columns["requests"]["arrival_s"].copy()
    add_replications(small, results, 3)
    assert np.array_equal(results.columns["requests"]["arrival_s"], arrivals)
    others = [simulate(small.model_copy(update={"seed": small.seed + i})).summary for i in range(3)]
    table, result = results.columns["replications"], results.summary["replications"]
    assert table["seed"].tolist() == result["seeds"] == [small.seed + i for i in range(3)]
    p50s = [other["ttft_s"]["p50"] for other in others]
    assert table["ttft_s.p50"].tolist() == p50s
    known = mean_of(p50s)
    assert result["measures"]["ttft_s.p50"] == {"mean": known.value, "low": known.low, "high": known.high}
    assert result["n_requests"] == sum(other["requests"]["arrived"] for other in others)
    assert sum(result["states"].values()) == result["n"] == 3


def test_every_measure_is_recorded() -> None:
    assert {measure.key for measure in MEASURES} <= {measure.key for measure in RECORDED}


def test_what_a_run_lacks_has_neither_mean_nor_interval() -> None:
    runs = [summary(0.99, p50=value) for value in (1.0, None, 3.0)]
    assert math.isnan(estimate(measure("ttft_s.p50"), runs).value)


def summary(frac: float, n_effective: float = 1000.0, **levels: Any) -> Summary:
    trust = {"n_worth": n_effective, "steady": "steady"}
    given = {"slo_attainment": {"frac": frac}, "ttft_s": levels, "trust": trust, "requests": {"arrived": 1000}}
    return summary_of(given)


def measure(key: str) -> Any:
    return next(each for each in RECORDED if each.key == key)


def test_attainments_of_runs_that_hardly_miss_are_no_surer_than_all_their_requests() -> None:
    runs = [summary(1.0, n_effective=10.0) for _ in range(10)]
    result = estimate(measure("slo_attainment.frac"), runs)
    assert (result.value, result.high) == (1.0, 1.0)
    assert result.low == pytest.approx(100 / (100 + 1.959964**2))  # Wilson's for 100 without a miss
    surely = share_of([0.5, 0.6, 0.7], 1000.0)
    assert surely == mean_of([0.5, 0.6, 0.7])


def test_a_p99_of_runs_too_short_for_it_is_open_above() -> None:
    values = [1.0, 2.0, 3.0]
    assert percentile_of(values, 0.01, 199.0).high == math.inf
    values = [2.0, 2.1, 2.3]
    assert percentile_of(values, 0.01, 201.0) == mean_of(values)
    assert percentile_of(values, 0.1, 21.0) == mean_of(values)


def test_an_interval_of_a_percentile_holds_no_negative_latency() -> None:
    values = [1.0, 2.0, 3.0]
    assert mean_of(values).low < 0 and percentile_of(values, 0.01, 201.0).low == 0
    assert math.isnan(percentile_of([1.0], 0.01, 201.0).low)


class Runs:
    """Stands for the simulator: p50s drawn at will."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, small: Scenario, spread: float) -> None:
        self.scenario = small.model_copy(update={"seed": 0})
        self.values = (1.0 + spread * np.random.default_rng(4).normal(size=MOST_SEEDS)).tolist()
        self.seeds: list[int] = []
        monkeypatch.setattr(precision, "each_run", self.each_run)

    def each_run(self, kept: Any, scenarios: Any, seeds: range) -> list[list[Any]]:
        self.seeds += seeds
        return [[(self.summary(seed), Sample({}, 1.0, None, None)) for seed in seeds]]

    def summary(self, seed: int) -> Summary:
        requests = FatesJson(arrived=10, finished=10, rejected=0, timed_out=0)
        return summary(0.99, p50=abs(self.values[seed]), p99=None).model_copy(update={"requests": requests})

    def search(self, half_frac: float) -> dict[str, Any]:
        results = Results(None, "", Contents({}, self.summary(0), {}))  # type: ignore[arg-type]
        add_replications(self.scenario, results, Precision("ttft_s.p50", half_frac))
        result: dict[str, Any] = results.summary["replications"]
        return result


def test_a_precision_that_the_first_seeds_have_takes_no_more(monkeypatch: pytest.MonkeyPatch, small: Scenario) -> None:
    runs = Runs(monkeypatch, small, 0.01)
    result = runs.search(0.05)
    assert runs.seeds == list(range(1, FIRST_SEEDS))
    assert result["precision"]["is_reached"]
    assert result["precision"]["reached_frac"] <= 0.05


def test_seeds_are_added_until_the_interval_is_narrow_enough_and_none_is_run_twice(
    monkeypatch: pytest.MonkeyPatch, small: Scenario
) -> None:
    runs = Runs(monkeypatch, small, 0.1)
    result = runs.search(0.03)
    assert runs.seeds == list(range(1, result["n"]))
    assert 2.0 * 0.1 / math.sqrt(result["n"]) == pytest.approx(0.03, rel=0.35)
    assert result["precision"] == {"of": "ttft_s.p50", "asked_frac": 0.03, "is_reached": True} | {
        "reached_frac": result["precision"]["reached_frac"]
    }


def test_a_precision_out_of_reach_ends_at_the_most_seeds_and_says_so(
    monkeypatch: pytest.MonkeyPatch, small: Scenario
) -> None:
    result = Runs(monkeypatch, small, 0.5).search(0.01)
    assert result["n"] == MOST_SEEDS
    assert not result["precision"]["is_reached"]
    assert result["precision"]["reached_frac"] > 0.05


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((1, None, None), "--replications: must be from 2 to 128, got 1"),
        ((129, None, None), "--replications: must be from 2 to 128, got 129"),
        ((5, 0.05, None), "--precision: must stand alone, got --replications too"),
        ((None, None, "ttft_s.p99"), "--of: must stand beside --precision"),
        ((3, None, "ttft_s.p99"), "--of: must stand beside --precision"),
        ((None, 0.0, None), "--precision: must be a share between 0 and 1, got 0.0"),
        ((None, 5.0, None), "--precision: must be a share between 0 and 1, got 5.0"),
        ((None, 0.05, "ttft.p99"), "--of: must name a measure, got 'ttft.p99'; did you mean ttft_s.p99?"),
    ],
)
def test_options_that_make_no_sense_are_told(options: Any, text: str) -> None:
    with pytest.raises(SimserveError) as raised:
        wanted_runs(*options)
    assert str(raised.value).startswith(text)


def test_a_measure_that_the_run_lacks_is_told(small: Scenario) -> None:
    results = simulate(small)
    results.put(slo_attainment=None)
    with pytest.raises(SimserveError, match=r"--of: must name a measure that the run has, got 'slo_attainment\.frac'"):
        add_replications(small, results, Precision("slo_attainment.frac", 0.01))


def test_options_become_a_number_or_a_precision() -> None:
    assert wanted_runs(7, None, None) == 7
    assert wanted_runs(None, 0.05, None) == Precision("ttft_s.p99", 0.05)
    assert wanted_runs(None, 0.05, "e2e_s.mean") == Precision("e2e_s.mean", 0.05)
