"""What the errors of a validation allow: each word, by error, interval, tail and number."""

from typing import Any

import pytest

from simserve.lab.trust import ONE_GROUP, LatencyError, trust_in


def error(latency: str = "TPOT", **changes: Any) -> LatencyError:
    """4% off (3 to 5%), nine tenths of 20 runs within 9%, too short."""
    given: dict[str, Any] = {
        "n": 20,
        "error_frac": 0.04,
        "low_frac": 0.03,
        "high_frac": 0.05,
        "tail_frac": 0.09,
        "bias_frac": -0.04,
    }
    return LatencyError(latency=latency, **(given | changes))


def decided(*errors: LatencyError) -> tuple[str, str, str]:
    trust = trust_in(errors, "runs", 5, "simserve calibrate")
    return trust.word, trust.cause, trust.next_command


def test_small_errors_with_an_interval_are_trusted_and_need_no_calibration() -> None:
    trust = trust_in([error(), error("TTFT", error_frac=0.02)], "runs", 5, "simserve calibrate")
    assert (trust.word, trust.title, trust.state, trust.next_command) == ("trusted", "Trusted", "met", "")
    assert trust.sentence.startswith(
        "TPOT 4.0% off (CI 3.0–5.0%; 90% of runs within 9.0%; bias -4.0%) and TTFT 2.0% off"
    )


@pytest.mark.parametrize("change", [{"high_frac": 0.11}, {"tail_frac": 0.21}])
def test_the_upper_end_of_the_error_or_its_tail_takes_trust_away(change: dict[str, Any]) -> None:
    word, cause, command = decided(error(), error("TTFT", bias_frac=0.05, **change))
    assert (word, command) == ("comparisons", "simserve calibrate")
    assert cause.startswith(("TTFT is too long", "Steps are too short"))


@pytest.mark.parametrize("change", [{"high_frac": 0.26}, {"tail_frac": 0.51}])
def test_larger_errors_are_not_to_be_trusted(change: dict[str, Any]) -> None:
    word, cause, command = decided(error("TTFT"), error(error_frac=0.1, **change))
    assert (word, command) == ("untrusted", "simserve calibrate")
    assert cause


def test_the_cause_is_that_of_the_latency_furthest_off() -> None:
    _, cause, _ = decided(error(), error("TTFT", error_frac=0.2, high_frac=0.22, bias_frac=-0.2))
    assert cause == "TTFT is too short: time before the engine, or host time, is the likely cause."


def test_few_are_never_trusted_and_one_group_has_no_interval() -> None:
    assert decided(error(n=4)) == ("too_few", "A decision takes 5 runs.", "")
    assert decided(error(low_frac=None, high_frac=None)) == ("comparisons", ONE_GROUP, "")
    assert decided()[0] == "too_few"


def test_a_log_names_its_p99_and_the_command_that_calibrates() -> None:
    trust = trust_in([error(n=3000, high_frac=0.3)], "requests", 100, "simserve calibrate --logs 'a log.csv'")
    assert "p99 9.0%" in trust.sentence
    assert trust.sentence.endswith("Calibrate: simserve calibrate --logs 'a log.csv'")
