"""Arrival processes against theory, on seeded draws; and the promises that all of them keep."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve import plugins
from simserve.errors import PolicyError
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.info import gap_cv, index_of_dispersion
from simserve.workload.streams import streams

SPECS: dict[str, Any] = {
    "constant": {"kind": "constant", "rate_per_s": 8},
    "poisson": {"kind": "poisson", "rate_per_s": 8},
    "gamma": {"kind": "gamma", "rate_per_s": 8, "burstiness": 0.25},
    "mmpp": {"kind": "mmpp", "rates_per_s": [4, 24], "mean_dwell_s": [20, 5]},
    "diurnal": {"kind": "diurnal", "rates_per_s": [2, 14], "period_s": 200},
}
"""Processes with a long-run rate of 8 per second."""


def first(spec: Any, n: int, seed: int = 0) -> NDArray[np.float64]:
    process: Arrivals = plugins.build("workload.arrivals", spec)
    return process.first(n, streams(seed))


@pytest.mark.parametrize("kind", SPECS)
def test_the_long_run_rate_is_the_one_asked_for(kind: str) -> None:
    n = 200_000
    assert n / first(SPECS[kind], n)[-1] == pytest.approx(8, rel=0.04)


@pytest.mark.parametrize("kind", SPECS)
def test_as_many_are_expected_in_a_window_as_are_drawn_on_average(kind: str) -> None:
    process: Arrivals = plugins.build("workload.arrivals", SPECS[kind])
    expected = process.expected(30.0, 470.0)
    drawn = [process.until(470.0, streams(seed)) for seed in range(100)]
    mean = np.mean([np.count_nonzero(arrival_s >= 30.0) for arrival_s in drawn])
    assert mean == pytest.approx(expected, rel=0.03)


def test_what_is_expected_is_worked_out_by_hand() -> None:
    def expected(spec: Any, start_s: float, end_s: float) -> float | None:
        process: Arrivals = plugins.build("workload.arrivals", spec)
        return process.expected(start_s, end_s)

    assert expected({"kind": "mmpp", "rates_per_s": [8, 40], "mean_dwell_s": [20, 5]}, 0, 10) == pytest.approx(144)
    assert expected({"kind": "diurnal", "rates_per_s": [0, 20], "period_s": 100}, 0, 50) == pytest.approx(500)
    assert expected({"kind": "diurnal", "rates_per_s": [0, 20], "period_s": 100}, 75, 225) == pytest.approx(1250)
    assert expected({"kind": "constant", "rate_per_s": 10}, 0.0, 0.5) == 6  # at 0, 0.1, ... and 0.5 s
    assert expected({"kind": "vllm_bench", "rate_per_s": 10}, 0.0, 40.0) == 400
    assert expected({"kind": "vllm_bench", "rate_per_s": float("inf")}, 0.0, 40.0) is None
    assert Arrivals().expected(0.0, 1.0) is None


@pytest.mark.parametrize("kind", SPECS)
def test_fewer_arrivals_are_the_first_of_more(kind: str) -> None:
    assert first(SPECS[kind], 500).tolist() == pytest.approx(first(SPECS[kind], 5000)[:500].tolist(), abs=1e-9)


@pytest.mark.parametrize("kind", SPECS)
def test_arrivals_until_an_instant_are_those_before_it(kind: str) -> None:
    process: Arrivals = plugins.build("workload.arrivals", SPECS[kind])
    until = process.until(50.0, streams(3))
    more = process.first(len(until) + 1, streams(3))
    assert until[-1] < 50.0 <= more[-1]
    assert np.all(np.diff(until) >= 0)


def test_gaps_of_a_gamma_process_have_the_burstiness_asked_for() -> None:
    assert gap_cv(first(SPECS["poisson"], 100_000)) == pytest.approx(1.0, rel=0.02)
    assert gap_cv(first(SPECS["gamma"], 100_000)) == pytest.approx(2.0, rel=0.03)
    assert gap_cv(first(SPECS["constant"], 1000)) == pytest.approx(0.0, abs=1e-9)


def test_a_poisson_process_has_an_index_of_dispersion_of_one_and_mmpp_a_larger_one() -> None:
    poisson, bursty = first(SPECS["poisson"], 200_000), first(SPECS["mmpp"], 200_000)
    assert index_of_dispersion(poisson, 10.0) == pytest.approx(1.0, abs=0.1)
    dispersion = index_of_dispersion(bursty, 10.0)
    assert dispersion is not None
    assert dispersion > 10


def test_mmpp_starts_in_its_stationary_mix() -> None:
    spec = {"kind": "mmpp", "rates_per_s": [1, 50], "mean_dwell_s": [30, 10]}
    starts_fast = [first(spec, 20, seed)[-1] < 2.0 for seed in range(800)]
    assert np.mean(starts_fast) == pytest.approx(10 / 40, abs=0.06)


def test_runs_at_other_rates_share_their_randomness() -> None:
    slow, fast = first({"kind": "poisson", "rate_per_s": 2}, 100), first({"kind": "poisson", "rate_per_s": 8}, 100)
    assert (slow / 4).tolist() == pytest.approx(fast.tolist())


def test_a_diurnal_process_follows_its_curve() -> None:
    arrival_s = first({"kind": "diurnal", "rates_per_s": [0, 20], "period_s": 100}, 50_000)
    in_period = np.histogram(arrival_s % 100, bins=4, range=(0, 100))[0] / len(arrival_s)
    assert in_period.tolist() == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=0.01)


def test_the_last_request_of_a_vllm_benchmark_leaves_at_n_over_rate() -> None:
    arrival_s = first({"kind": "vllm_bench", "rate_per_s": 10, "burstiness": 0.5}, 400)
    assert arrival_s[-1] == pytest.approx(40.0)
    assert first({"kind": "vllm_bench", "rate_per_s": float("inf")}, 5).tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"kind": "poisson", "rate_per_s": 0}, "rate_per_s"),
        ({"kind": "poisson", "rate_per_s": -1}, "rate_per_s"),
        ({"kind": "poisson", "rate_per_s": float("nan")}, "rate_per_s"),
        ({"kind": "poisson"}, "rate_per_s"),
        ({"kind": "mmpp", "rates_per_s": [1, 2], "mean_dwell_s": [1]}, "dwell"),
        ({"kind": "diurnal", "rates_per_s": [0, 0]}, "above zero"),
        ({"kind": "diurnal", "rates_per_s": [1, 1e308]}, "rates_per_s.1: must be at most"),
        ({"kind": "poissn", "rate_per_s": 1}, "did you mean poisson"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_word_on_why(spec: dict[str, object], word: str) -> None:
    with pytest.raises(PolicyError, match=word):
        first(spec, 10)


def test_streams_are_apart_by_purpose_and_alike_by_seed() -> None:
    one = streams(1)
    assert one("arrivals").random() == streams(1)("arrivals").random()
    assert len({one("arrivals").random(), one("lengths/prompt").random(), streams(2)("arrivals").random()}) == 3
