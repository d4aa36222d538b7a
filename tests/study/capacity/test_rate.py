"""The search finds the highest load that holds, and says how well it knows it."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, load_scenario
from simserve.errors import SimserveError, TooManyArrivals
from simserve.metrics.decision import SURE_BY_NOISE, Effort
from simserve.study.capacity.boundary import Boundary, Unbounded
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study
from simserve.study.fleet import at_scale
from simserve.study.run_seeds import Run
from simserve.workload import size
from tests.cli.scenarios import write_scenario
from tests.effort import is_thorough, runs
from tests.study.served import highest_rate, of_ratios
from tests.summaries import summary_of

TARGET_S = 5.0
GOAL = 0.99
N = 3000


def scenario(folder: Path, *overrides: str) -> Scenario:
    return load_scenario(write_scenario(folder), overrides=overrides)


def single_server(scale: float, seeds: Sequence[int]) -> list[Run]:
    """An M/M/1 queue of rate scale / 2 and service rate 1; who waits no longer than TARGET_S is served well."""
    runs = []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        arrival_s = np.cumsum(generator.standard_exponential(N)) / (scale / 2)
        service_s = generator.standard_exponential(N)
        # Lindley: a wait is what is left of the work that came before, the running excess over its own minimum.
        excess = np.concatenate([[0.0], np.cumsum(service_s[:-1] - np.diff(arrival_s))])
        wait_s = excess - np.minimum.accumulate(excess)
        met = wait_s[N // 10 :] <= TARGET_S
        frac = float(met.mean())
        attained = {"n_met": int(met.sum()), "n_arrived": len(met), "frac": frac, "by_slo": {"ttft_s": frac}}
        latency = {"p50": 1.0, "p90": 1.0, "p99": 1.0}
        result: dict[str, Any] = {"offered_per_s": scale / 2, "slo_attainment": attained, "trust": {"saturated": False}}
        result |= {"requests": {"arrived": len(met)}}
        result |= dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s"), latency)
        runs.append(Run(summary_of(result), of_ratios(wait_s[N // 10 :] / TARGET_S)))
    return runs


def of_other_seeds(first: int, scale: float, seeds: Sequence[int]) -> list[Run]:
    return single_server(scale, [first + seed for seed in seeds])


def true_rate() -> float:
    """Where P(wait > t) = rho exp(-(1 - rho) t) is what may miss."""
    low, high = 0.01, 0.99
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.exp(-(1 - middle) * TARGET_S) < 1 - GOAL else (low, middle)
    return low


def requested(folder: Path, precision_frac: float = 0.03) -> CapacityQuestion:
    return CapacityQuestion(scenario(folder), GOAL, precision_frac, Effort(128))


def test_the_search_finds_the_rate_that_queueing_theory_has(tmp_path: Path) -> None:
    result = highest_rate(requested(tmp_path), single_server)
    assert isinstance(result, Boundary)
    assert result.half_frac <= 0.03
    assert result.offered_per_s.value == pytest.approx(true_rate(), rel=0.03)
    assert result.below.attained_frac >= GOAL > result.above.attained_frac
    assert result.above.scale / result.below.scale < 1.03


@pytest.mark.law("coverage")
def test_its_interval_holds_the_true_rate_about_as_often_as_it_says(tmp_path: Path) -> None:
    question = requested(tmp_path, 0.5)
    held = []
    n = runs(300, quick=75)
    for first in range(0, 40 * n, 40):
        result = highest_rate(question, partial(of_other_seeds, first))
        assert isinstance(result, Boundary)
        held.append(result.offered_per_s.low <= true_rate() <= result.offered_per_s.high)
    assert abs(np.mean(held) - 0.95) <= 2.5 * (0.95 * 0.05 / n) ** 0.5  # two and a half standard errors: 0.03 of 300


@pytest.mark.law("coverage")
def test_the_load_to_count_on_meets_the_goal_as_often_as_it_says_and_is_not_far_below(tmp_path: Path) -> None:
    question = CapacityQuestion(scenario(tmp_path, "slo={ttft_s: 0.5}"), GOAL, 0.5, Effort(128))
    shares = []
    n = runs(300, quick=75)
    for first in range(0, 40 * n, 40):
        answer = study(question, partial(of_other_seeds, first)).answer
        assert answer.question == "rate" and answer.answer is not None and answer.answer.load.count_on is not None
        shares.append(answer.answer.load.count_on / true_rate())
    assert np.mean(np.array(shares) <= 1) >= SURE_BY_NOISE - 2.5 * (SURE_BY_NOISE * (1 - SURE_BY_NOISE) / n) ** 0.5
    assert np.median(shares) > 0.8  # of eight runs of 3,000 requests


def test_more_seeds_are_run_until_the_interval_is_narrow_enough(tmp_path: Path) -> None:
    wide, narrow = (highest_rate(requested(tmp_path, precision), single_server) for precision in (0.5, 0.03))
    assert isinstance(wide, Boundary)
    assert isinstance(narrow, Boundary)
    assert len(wide.at.runs) == 8 < len(narrow.at.runs)
    assert narrow.half_frac <= 0.03


def test_where_every_load_holds_it_says_where_it_stopped(tmp_path: Path) -> None:
    result = highest_rate(CapacityQuestion(scenario(tmp_path, "slo={e2e_s: 1000}", "workload.n_requests=4"), 0.5, 0.03))
    assert isinstance(result, Unbounded)
    assert result.is_met
    assert result.last.scale == 1024


def test_where_no_load_holds_it_says_what_fails(tmp_path: Path) -> None:
    result = highest_rate(CapacityQuestion(scenario(tmp_path, "slo.ttft_s=0.001"), GOAL, 0.03))
    assert isinstance(result, Unbounded)
    assert not result.is_met
    assert result.last.by_slo() == {"ttft_s": 0.0, "tpot_s": 1.0}


def test_a_real_server_has_a_rate_too(tmp_path: Path) -> None:
    result = highest_rate(
        CapacityQuestion(scenario(tmp_path, "workload.n_requests=400"), 0.9, 0.1 if is_thorough() else 0.3)
    )
    assert isinstance(result, Boundary)
    assert result.load.low < result.load.value < result.load.high
    assert result.below.scale <= result.load.value <= result.above.scale


@pytest.mark.thorough
def test_the_same_question_has_the_same_answer(tmp_path: Path) -> None:
    question = CapacityQuestion(scenario(tmp_path, "workload.n_requests=200"), 0.9, 0.2)
    one, other = highest_rate(question), highest_rate(question)
    assert isinstance(one, Boundary)
    assert isinstance(other, Boundary)
    assert one.offered_per_s == other.offered_per_s


def test_it_needs_an_slo(tmp_path: Path) -> None:
    with pytest.raises(SimserveError, match=r"tiny: needs an SLO, got none; give one"):
        highest_rate(CapacityQuestion(load_scenario(write_scenario(tmp_path, slo={})), GOAL, 0.03))


def test_it_needs_a_rate(tmp_path: Path) -> None:
    client = {"client": {"kind": "closed_loop", "concurrency": 4}, "n_requests": 40}
    lengths = {"lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}}
    loop = load_scenario(write_scenario(tmp_path, workload=client | lengths))
    with pytest.raises(SimserveError, match="tiny: workload: needs a rate to search over"):
        highest_rate(CapacityQuestion(loop, GOAL, 0.03))


@pytest.mark.parametrize(
    ("arrivals", "scaled"),
    [
        ({"kind": "poisson", "rate_per_s": 8}, {"rate_per_s": 12.0}),
        ({"kind": "mmpp", "rates_per_s": [8, 40], "mean_dwell_s": [20, 5]}, {"rates_per_s": [12.0, 60.0]}),
    ],
)
def test_a_load_at_scale_has_all_its_rates_times_that(
    tmp_path: Path, arrivals: dict[str, Any], scaled: dict[str, Any]
) -> None:
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
    one = load_scenario(write_scenario(tmp_path, workload={"arrivals": arrivals, "lengths": lengths, "n_requests": 9}))
    result = at_scale(one, 1.5).workload.arrivals
    assert result is not None
    assert result | scaled == result


def test_a_scaled_load_that_ends_by_count_measures_the_same_requests(tmp_path: Path) -> None:
    by_count = load_scenario(write_scenario(tmp_path, measure={"warmup_s": 1.5}))
    assert by_count.workload.n_requests
    assert at_scale(by_count, 3.0).measure.warmup_s == 0.5
    by_time = by_count.model_copy(
        update={"workload": by_count.workload.model_copy(update={"n_requests": None, "duration_s": 60.0})}
    )
    assert at_scale(by_time, 3.0).measure.warmup_s == 1.5


def test_loads_too_heavy_to_run_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = scenario(tmp_path, "workload.n_requests=null", "workload.duration_s=5")
    question = CapacityQuestion(given, GOAL, 1.0)
    monkeypatch.setattr(size, "free_memory_bytes", lambda: 90 * size.BYTES_PER_REQUEST)
    tried = []

    def met(scale: float, seeds: Sequence[int]) -> list[Run]:
        at_scale(given, scale)
        tried.append(scale)
        return [Run(run.summary, of_ratios([0.1])) for run in single_server(0.01, seeds)]

    found = highest_rate(question, met)
    assert isinstance(found, Unbounded) and found.is_met
    assert max(tried) == pytest.approx(90 / 40, rel=0.2)
    with pytest.raises(
        TooManyArrivals,
        match=r"tiny: workload.arrivals at 2.3 times its rate: the .* memory hold a run of about 90 req",
    ):
        at_scale(given, 2.3)
