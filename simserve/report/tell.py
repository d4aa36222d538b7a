"""Tell: the document of any answer, by the function of its study, and what of it Python shows."""

import json
import re
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from simserve.errors import SimserveError
from simserve.metrics.answers.autoscale import AutoscaleAnswer
from simserve.metrics.answers.capacity import ConcurrencyCapacity, RateCapacity, RatioCapacity, ReplicasCapacity
from simserve.metrics.answers.check import CheckAnswer
from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.resilience import ResilienceAnswer
from simserve.metrics.answers.shown import Shown
from simserve.metrics.answers.sweep import SweepAnswer
from simserve.metrics.answers.tune import TuneAnswer
from simserve.metrics.answers.twin import TwinAnswer
from simserve.metrics.results import Results
from simserve.report import autoscale, resilience, tune, twin
from simserve.report.capacity import page as capacity
from simserve.report.check import page as check
from simserve.report.comparison import page as comparison
from simserve.report.document import Document
from simserve.report.html import drawn, head, light_color, page
from simserve.report.page import tell as tell_run
from simserve.report.plan import page as plan
from simserve.report.sweep import page as sweep

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure

TOKEN = re.compile(r'"\$([a-z]\w*)(?:/([\d.]+))?"')
"""`"$c1"` or `"$c1/0.2"`, as in page.js."""

TELLERS: dict[type, Any] = {
    Results: tell_run,
    **dict.fromkeys((RateCapacity, ConcurrencyCapacity, ReplicasCapacity, RatioCapacity), capacity.tell),
    CheckAnswer: check.tell,
    ComparisonAnswer: comparison.tell,
    PlanAnswer: plan.tell,
    SweepAnswer: sweep.tell,
    TwinAnswer: twin.tell,
    TuneAnswer: tune.tell,
    AutoscaleAnswer: autoscale.tell,
    ResilienceAnswer: resilience.tell,
}
"""The function that tells each kind of answer."""


def tell(answer: object) -> Document:
    """Return all that an answer tells: of a run, a capacity, a check, a comparison, a plan, a sweep, a twin, a
    tuning, an autoscaling or a resilience study; others have a document of their own."""
    tell_own: Callable[[Any], Document] = TELLERS.get(type(answer), attrgetter("document"))
    return tell_own(answer)


def page_of(answer: Shown) -> str:
    """Return the page of an answer as HTML."""
    return page(tell(answer))


def sentence_of(answer: Shown) -> str:
    """Return the first sentence of an answer."""
    document = tell(answer)
    title, sentence = document.title, document.sentences[0]
    return sentence if sentence.startswith(title.partition(":")[0]) else f"{title}: {sentence}"


def head_of(answer: Shown) -> str:
    """Return the head of the page for a notebook: the decision, its reason, and the numbers that matter most."""
    return head(tell(answer))


def figure_of(answer: Shown) -> "PlotlyFigure":
    """Return the main chart as a plotly Figure. Raises SimserveError where there is none."""
    from plotly.graph_objects import Figure as PlotlyFigure  # late: a second

    document = tell(answer)
    chart = document.chart or next((plot.figure for plot in drawn(document.parts)), None)
    if chart is None:
        raise SimserveError(f"{answer.command}: has no chart, as nothing ran; to_frame() has the numbers")

    def color(token: re.Match[str]) -> str:
        opacity = format(round(255 * float(token[2])), "02x") if token[2] else ""
        return f'"{light_color(token[1])}{opacity}"'

    return PlotlyFigure(json.loads(TOKEN.sub(color, json.dumps(chart))))
