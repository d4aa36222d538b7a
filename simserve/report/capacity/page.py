"""Answers of `simserve capacity` to each kind of question: in words, as a table, and as a page."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.report.capacity import fleet_size, rate, rate_page, ratio
from simserve.report.capacity.load_curve import UNITS, sentences


class QuestionText(NamedTuple):
    """Functions that write the answer to one kind of question."""

    sentence: Callable[[Any], str]
    rows: Callable[[Any], list[Sequence[str]]]
    page: Callable[[Any], str]


QUESTIONS = {
    "rate": QuestionText(rate.sentence, rate.table_rows, rate_page.render),
    "concurrency": QuestionText(rate.sentence, rate.table_rows, rate_page.render),
    "ratio": QuestionText(ratio.sentence, ratio.table_rows, ratio.render),
    "replicas": QuestionText(fleet_size.sentence, fleet_size.table_rows, fleet_size.render),
}
"""Text and page of each kind of question."""


def render(result: CapacityAnswer) -> str:
    """Return the page as HTML."""
    return QUESTIONS[result.question].page(result)


def paragraphs(result: CapacityAnswer) -> list[str]:
    """Return the answer, and its context: which SLO binds, and the knees."""
    context = []
    if result.question == "rate" or result.question == "concurrency":
        context = sentences(result, UNITS[result.question])
    return [QUESTIONS[result.question].sentence(result), *([" ".join(context)] if context else [])]


def table_rows(result: CapacityAnswer) -> list[Sequence[str]]:
    """Return the table of all loads that ran."""
    return QUESTIONS[result.question].rows(result)
