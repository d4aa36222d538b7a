"""Answers: what a summary says of each class, and the decision of several runs together."""

from random import Random
from typing import Any

import pytest

from simserve.metrics.answer import QUEUE_STATES, Outcome, answer, pooled_frac, queue_over, worst_class
from simserve.metrics.goal import wilson
from simserve.metrics.outcomes import outcomes, run_answer, whole_outcome
from tests.summaries import summary_of


def share(frac: float | None, **more: Any) -> dict[str, Any]:
    """Return what a summary has of an attainment."""
    return {"slo_attainment": {"frac": frac, "low_frac": None, "high_frac": None} | more}


def part(n: int, frac: float | None, highest_s: float | None = 0.2, **more: Any) -> dict[str, Any]:
    """Return what a summary has of requests with a goal of 0.4 s."""
    return {"requests": {"arrived": n}, "slo": {"ttft_s": 0.4}, "ttft_s": {"max": highest_s}} | share(frac, **more)


def outcome(frac: float = 1.0, n: int = 100, **changes: Any) -> Outcome:
    fields = {
        "n_effective": float(n),
        "off_frac": None,
        "is_far_below": False,
        "queue": None,
        "by_slo": {"ttft_s": frac},
    }
    return Outcome(attained_frac=frac, n_arrived=n, **(fields | changes))


def test_an_outcome_is_what_the_summary_says() -> None:
    summary = part(200, 0.9, low_frac=0.8, high_frac=0.95, by_slo={"ttft_s": 0.9, "tpot_s": None})
    summary |= {"trust": {"n_worth": 50, "steady": "critical"}, "load": {"off_frac": -0.01}}
    known: dict[str, Any] = {"n_effective": 50.0, "off_frac": -0.01, "queue": "critical", "interval": [0.8, 0.95]}
    assert whole_outcome(summary_of(summary)) == outcome(0.9, 200, counts=[], r=[], **known)
    assert outcomes(summary_of(summary)) == {None: whole_outcome(summary_of(summary))}
    plain = whole_outcome(summary_of(part(200, 0.9, low_frac=0.8)))
    assert plain == outcome(0.9, 200, by_slo={}, counts=[], r=[])
    assert whole_outcome(summary_of(part(200, 0.9, high_frac=0.8))) == plain


def test_a_saturated_run_has_a_growing_queue() -> None:
    for is_saturated, queue in ((True, "growing"), (False, "steady")):
        result = whole_outcome(summary_of(part(9, 1.0) | {"trust": {"saturated": is_saturated, "steady": "steady"}}))
        assert result is not None
        assert result.queue == queue


@pytest.mark.parametrize("summary", [part(0, 1.0), part(9, None), {"requests": {"arrived": 9}}, {}])
def test_no_requests_or_no_goal_give_no_answer(summary: dict[str, Any]) -> None:
    assert whole_outcome(summary_of(summary)) is None
    assert outcomes(summary_of(summary)) == {}
    assert run_answer(summary_of(summary), 0.99) is None


@pytest.mark.parametrize(
    ("frac", "highest_s", "is_far_below"),
    [(1.0, 0.2, True), (1.0, 0.201, False), (0.999, 0.2, False), (1.0, None, False)],
)
def test_far_below_is_half_of_each_limit_and_no_miss(frac: float, highest_s: float | None, is_far_below: bool) -> None:
    result = whole_outcome(summary_of(part(9, frac, highest_s)))
    assert result is not None
    assert result.is_far_below is is_far_below
    two = part(9, frac, highest_s)
    two["slo"] |= {"tpot_s": 0.01}
    two["tpot_s"] = {"max": 0.006}
    result = whole_outcome(summary_of(two))
    assert result is not None
    assert result.is_far_below is False
    none = whole_outcome(summary_of(part(9, frac, highest_s) | {"slo": {}}))
    assert none is not None
    assert none.is_far_below is False


