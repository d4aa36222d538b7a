"""The frame of every study's page: the answer first, nothing from outside taken for markup."""

import pytest

from simserve.report.sections import section, tile
from simserve.report.study_page import Headline, study_page

ASKED = Headline("capacity", "chat <burst>", "met", "13.4 requests/s", "The highest rate at which 99% hold.")


def test_the_answer_stands_before_the_parts_and_what_it_comes_from_after_them() -> None:
    page = study_page(ASKED, [section("loads", "Loads", "", "<p>each</p>")], {}, {"seeds": 8, "scenario": None})
    places = [page.index(part) for part in ("<h1>", "13.4 requests/s</h1>", "The highest", 'id="loads"', "seeds 8")]
    assert places == sorted(places)
    assert "None" not in page


def test_names_from_a_scenario_are_not_markup() -> None:
    page = study_page(ASKED, [], {}, {"scenario": "<script>"})
    assert "chat &lt;burst&gt;" in page
    assert "<burst>" not in page
    assert "<script>" not in page.split("<footer>")[1].split("</footer>")[0]


@pytest.mark.parametrize("tiles", [(), (tile("Per GPU", "6.7/s", ["of 2"]),)])
def test_tiles_are_there_if_there_are_any(tiles: tuple[str, ...]) -> None:
    page = study_page(Headline("capacity", "a", "met", "b", "c", tiles=tiles), [], {}, {})
    assert ('<dl class="tiles">' in page) == bool(tiles)
