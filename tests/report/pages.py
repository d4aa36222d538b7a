"""The page and the paragraphs of any answer, as the commands write them."""

from collections.abc import Sequence

from simserve.metrics.answers.check import CheckAnswer
from simserve.report.check.page import tell as tell_check
from simserve.report.html import page
from simserve.report.tell import tell


def render(answer: object) -> str:
    """Return the page of an answer."""
    return page(tell(answer))


def render_check(answer: CheckAnswer, command: Sequence[str]) -> str:
    """Return the page of a check with its command line."""
    return page(tell_check(answer, command))


def paragraphs(answer: object) -> list[str]:
    """Return what a terminal shows of an answer, without its tables."""
    return [block for block in tell(answer).brief if isinstance(block, str) and block]


def table_rows(answer: object) -> list[list[str]]:
    """Return the table that a terminal shows of an answer, with its heads."""
    table = next(block for block in tell(answer).brief if not isinstance(block, str))
    return [list(table.heads), *([row.name, *row.cells] for row in table.rows)]
