"""Where time and memory went at a load, as means over its runs."""

import math
from typing import Any

from simserve.metrics.answers.baseline import LoadFacts
from simserve.metrics.figures import Summary
from simserve.study.check.load_facts import load_facts
from tests.summaries import summary_of

OF_A_SPLIT = ("queue_seats_s", "queue_blocks_s", "queue_budget_s", "interference_s", "evicted_s")


def run(queue_s: float, ttft_s: float, n_met: int, n_finished: int = 100, **more: Any) -> Summary:
    figures = {
        "offered_per_s": 10.0,
        "slo_attainment": {"n_met": n_met, "n_arrived": 100, "by_slo": {"ttft_s": n_met / 100, "tpot_s": 1.0}},
        "trust": {"saturated": n_met < 50},
        "requests": {"arrived": 100, "finished": n_finished},
        "queue_s": {"mean": queue_s},
        "ttft_s": {"mean": ttft_s},
        "tpot_s": {"mean": None},
        "transfer": None,
        "preemptions": {"requests_frac": 0.0},
        "kv": {"peak_frac": 1 / 3},
    }
    return summary_of(figures | more)


def test_they_are_means_of_the_runs() -> None:
    result = load_facts(0.9, [run(0.1, 0.3, 90), run(0.2, 0.6, 40, n_finished=80)])
    assert result.attained_frac == 0.65
    assert result.by_slo == {"ttft_s": 0.65, "tpot_s": 1.0}
    assert result.saturated_frac == 0.5
    assert {key: value for key, value in result.parts.items() if key not in OF_A_SPLIT} == {
        "queue_s": 0.15,
        "prefill_s": 0.3,
        "transfer_s": None,
        "tpot_s": None,
        "unanswered_frac": 0.1,
        "preempted_frac": 0.0,
        "kv_peak_frac": 0.33333,
    }


def test_the_slo_that_most_missed_binds() -> None:
    assert load_facts(1.0, [run(0.1, 0.2, 90)]).fails_first == "ttft_s"
    assert load_facts(1.0, [run(0.1, 0.2, 100)]).fails_first is None
    assert LoadFacts(by_slo={"ttft_s": 0.9, "tpot_s": 0.8}, parts={}).fails_first == "tpot_s"


def test_nothing_is_made_of_nothing() -> None:
    assert not any(
        isinstance(each, float) and math.isnan(each) for each in load_facts(1.0, [run(0.1, 0.2, 9)]).facts().values()
    )


def test_where_time_is_split_exactly_its_parts_are_told_too() -> None:
    assert all(load_facts(1.0, [run(0.1, 0.2, 90)]).parts[key] is None for key in OF_A_SPLIT)
    names = (
        "queue_seats_s",
        "queue_blocks_s",
        "queue_budget_s",
        "interference_s",
        "preempted_s",
        "recompute_s",
        "copy_s",
    )
    split: dict[str, Any] = {"time_split": {"mean": {name: 0.1 * i for i, name in enumerate(names)}}}
    result = load_facts(1.0, [run(0.1, 0.2, 90, **split)]).parts
    assert [result[key] for key in OF_A_SPLIT] == [0.0, 0.1, 0.2, 0.3, 1.5]
