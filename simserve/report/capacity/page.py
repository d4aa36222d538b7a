"""Page of a capacity study, for each kind of question."""

from collections.abc import Callable, Mapping
from typing import Any

from simserve.report.capacity import fleet_size_page, rate_page, ratio_page

Facts = Mapping[str, Any]

PAGES: dict[str, Callable[[Facts], str]] = {
    "rate": rate_page.render,
    "concurrency": rate_page.render,
    "ratio": ratio_page.render,
    "replicas": fleet_size_page.render,
}
"""Page of each kind of question."""


def render(result: Facts) -> str:
    """Return the page as HTML, from what `simserve capacity --json` prints."""
    return PAGES[result["asked"]](result)
