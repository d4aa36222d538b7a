"""Drawn load against nominal load, and the warning where they differ."""

from dataclasses import dataclass
from typing import Literal

import pytest

from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.window import Window, drawn_load, load_warning
from tests.metrics.stories import window_of

Kind = Literal["requests", "sessions"]


@dataclass
class Drawn:
    """Arrivals that drew one rate and expected another."""

    rates: tuple[float, float] | None
    kind: Kind = "requests"

    def rates_per_s(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return both rates in the window of the test."""
        assert (start_s, end_s) == (2.0, 6.0)
        return self.rates


@pytest.mark.parametrize(
    ("drawn_per_s", "kind", "warning"),
    [
        (10.4, "requests", None),
        (9.6, "requests", None),
        (11.0, "requests", "the drawn load is 10% above nominal (11 against 10 req/s)"),
        (9.0, "requests", "the drawn load is 10% below nominal (9 against 10 req/s)"),
        (9.0, "sessions", "the drawn load is 10% below nominal (9 against 10 sessions/s)"),
    ],
)
def test_more_than_a_twentieth_off_is_warned_of(
    drawn_per_s: float, kind: Literal["requests", "sessions"], warning: str | None
) -> None:
    load = drawn_load(window_of(2.0, 6.0), Drawn((drawn_per_s, 10.0), kind), 7.0)
    assert load.facts() == {
        "kind": kind,
        "nominal_per_s": 10.0,
        "drawn_per_s": drawn_per_s,
        "off_frac": pytest.approx(drawn_per_s / 10 - 1),
    }
    assert [text.split(";")[0] for text in load_warning(load)] == ([] if warning is None else [warning])


def test_without_an_expected_rate_the_offered_one_is_that_of_the_load() -> None:
    known = NominalLoad(kind="requests", nominal_per_s=None, drawn_per_s=7.0, off_frac=None)
    at_once = window_of(2.0, 6.0)
    at_once = type(at_once)(2.0, 6.0, 4.0, "last finish", at_once.has)
    loads: list[tuple[Window, Drawn | None]] = [
        (window_of(2.0, 6.0), None),
        (window_of(2.0, 6.0), Drawn(None)),
        (at_once, Drawn((1, 1))),
    ]
    for window, arrivals in loads:
        assert drawn_load(window, arrivals, 7.0) == known
    assert load_warning(known) == []
