"""Tell: the document of any answer, from the function of its study."""

from typing import Any

from simserve.metrics.answers.capacity import ConcurrencyCapacity, RateCapacity, RatioCapacity, ReplicasCapacity
from simserve.metrics.answers.check import CheckAnswer
from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.sweep import SweepAnswer
from simserve.metrics.results import Results
from simserve.report.capacity import page as capacity
from simserve.report.check import page as check
from simserve.report.comparison import page as comparison
from simserve.report.document import Document
from simserve.report.page import tell as tell_run
from simserve.report.plan import page as plan
from simserve.report.sweep import page as sweep

TELLERS: dict[type, Any] = {
    Results: tell_run,
    RateCapacity: capacity.tell,
    ConcurrencyCapacity: capacity.tell,
    ReplicasCapacity: capacity.tell,
    RatioCapacity: capacity.tell,
    CheckAnswer: check.tell,
    ComparisonAnswer: comparison.tell,
    PlanAnswer: plan.tell,
    SweepAnswer: sweep.tell,
}
"""The function that tells each kind of answer."""


def tell(answer: object) -> Document:
    """Return all that an answer tells: of a run, a capacity, a check, a comparison, a plan or a sweep."""
    document: Document = TELLERS[type(answer)](answer)
    return document
