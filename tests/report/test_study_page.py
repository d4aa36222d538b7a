"""The frame of every study's page: the answer first, nothing from outside taken for markup."""

import pytest

from simserve.report.document import Headline, page
from simserve.report.sections import section, tile

ASKED = Headline("capacity", "chat <burst>", "met", "13.4 requests/s", "The highest rate at which 99% hold.")


def test_the_answer_stands_before_the_parts_and_what_it_comes_from_after_them() -> None:
    html = page(ASKED, [section("loads", "Loads", "", "<p>each</p>")], {}, {"seeds": 8, "scenario": None})
    places = [html.index(part) for part in ("<h1>", "13.4 requests/s</h1>", "The highest", 'id="loads"', "seeds 8")]
    assert places == sorted(places)
    assert "None" not in html


def test_names_from_a_scenario_are_not_markup() -> None:
    html = page(ASKED, [], {}, {"scenario": "<script>"})
    assert "chat &lt;burst&gt;" in html
    assert "<burst>" not in html
    assert "<script>" not in html.split("<footer>")[1].split("</footer>")[0]


@pytest.mark.parametrize("tiles", [(), (tile("Per GPU", "6.7/s", ["of 2"]),)])
def test_tiles_are_there_if_there_are_any(tiles: tuple[str, ...]) -> None:
    html = page(Headline("capacity", "a", "met", "b", "c", tiles=tiles), [], {}, {})
    assert ('<dl class="tiles">' in html) == bool(tiles)
