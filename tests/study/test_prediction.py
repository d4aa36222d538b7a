"""Replays of long runs: what segments tell, scaled to the length of the run."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.answer import Outcome
from simserve.study.prediction import ScaledReplays
from simserve.study.run_figures import RunFigures

LOADS = (-0.1, 0.02, -0.03, 0.11)
EFFECTS = (0.01, -0.02, 0.03, 0.004)


def figures(missed_frac: float, off_frac: float | None, n: int, **changes: Any) -> RunFigures:
    """Return a run whose p99 doubles for each 10% that miss."""
    outcome = Outcome(
        attained_frac=1 - missed_frac,
        n_arrived=n,
        n_effective=n / 10,
        off_frac=off_frac,
        is_far_below=False,
        queue="steady",
        by_slo={"ttft_s": 1 - missed_frac / 2},
    )
    return RunFigures({"ttft_s": {"p99": 2 ** (10 * missed_frac)}}, {None: outcome.model_copy(update=changes)}, n)


def replays(n: int, w: int = 1000, *, is_drawn: bool = True, **perturbed: Any) -> ScaledReplays:
    """Return a run of n requests and segments of w; more load and slower costs let more requests miss."""
    plain = [figures(0.1 + load / 2, load, w) for load in LOADS]
    slower = [figures(0.1 + load / 2 + cost, load, w, **perturbed) for load, cost in zip(LOADS, EFFECTS, strict=True)]
    return ScaledReplays(figures(0.12, 0.04, n), plain, slower, is_drawn)


def attained(runs: list[RunFigures]) -> list[float]:
    return [each.outcomes[None].attained_frac for each in runs]


def test_of_segments_as_long_as_the_run_the_outcomes_are_those_of_whole_replays() -> None:
    scaled = replays(1000)
    assert attained(scaled.whole()) == pytest.approx(attained(list(scaled.perturbed)))
    offs = [each.outcomes[None].off_frac for each in scaled.whole()]
    assert offs == pytest.approx(LOADS)
    assert [each.outcomes[None].n_arrived for each in scaled.whole()] == [round(1000 * (1 + x) / 1.04) for x in LOADS]


def test_a_trace_varies_in_costs_only() -> None:
    scaled = replays(10_000, is_drawn=False).whole()
    assert attained(scaled) == pytest.approx([0.88 - cost for cost in EFFECTS])
    assert [each.outcomes[None].by_slo["ttft_s"] for each in scaled] == pytest.approx([0.94 - x / 2 for x in EFFECTS])
    p99 = [each.latencies["ttft_s"]["p99"] for each in scaled]
    assert p99 == pytest.approx([2 ** (1.2 + 10 * cost) for cost in EFFECTS])


def test_longer_runs_differ_less_in_load_and_as_much_in_costs() -> None:
    one = float(np.std(LOADS, ddof=1)) / 2
    for times in (4, 16, 64):
        loads = np.array(attained(replays(1000 * times).whole())) + EFFECTS
        assert float(loads.std(ddof=1)) == pytest.approx(one * math.sqrt((2 * times + 3) / times / (times + 4)))


def test_every_request_served_weighs_the_same() -> None:
    scaled = replays(6000)
    nine = [scaled.run.outcomes[None], *(each[None] for each in scaled._outcomes(math.sqrt(scaled._center)))]
    off = [each.off_frac for each in nine if each.off_frac is not None]
    assert np.mean(off) == pytest.approx((6000 * 0.04 + 1000 * sum(LOADS)) / 10_000)


def test_a_percentile_varies_at_least_as_much_as_the_runs_own_interval_says() -> None:
    scaled = replays(10_000)
    logs = np.log([each.latencies["ttft_s"]["p99"] for each in scaled.whole()]) - 10 * math.log(2) * np.array(EFFECTS)
    one = 5 * math.log(2) * float(np.std(LOADS, ddof=1))
    assert float(logs.std(ddof=1)) == pytest.approx(one * math.sqrt(2 * 1000 / 10_000))
    assert float(logs.mean()) == pytest.approx(1.2 * math.log(2))  # the run's own
    unsure = replace(scaled, run=replace(scaled.run, log_errors={"ttft_s": {"p99": 0.5}}))
    logs = np.log([each.latencies["ttft_s"]["p99"] for each in unsure.whole()]) - 10 * math.log(2) * np.array(EFFECTS)
    assert float(logs.std(ddof=1)) == pytest.approx(0.5 * math.sqrt(2))


def test_a_queue_is_full_where_costs_fill_it_and_not_where_a_short_segment_only_looks_so() -> None:
    assert [each.outcomes[None].queue for each in replays(10_000, queue="growing").whole()] == ["growing"] * 4
    scaled = replays(10_000, queue="growing")
    loud = [figures(0.1, load, 1000, queue="critical") for load in LOADS]
    assert [each.outcomes[None].queue for each in replace(scaled, plain=loud).whole()] == ["steady"] * 4


def test_a_class_that_few_segments_met_is_known_from_those() -> None:
    scaled = replays(10_000)
    rare = replace(scaled, plain=[*scaled.plain[:2], *(replace(each, outcomes={}) for each in scaled.plain[2:])])
    assert [len(each.outcomes) for each in rare.whole()] == [1, 1, 0, 0]


def test_a_latency_of_zero_has_no_interval() -> None:
    scaled = replays(10_000)
    plain = [replace(scaled.plain[0], latencies={"ttft_s": {"p99": 0.0}}), *scaled.plain[1:]]
    assert [each.latencies["ttft_s"]["p99"] for each in replace(scaled, plain=plain).whole()] == [0.0] * 4
