"""Answers of `simserve capacity` to each kind of question: in words, as a table, and as a page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simserve.report.capacity import fleet_size, rate, rate_page, ratio
from simserve.report.capacity.load_curve import UNITS, sentences

Facts = Mapping[str, Any]


class QuestionText(NamedTuple):
    """Functions that write the answer to one kind of question."""

    sentence: Callable[[Facts], str]
    rows: Callable[[Facts], list[Sequence[str]]]
    page: Callable[[Facts], str]


QUESTIONS = {
    "rate": QuestionText(rate.sentence, rate.table_rows, rate_page.render),
    "concurrency": QuestionText(rate.sentence, rate.table_rows, rate_page.render),
    "ratio": QuestionText(ratio.sentence, ratio.table_rows, ratio.render),
    "replicas": QuestionText(fleet_size.sentence, fleet_size.table_rows, fleet_size.render),
}
"""Text and page of each kind of question."""


def render(result: Facts) -> str:
    """Return the page as HTML, from what `simserve capacity --json` prints."""
    return QUESTIONS[result["asked"]].page(result)


def paragraphs(result: Facts) -> list[str]:
    """Return the answer, and its context: which SLO binds, and the knees."""
    unit = UNITS.get(result["asked"])
    context = [] if unit is None else sentences(result, unit)
    return [QUESTIONS[result["asked"]].sentence(result), *([" ".join(context)] if context else [])]


def table_rows(result: Facts) -> list[Sequence[str]]:
    """Return the table of all loads that ran."""
    return QUESTIONS[result["asked"]].rows(result)