def test_classes_share_the_information_of_the_run_by_their_requests() -> None:
    summary = part(400, 0.9) | {"trust": {"n_worth": 100}}
    summary["classes"] = {"chat": part(300, 0.99), "rare": part(1, 1.0), "batch": share(None), "none": part(0, None)}
    result = outcomes(summary_of(summary))
    assert {name: each.n_effective for name, each in result.items()} == {"chat": 75.0, "rare": 1.0}
    answered = run_answer(summary_of(summary), 0.9)
    assert answered is not None
    assert (answered.slo_class, answered.attained_frac, answered.n_requests) == ("chat", 0.99, 300)
    assert (answered.low_frac, answered.high_frac) == pytest.approx(wilson(0.99, 75, 1.959964))
    summary["classes"] = {"none": part(0, None)}
    assert list(outcomes(summary_of(summary))) == [None]  # no class has targets


def test_the_answer_of_a_run_has_its_own_interval_and_load() -> None:
    result = run_answer(
        summary_of(part(200, 0.99, low_frac=0.985, high_frac=0.999) | {"load": {"off_frac": 0.01}}), 0.98
    )
    assert result is not None
    assert result.model_dump() == {
        "decision": "met",
        "goal_frac": 0.98,
        "attained_frac": 0.99,
        "low_frac": 0.985,
        "high_frac": 0.999,
        "confidence": 0.95,
        "n_runs": 1,
        "n_requests": 200,
        "basis": "run",
        "slo_class": None,
        "load_off_frac": 0.01,
        "queue": None,
        "is_far_below": False,
        "by_slo": {},
    }


@pytest.mark.parametrize("seed", range(10))
def test_the_worst_class_is_that_with_the_least_share_of_all_its_requests(seed: int) -> None:
    rng = Random(seed)
    runs = []
    for _ in range(rng.randint(1, 3)):
        names = ["a", *rng.sample("bcd", rng.randint(0, 3))]
        runs.append({name: outcome(rng.randint(0, 9) / 9, 9 * rng.randint(1, 50)) for name in names})
    shares = {}
    for name in "abcd":
        mine = [run[name] for run in runs if name in run]
        if mine:
            n_met = sum(round(each.attained_frac * each.n_arrived) for each in mine)
            shares[name] = n_met / sum(each.n_arrived for each in mine)
            assert pooled_frac(mine) == pytest.approx(shares[name])
    worst = worst_class(runs)  # type: ignore[arg-type]
    assert worst is not None
    assert shares[worst] == pytest.approx(min(shares.values()))
    assert worst_class([]) is None


@pytest.mark.parametrize("seed", range(30))
def test_more_than_half_of_the_runs_are_in_the_state_of_all_or_worse(seed: int) -> None:
    rng = Random(seed)
    states = [rng.choice([None, *QUEUE_STATES]) for _ in range(rng.randint(0, 6))]
    known = sorted(QUEUE_STATES.index(state) for state in states if state is not None)
    assert queue_over(states) == (QUEUE_STATES[known[len(known) // 2]] if known else None)


def test_runs_together_answer_with_what_they_have_in_common() -> None:
    runs = [outcome(1.0, 100, is_far_below=True, queue="steady"), outcome(0.5, 50, queue="steady")]
    runs[0].by_slo["itl_s"] = 0.25  # type: ignore[index]
    result = answer(runs, 0.9, (0.95, 0.92, 0.97), "replays", slo_class="chat", load_off_frac=None)
    assert (result.decision, result.queue, result.is_far_below) == ("met", "steady", False)
    assert (result.n_runs, result.n_requests, result.basis) == (2, 150, "replays")
    assert (result.slo_class, result.load_off_frac) == ("chat", None)
    assert result.by_slo == {"ttft_s": 0.75, "itl_s": 0.25}
    runs = [outcome(is_far_below=True), outcome(is_far_below=True, queue="growing"), outcome(queue="growing")]
    assert answer(runs[:1], 0.9, (1.0, 0.5, 1.0), "run", slo_class=None, load_off_frac=0.0).decision == "met"
    assert answer(runs, 0.9, (1.0, 0.99, 1.0), "run", slo_class=None, load_off_frac=0.0).decision == "missed"
    assert answer(runs[:1], 0.9, (1.0, 0.99, 1.0), "run", slo_class=None, load_off_frac=0.1).decision == "edge"
