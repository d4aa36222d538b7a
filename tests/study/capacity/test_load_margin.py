"""Where the highest load lies, with the error of costs: each draw has a highest load of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.decision import SURE_BY_NOISE
from simserve.metrics.student import quantile
from simserve.metrics.summary_schema import Queue
from simserve.metrics.tails import Sample, Tail
from simserve.study.capacity.boundary import Boundary
from simserve.study.capacity.drawn_loads import MOST_ROUNDS
from simserve.study.capacity.load_margin import LoadMargin, load_margin
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity_probe import NearCapacity, OfferedRate
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.intervals import Estimate
from tests.summaries import summary_of

GOAL, N, STEEP = 0.99, 2000, 4.0
LOADS = (0.1, 0.3, 0.5, 0.8, 0.95, 1.0, 1.05, 1.2)


def sample(r: float, queue: Queue = "steady") -> Sample:
    """A run whose ratio r has an exponential tail with this 99% quantile; TTFT alone has a limit."""
    shares = (np.random.default_rng(0).permutation(N) + 0.5) / N
    ratios = (r * np.log(shares) / math.log(1 - GOAL)).astype(np.float32)[:, None]
    return Sample({None: Tail(("ttft_s",), N, ratios, np.arange(N), int((ratios > 1).sum()))}, N, queue, None)


def r_at(load: float) -> float:
    """With predicted costs r is 1 at a load of 1."""
    return float(load**STEEP)


@dataclass(frozen=True)
class Shifted(DrawnCosts):
    """Draws under which r is 1 at other loads; above a load the queue only grows."""

    highest: tuple[float, ...] = ()
    grows_at: float = math.inf
    ran: list[float] = field(default_factory=list)

    def samples(self, wanted: Mapping[int, float]) -> dict[int, Sample]:
        self.ran.extend(wanted.values())
        return {
            place: sample(r_at(load / self.highest[place]), "growing" if load >= self.grows_at else "steady")
            for place, load in wanted.items()
            if load < 5.0
        }


def point(load: float) -> LoadPoint:
    run = summary_of({})
    return LoadPoint(load, (run,) * 8, (sample(r_at(load)),) * 8)


def boundary(half: float = 0.02) -> Boundary:
    return Boundary(Estimate(1.0, math.exp(-half), math.exp(half)), point(0.95), point(1.05), point(0.95), n_free=7)


def costs(*highest: float, server_sd: float = 0.0, grows_at: float = math.inf) -> Shifted:
    def never(load: float) -> object:
        raise AssertionError

    draws: list[Any] = [(None, {})] * len(highest)
    return Shifted(never, draws, {"ttft_s": server_sd}, range(len(highest)), highest, grows_at)  # type: ignore[arg-type]


def found(drawn: Shifted, near: NearCapacity | None = None, half: float = 0.02) -> LoadMargin:
    return load_margin(boundary(half), [point(load) for load in LOADS], GOAL, drawn, near)


SPREAD = (0.6, 0.8, 0.9, 0.95, 1.0, 1.1, 1.25, 1.4)


def test_the_spread_of_the_draws_highest_loads_is_the_cost_error_and_noise_stays_beside_it() -> None:
    drawn = costs(*SPREAD)
    margin = found(drawn).margin
    assert margin.cost_sd == pytest.approx(np.log(SPREAD).std(ddof=1), rel=0.03)
    assert margin.n_cost_free == 7
    assert margin.noise_sd == pytest.approx(0.02 / quantile(0.975, 7))
    assert len(drawn.ran) <= MOST_ROUNDS * len(SPREAD)


def test_the_load_to_count_on_meets_the_slo_with_the_probability_that_was_asked() -> None:
    margin = found(costs(*SPREAD))
    for confidence in (0.8, 0.95):
        ratio = margin.count_on(confidence)
        assert margin.probability(ratio) == pytest.approx(confidence, abs=1e-3)
    low, high = margin.total()
    noise = margin.margin.by_noise.interval(0.95)
    assert low < noise[0] < 1 < noise[1] < high


def test_without_draws_noise_alone_decides_and_meets_as_a_run_does() -> None:
    margin = found(costs())
    assert (margin.margin.cost_sd, margin.has_costs) == (0.0, False)
    assert 1 - margin.margin.probability(math.log(margin.count_on(0.95))) == pytest.approx(SURE_BY_NOISE, abs=1e-3)


def test_a_server_slower_by_a_factor_moves_the_load_by_its_root_of_the_slope() -> None:
    margin = found(costs(1.0, 1.0, server_sd=0.2), half=1e-6).margin
    assert margin.points.std() == pytest.approx(0.2 / STEEP, rel=0.05)


def test_a_draw_whose_queue_grows_has_its_highest_load_below() -> None:
    drawn = costs(1.0, 1.0, grows_at=0.7)
    assert found(drawn).margin.cost_sd == pytest.approx(0.0, abs=0.02)
    assert min(drawn.ran) < 0.7 < max(drawn.ran)


def test_a_draw_that_meets_the_goal_wherever_it_can_run_ends_there() -> None:
    drawn = costs(1.0, 50.0)
    assert found(drawn).margin.cost_sd > 0.3
    assert max(drawn.ran) <= 5.0 * 1.5


def test_where_the_load_may_be_beyond_capacity_less_can_be_counted_on() -> None:
    logs = np.log([9.0, 9.5, 10.0, 10.5])
    near = NearCapacity(OfferedRate(10.0, 0.0), logs)
    alone, beside = found(costs()), found(costs(), near)
    ratio = beside.count_on(0.95)
    assert ratio < 0.9 < alone.count_on(0.95)
    assert near.at(10.0 * ratio).probability == pytest.approx(0.05, abs=1e-3)
    assert beside.probability(ratio) == pytest.approx(0.95, abs=1e-3)


def test_an_answer_that_costs_move_by_factors_is_wide() -> None:
    assert not found(costs(*SPREAD)).is_wide
    assert found(costs(0.2, 0.5, 1.0, 3.0)).is_wide


def test_one_run_of_each_load_has_no_noise() -> None:
    alone = [LoadPoint(each.scale, each.runs[:1], each.samples[:1]) for each in map(point, LOADS)]
    unknown = replace(boundary(), load=Estimate(1.0, math.nan, math.nan))
    margin = load_margin(unknown, alone, GOAL, costs(0.9, 1.1), None).margin
    assert margin.noise_sd == 0.0
    assert margin.cost_sd == pytest.approx(np.log([0.9, 1.1]).std(ddof=1), rel=0.05)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("half", [0.002, 0.05, 0.3])
def test_a_load_up_to_the_one_to_count_on_meets_the_slo_and_a_higher_one_is_never_a_better_word(
    half: float, confidence: float
) -> None:
    words = ("meets", "likely_meets", "edge", "likely_misses", "misses")
    for drawn in (costs(), costs(*SPREAD, server_sd=0.1)):
        margin = found(drawn, half=half)
        count_on = margin.count_on(confidence)
        assert margin.word(count_on * (1 - 1e-6), confidence) == "meets"
        assert margin.word(count_on * 1.01, confidence) != "meets"
        ranks = [words.index(margin.word(ratio, confidence)) for ratio in np.geomspace(0.2, 3.0, 40)]
        assert ranks == sorted(ranks)
