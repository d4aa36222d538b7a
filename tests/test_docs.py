"""The hand-written pages are short enough to be read, and the site has all of them."""

import re
from pathlib import Path

import pytest
import yaml

from tests.pages import ROOT, read

PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
MOST_WORDS = 35_000
"""Words of all hand-written pages; what the site makes from the program does not count."""


def written(text: str) -> str:
    """Return a page without the tables that a command writes (docs/site.py)."""
    return re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)


def words(text: str) -> int:
    """Return the words of a page: what has a letter or a digit, outside fenced blocks."""
    prose = re.sub(r"^```.*?^```", "", written(text), flags=re.MULTILINE | re.DOTALL)
    return sum(any(map(str.isalnum, word)) for word in prose.split())


def test_all_pages_together_can_be_read() -> None:
    assert sum(words(page.read_text(encoding="utf-8")) for page in PAGES) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_wider_than_a_screen(page: Path) -> None:
    assert [line for line in written(page.read_text(encoding="utf-8")).splitlines() if len(line) > 120] == []


def test_the_site_has_every_page_once() -> None:
    def files(nav: object) -> list[str]:
        if isinstance(nav, list):
            return [file for entry in nav for file in files(entry)]
        return files(list(nav.values())) if isinstance(nav, dict) else [str(nav)]

    settings = re.sub(r"^(markdown_extensions|plugins|theme):.*?(?=^\w)", "", read("mkdocs.yml"), flags=re.M | re.S)
    named = files(yaml.safe_load(settings)["nav"])
    assert len(named) == len(set(named))
    written = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    notebooks = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.ipynb")}
    assert written | notebooks == {name for name in named if not name.startswith("reference/")}
