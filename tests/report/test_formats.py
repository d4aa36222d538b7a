"""How numbers read on the page and on the terminal."""

import math

import pytest

from simserve.report import formats


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0, "0 ms"),
        (0.000042, "0.042 ms"),
        (0.0382, "38.2 ms"),
        (0.412, "412 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.239, "1.24 s"),
        (35.04, "35.0 s"),
        (840, "840 s"),
        (3720, "1 h 02 min"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_durations_are_milliseconds_below_a_second_and_seconds_above(value_s: float | None, text: str) -> None:
    assert formats.seconds(value_s) == text


@pytest.mark.parametrize(
    ("frac", "text"),
    [
        (1.0, "100%"),
        (1.0000000002, "100%"),
        (0.9999998, ">99.9999%"),
        (0.0000002, "<0.0001%"),
        (0.0, "0%"),
        (0.962, "96.2%"),
        (0.9999, "99.99%"),
        (0.99996, "99.996%"),
        (0.0004, "0.04%"),
        (None, "–"),
    ],
)
def test_a_share_that_is_not_all_never_reads_as_all(frac: float | None, text: str) -> None:
    assert formats.share(frac) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0.42, "0.42"), (17.84, "17.8"), (3401, "3,401"), (1_210_000, "1.21 M"), (0, "0"), (None, "–")]
)
def test_rates_have_three_figures(amount: float | None, text: str) -> None:
    assert formats.rate(amount) == text


def test_a_range_of_shares_names_the_unit_once() -> None:
    assert formats.interval(0.951, 0.972) == "95.1–97.2%"
    assert formats.interval(None, 0.9) == "–"


def test_goals_are_said_as_they_were_set() -> None:
    assert formats.slo_terms({"ttft_s": 0.5, "tpot_s": 0.05}) == "TTFT ≤ 500 ms and TPOT ≤ 50 ms"
    assert formats.slo_terms({"e2e_s": 2.5, "ttft_s": 1, "itl_s": None}) == "TTFT ≤ 1 s and E2E ≤ 2.5 s"


def test_a_count_of_one_is_singular() -> None:
    assert formats.plural(1, "request") == "1 request"
    assert formats.plural(19366, "request") == "19,366 requests"


def test_a_boolean_is_no_number() -> None:
    assert formats.seconds(True) == "–"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.2774, 0.3868, "277–387 ms"),
        (0.91, 1.2, "0.91–1.20 s"),
        (0.0, 0.0, "0–0 ms"),
        (0.277, None, "≥ 277 ms"),
        (None, None, "–"),
    ],
)
def test_a_span_has_one_unit_and_may_be_open_above(low: float | None, high: float | None, text: str) -> None:
    assert formats.span(low, high) == text
