"""Document of `simserve capacity` for each kind of question."""

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.report.capacity import fleet_size, rate_page, ratio
from simserve.report.capacity.load_curve import UNITS, sentences
from simserve.report.capacity.rate import sentence
from simserve.report.document import Document


def paragraphs(result: CapacityAnswer) -> list[str]:
    """Return the answer, and its context: which SLO binds, and the knees."""
    if result.question == "ratio":
        return [ratio.sentence(result)]
    if result.question == "replicas":
        return [fleet_size.sentence(result)]
    return [each for each in (sentence(result), " ".join(sentences(result, UNITS[result.question]))) if each]


def tell(result: CapacityAnswer) -> Document:
    """Return all that an answer tells."""
    if result.question == "ratio":
        return ratio.tell(result)
    return fleet_size.tell(result) if result.question == "replicas" else rate_page.tell(result)
