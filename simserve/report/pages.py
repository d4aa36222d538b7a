"""Pages: any answer as a page, and what of it Python shows: its head, its main chart and its first sentence."""

import json
import re
from typing import TYPE_CHECKING

from simserve.errors import SimserveError
from simserve.metrics.answers.check import CheckAnswer
from simserve.metrics.answers.shown import Shown
from simserve.report.check.page import parts_chart
from simserve.report.html import colors, figures, head, page
from simserve.report.tell import tell

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TOKEN = re.compile(r'"\$([a-z]\w*)(?:/([\d.]+))?"')
"""`"$c1"` or `"$c1/0.2"`, as in page.js."""


def page_of(answer: Shown) -> str:
    """Return the page of an answer as HTML."""
    return page(tell(answer))


def sentence_of(answer: Shown) -> str:
    """Return the first sentence of an answer."""
    document = tell(answer)
    return re.split(r"(?<=\.)\s", " ".join(f"{document.title}: {document.lead}".split()))[0]


def head_of(answer: Shown) -> str:
    """Return the head of the page for a notebook: the decision, its reason, and the numbers that matter most."""
    return head(tell(answer))


def figure_of(answer: Shown) -> "Figure":
    """Return the main chart as a plotly Figure. Raises SimserveError where there is none."""
    from plotly.graph_objects import Figure  # late: a second

    charts = [parts_chart(answer)] if isinstance(answer, CheckAnswer) else [*figures(tell(answer)).values()]
    if not charts:
        raise SimserveError(f"{answer.command}: has no chart, as nothing ran; to_frame() has the numbers")

    def color(token: re.Match[str]) -> str:
        opacity = format(round(255 * float(token[2])), "02x") if token[2] else ""
        return f'"{colors()[token[1]]}{opacity}"'

    return Figure(json.loads(TOKEN.sub(color, json.dumps(charts[0]))))
