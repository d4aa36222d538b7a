"""A capacity that ends because queues only grow is known as well as the seeds' own ends tell, and no better."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import load_scenario
from simserve.metrics.decision import Effort
from simserve.metrics.reliability import TrustJson
from simserve.study.capacity.boundary import Boundary
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study
from simserve.study.intervals import median_rank
from simserve.study.run_seeds import Run
from tests.cli.scenarios import write_scenario
from tests.effort import runs
from tests.report.pages import paragraphs, render, table_rows
from tests.study.served import highest_rate, runs_at

SPREAD = 0.1
"""Of the logarithms of the loads at which seeds saturate, around 0: half of them do at 1."""

never_missed = runs_at({"ttft_s": lambda load: 0.0}, control_variate=0)


def saturating(first: int, load: float, seeds: Sequence[int]) -> list[Run]:
    def is_saturated(seed: int) -> bool:
        return bool(load >= np.exp(SPREAD * np.random.default_rng(first + seed).standard_normal()))

    return [_with(run, trust=TrustJson(saturated=is_saturated(run.summary.seed))) for run in never_missed(load, seeds)]


def _with(run: Run, **figures: Any) -> Run:
    return Run(run.summary.model_copy(update=figures), run.sample)


def result(folder: Path, first: int, precision_frac: float) -> Boundary:
    question = CapacityQuestion(load_scenario(write_scenario(folder)), 0.99, precision_frac, Effort(128))
    answer = highest_rate(question, partial(saturating, first))
    assert isinstance(answer, Boundary)
    return answer


@pytest.mark.law("coverage")
@pytest.mark.parametrize("precision_frac", [1.0, 0.05])
def test_the_interval_holds_the_load_at_which_half_of_all_seeds_saturate(tmp_path: Path, precision_frac: float) -> None:
    n = runs(200, quick=40)
    answers = [result(tmp_path, first, precision_frac) for first in range(0, n * 1000, 1000)]
    held = [each.load.low <= 1.0 <= each.load.high for each in answers]
    assert np.mean(held) >= 0.95 - 2 * (0.95 * 0.05 / n) ** 0.5  # two standard errors below 95%: 0.92 of 200
    assert all(each.load.low < each.load.value < each.load.high for each in answers)


def test_seeds_are_added_until_the_interval_is_narrow_enough(tmp_path: Path) -> None:
    rough, fine = result(tmp_path, 0, 1.0), result(tmp_path, 0, 0.05)
    assert len(rough.below.runs) == 8 < len(fine.below.runs)
    assert fine.half_frac <= 0.05
    assert rough.load.high / rough.load.low > 1.15  # eight seeds that spread by a tenth


def test_ranks_hold_the_median_as_often_as_the_binomial_says() -> None:
    # one outside with 2 / 2^8, two with 18 / 2^8 = 7%; of five even the ends fail with 2 / 2^5 = 6%
    assert median_rank(8) == 1
    assert median_rank(5) is None
    assert median_rank(20) == 6  # sums of binomials: 5 or fewer of 20 with 2.07%, 6 or fewer with 5.8%


def half_never_saturate(load: float, seeds: Sequence[int]) -> list[Run]:
    """But for a few more than that: with 128 seeds those are 72, and 76 would tell."""
    return [
        _with(run, trust=TrustJson(saturated=load >= 1 and run.summary.seed % 16 < 9))
        for run in never_missed(load, seeds)
    ]


def test_an_interval_that_no_load_tells_is_not_known_in_words_page_and_data(tmp_path: Path) -> None:
    question = CapacityQuestion(load_scenario(write_scenario(tmp_path)), 0.99, 0.05, Effort(128))
    answer = study(question, half_never_saturate).answer
    found = answer.facts()["answer"]
    assert (found["offered_per_s"]["low"], found["offered_per_s"]["high"]) == (None, None)
    assert (found["is_precise"], found["n_seeds"]) == (False, 128)
    text = paragraphs(answer)[0]
    assert "95% CI not known, 128 seeds" in text
    assert "Its interval is unknown: queues begin to grow with too few seeds." in text
    assert "wider than" not in text
    assert "The answer has no interval: at too few seeds queues begin to grow" in render(answer)


def test_rates_in_the_table_of_loads_rise_though_seeds_differ(tmp_path: Path) -> None:
    def run(load: float, seeds: Sequence[int]) -> list[Run]:
        return [  # the first eight are busier
            _with(each, offered_per_s=10 * load * (1.1 if each.summary.seed < 11 else 1.0))
            for each in saturating(0, load, seeds)
        ]

    answer = study(CapacityQuestion(load_scenario(write_scenario(tmp_path)), 0.99, 0.05), run).answer
    assert answer.question == "rate"
    rates = [point.offered_per_s for point in answer.points]
    assert len({point.n_runs for point in answer.points}) > 1
    assert rates == sorted(rates)
    first, second, *others = answer.points
    lucky = second.model_copy(update={"offered_per_s": 0.01})  # very short runs leave a little luck
    shown = [float(row[0]) for row in table_rows(answer.model_copy(update={"points": [first, lucky, *others]}))[1:]]
    assert shown == sorted(shown)
