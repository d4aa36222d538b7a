"""What a check says, in a sentence, in Markdown and as a test report."""

from typing import Any
from xml.etree import ElementTree

import pytest

from simserve.metrics.answers.check import CheckAnswer
from simserve.report.check.words import junit_xml, markdown, sentence, why


def part(key: str, label: str, unit: str, before: float | None, now: float | None) -> dict[str, Any]:
    change = None if not before or now is None else now / before - 1
    return {"key": key, "label": label, "unit": unit, "baseline": before, "candidate": now, "change_frac": change}


def result(**changes: Any) -> CheckAnswer:
    """A check that lost 6.2%; keys of its sides may change alone."""
    at = {"parts": {}, "offered_per_s": 12.5, "attained_frac": 0.993, "by_slo": {"ttft_s": 0.998, "tpot_s": 0.993}}
    loss = {"frac": 0.062, "low_frac": 0.051, "high_frac": 0.073, "confidence": 0.95, "is_paired": True}
    limits = {
        "surely_at_least_frac": 0.041,
        "surely_at_most_frac": 0.083,
        "surely": 0.9997,
        "smallest_found_frac": 0.043,
    }
    content: dict[str, Any] = {
        "passes": False,
        "state": "lost",
        "scenario": {"name": "chat", "digest": "0123abcd", "seed": 0},
        "goal_frac": 0.99,
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
        "slo_classes": [],
        "tolerance_frac": 0.02,
        "false_alarms_frac": 0.001,
        "n_seeds": 32,
        "loss": loss | limits,
        "baseline": {"name": "base.json", "simserve": "0.1.0", "goodput_per_s": 12.9, "fails_first": "tpot_s"},
        "candidate": {"simserve": "0.2.0", "goodput_per_s": 12.1, "fails_first": "tpot_s", "holds_every_load": None},
        "at": {"baseline": at, "candidate": at | {"attained_frac": 0.97}},
        "parts": [
            part("queue_s", "queueing", "s", 0.024, 0.031),
            part("prefill_s", "prefill", "s", 0.05, 0.0501),
            part("transfer_s", "KV transfer", "s", None, None),
            part("tpot_s", "TPOT", "s", 0.0171, 0.0189),
        ],
        "changes": [{"key": "cluster.router", "baseline": "a|b", "candidate": None}],
    }
    merged = {
        key: content[key] | value if key in ("loss", "candidate") and value else value for key, value in changes.items()
    }
    return CheckAnswer.model_validate(content | merged)


def test_it_says_how_much_is_lost_which_slo_fails_and_where_the_time_went() -> None:
    assert sentence(result()) == (
        "Regression: p99 goodput fell 6.2% (95% CI 5.1–7.3%), above the 2% tolerance: 12.1 req/s against 12.9. "
        "Baseline: base.json, same 32 seeds. TPOT ≤ 50 ms fails first, as before. "
        "At 12.5 req/s: TPOT 17.1 ms → 18.9 ms (+11%) and queueing 24.0 ms → 31.0 ms (+29%). "
        'Scenario: cluster.router "a|b" → nothing. simserve: 0.1.0 → 0.2.0.'
    )


def test_without_a_change_of_the_scenario_it_was_simserve() -> None:
    assert sentence(result(changes=[])).endswith(
        "The scenario is the same, so simserve has changed. simserve: 0.1.0 → 0.2.0."
    )


@pytest.mark.parametrize(
    ("state", "loss", "expected"),
    [
        ("same", (0.001, -0.002, 0.004), "Pass: p99 goodput fell 0.1% (95% CI -0.2% to +0.4%), statistically tied: "),
        ("better", (-0.03, -0.04, -0.02), "Pass: p99 goodput rose 3% (95% CI 2–4%): 12.1 req/s against 12.9."),
        ("within tolerance", (0.011, 0.005, 0.017), "fell 1.1% (95% CI 0.5–1.7%), within the 2% tolerance: "),
        ("unclear", (0.03, -0.01, 0.07), "fell 3% (95% CI -1% to +7%), which may be above the 2% tolerance: "),
    ],
)
def test_each_state_has_its_words(state: str, loss: tuple[float, float, float], expected: str) -> None:
    ends = dict(zip(("frac", "low_frac", "high_frac"), loss, strict=True))
    assert expected in sentence(result(state=state, passes=True, loss=ends))


