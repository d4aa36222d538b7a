"""The page of a capacity, whatever was asked."""

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
"""Pages by question."""


def render(result: Facts) -> str:
    """As HTML, from what `simserve capacity --json` prints."""
    return PAGES[result["asked"]](result)
