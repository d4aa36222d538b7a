"""What a comparison says: the decision by load first, then the measures."""

from typing import Any

import pytest

from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.report.comparison.words import paragraphs, sentence, title

HOW = "10 pairs of runs, the same seed in each pair"


def side(per_s: float | None, fails_first: str | None = "tpot_s", holds: bool | None = None) -> dict[str, Any]:
    last = {"last_per_s": 900.0 if holds else 0.2}
    return {"goodput_per_s": per_s, "holds_every_load": holds, "fails_first": fails_first} | last


def decision(verdict: str, more: float | None, ends: tuple[float, float] | None, **changes: Any) -> dict[str, Any]:
    low, high = ends or (None, None)
    content = {"verdict": verdict, "reason": None, "goal_frac": 0.99, "confidence": 0.95, "n_seeds": 32}
    content |= {"more_frac": more, "low_frac": low, "high_frac": high}
    return content | {"a": side(13.41), "b": side(13.41 * (1 + (more or 0)))} | changes


def result(decided: dict[str, Any] | None, **changes: Any) -> ComparisonAnswer:
    measure = {"key": "ttft_s.p99", "label": "p99 TTFT", "unit": "s", "a": 0.4, "b": 0.3, "difference": -0.1}
    measure |= {"low": -0.12, "high": -0.08, "change_frac": -0.25, "verdict": "better"}
    content = {"a": "old", "b": "new", "how": HOW, "confidence": 0.95, "warnings": [], "measures": [measure]}
    return ComparisonAnswer.model_validate(content | {"decision": decided} | changes, strict=True)


@pytest.mark.parametrize(
    ("decided", "expected", "head"),
    [
        (
            decision("better", 0.081, (0.065, 0.098)),
            "new carries 8.1% more load (95% CI 6.5–9.8%): 14.5 req/s against 13.4 at 99% SLO attainment. "
            "TPOT fails first on both sides.",
            ("met", "new carries 8.1% more load"),
        ),
        (
            decision("worse", -0.25, (-0.27, -0.23), b=side(10.06, "ttft_s")),
            "new carries 25% less load (95% CI 23–27%): 10.1 req/s against 13.4 at 99% SLO attainment. "
            "TPOT of old fails first. TTFT of new fails first.",
            ("missed", "new carries 25% less load"),
        ),
        (
            decision("unclear", 0.008, (-0.01, 0.025)),
            "Statistically tied: new carries 0.8% more load (95% CI -1% to +2.5%). 13.5 req/s against 13.4 at 99% SLO "
            "attainment, 32 seeds. Rerun with --replications 128 to decide. TPOT fails first on both sides.",
            ("edge", "Statistically tied"),
        ),
        (
            decision("better", 0.081, (0.065, 0.098), total=(0.031, 0.12), probability=0.999),
            "new carries 8.1% more load (95% CI 6.5–9.8%; with cost error 3.1–12%): 14.5 req/s against 13.4 at 99% SLO "
            "attainment. TPOT fails first on both sides.",
            ("met", "new carries 8.1% more load"),
        ),
        (
            decision("unclear", -0.04, (-0.06, -0.02), total=(-0.11, 0.03), probability=0.13, edge_by="cost"),
            "Cost error decides: as simulated, new carries 4% less load (95% CI 2–6%; with cost error -3% to +11%), P "
            "87%. 12.9 req/s against 13.4 at 99% SLO attainment. A log of your server decides: simserve calibrate. "
            "TPOT fails first on both sides.",
            ("edge", "Cost error decides"),
        ),
        (
            decision("same", 0.0, (0.0, 0.0)),
            "No change: old and new carry the same load, 13.4 req/s at 99% SLO attainment (32 seeds). "
            "TPOT fails first on both sides.",
            ("none", "No change"),
        ),
        (
            decision("unclear", 0.081, None, n_seeds=1),
            "new carries 8.1% more load: 14.5 req/s against 13.4 at 99% SLO attainment. Every seed gives the same run, "
            "so there is no interval. TPOT fails first on both sides.",
            ("few", "new: one run each"),
        ),
        (
            decision("worse", None, None, b=side(None, None, holds=False)),
            "new carries less load. old carries 13.4 req/s at 99% SLO attainment. new attains 99% at no rate, down to "
            "0.20 req/s. TPOT of old fails first.",
            ("missed", "new carries less load"),
        ),
        (
            decision("unclear", None, None, a=side(None, None, holds=True), b=side(None, None, holds=True)),
            "Load does not decide. old meets the SLO at every rate, up to 900 req/s. new meets the SLO at every rate, "
            "up to 900 req/s.",
            ("edge", "Statistically tied"),
        ),
        (
            {"verdict": None, "reason": "a reason"},
            "Compares measures only: a reason.",
            None,
        ),
    ],
)  # fmt: skip
def test_each_decision_has_its_words(decided: dict[str, Any], expected: str, head: Any) -> None:
    content = result(decided)
    assert paragraphs(content)[0] == expected
    assert title(content) == head
    assert max(len(each.split()) for each in sentence(content).split(". ")) <= 30


def test_measures_come_second_with_drawn_against_nominal_load() -> None:
    load = {"nominal_per_s": 14.4, "drawn_per_s": 12.9, "off_frac": -0.104}
    content = result(decision("same", 0.0, (0.0, 0.0)), load={"a": load, "b": load})
    assert paragraphs(content)[1] == (
        f"Measures ({HOW}): new is better at p99 TTFT (-25%). The seeds drew 12.9 req/s of a nominal 14.4."
    )


def test_an_answer_of_an_earlier_version_has_no_decision() -> None:
    content = result(None)
    assert paragraphs(content) == [f"Measures ({HOW}): new is better at p99 TTFT (-25%)."]
    assert title(content) is None


def test_each_side_is_decided_at_its_own_load_as_a_run_decides() -> None:
    a = {"word": "meets", "probability": 0.983, "r": 0.725, "r_noise": [0.66, 0.795], "r_total": [0.56, 0.97]}
    b = {"word": "likely_misses", "probability": 0.2, "r": 1.1, "r_noise": [1.05, 1.15], "r_total": [0.9, 1.3]}
    content = result(decision("same", 0.0, (0.0, 0.0)), judged={"a": a | {"n_draws": 8}, "b": b})
    assert paragraphs(content)[1] == (
        "At its own load, old meets the SLO: the p99 of latency/limit is 0.72 (95% CI 0.66–0.80; with cost error "
        "0.56–0.97), P >97%. At its own load, new likely misses the SLO: the p99 of latency/limit is 1.10 (95% CI "
        "1.05–1.15), P 20%."
    )
    of_before = result(None, judged={"a": {"word": "edge"}, "b": None})
    assert paragraphs(of_before)[0] == "At its own load, old is on the edge of the SLO."