def test_nothing_changed_is_one_sentence() -> None:
    same = result(state="unchanged", passes=True, changes=[], candidate={"simserve": "0.1.0"})
    assert sentence(same) == "No change: results and scenario match baseline base.json (32 seeds)."
    changed = sentence(result(state="unchanged", passes=True))
    assert changed.startswith("No change: results match baseline base.json (32 seeds). Scenario: cluster.router ")


def test_drawn_against_nominal_load_is_said() -> None:
    load = {"nominal_per_s": 14.4, "drawn_per_s": 12.9, "off_frac": -0.104}
    assert sentence(result(load=load)).endswith("The seeds drew 12.9 req/s of a nominal 14.4.")


@pytest.mark.parametrize("state", ["lost", "same", "better", "within tolerance", "unclear", "unchanged"])
def test_no_sentence_is_longer_than_thirty_words(state: str) -> None:
    assert max(len(each.split()) for each in sentence(result(state=state)).split(". ")) <= 30


def test_an_unclear_answer_says_what_it_could_have_found() -> None:
    progress = sentence(result(state="unclear", passes=True))
    assert "Only a loss of 4.3% or more is sure to be detected: make the runs longer to detect less." in progress


@pytest.mark.parametrize(
    ("every", "passes", "progress"),
    [
        (
            False,
            False,
            "Regression: no rate meets the SLO any more. The baseline's p99 goodput is 12.9 req/s.",
        ),
        (True, True, "Pass: every rate meets the SLO. The baseline's p99 goodput is 12.9 req/s."),
    ],
)
def test_a_side_without_a_p99_goodput_is_told_of_too(every: bool, passes: bool, progress: str) -> None:
    candidate = {"goodput_per_s": None, "holds_every_load": every}
    content = result(loss=None, candidate=candidate, passes=passes)
    assert sentence(content).startswith(progress)
    assert markdown(content)
    assert junit_xml(content)


def test_parts_that_hardly_changed_are_no_reason() -> None:
    assert "prefill" not in why(result())
    assert why(result(parts=[part("queue_s", "queueing", "s", 0.02, 0.0201)])) == ""


def test_what_was_not_there_before_is_named_first() -> None:
    parts = [
        part("queue_s", "queueing", "s", 0.02, 0.01),
        part("lost_frac", "requests without a full answer", "frac", 0.0, 0.14),
    ]
    assert why(result(parts=parts)) == (
        "At 12.5 req/s: requests without a full answer 0% → 14.0% and queueing 20.0 ms → 10.0 ms (-50%)."
    )


def test_markdown_escapes_what_would_break_it() -> None:
    progress = markdown(result(scenario={"name": "a|b_<i>", "digest": "0123abcd", "seed": 0}))
    assert progress.startswith("### simserve check: a\\|b\\_\\<i\\> fails\n")
    assert "| mean queueing | 24.0 ms | 31.0 ms | +29% |\n" in progress
    assert "| p99 goodput, req/s | 12.9 | 12.1 | -6.2% |\n" in progress
    assert progress.endswith('- `cluster.router`: "a\\|b" → nothing\n')


def test_the_test_report_is_xml_whatever_is_in_it() -> None:
    name = "<&\"'\x00\x1f"
    text = junit_xml(result(scenario={"name": name, "digest": "0123abcd", "seed": 0}))
    assert text.startswith('<?xml version="1.0" encoding="utf-8"?>\n')
    suite = ElementTree.fromstring(text.encode())[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("1", "1")
    assert suite[0].attrib["name"] == "p99 goodput of <&\"'\ufffd\ufffd"
    failure = suite[0].find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "lost"


def test_a_pass_is_a_test_without_a_failure() -> None:
    suite = ElementTree.fromstring(junit_xml(result(passes=True, state="same")).encode())[0]
    assert suite.attrib["failures"] == "0"
    assert suite[0].find("failure") is None
    assert "p99 goodput" in (suite[0].findtext("system-out") or "")
