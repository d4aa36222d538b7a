"""What is said of each question that `simserve capacity` answers: the answer, what lies around it, and a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.capacity import concurrency, fleet_size, rate, ratio
from simserve.report.capacity.load_curve import CLIENTS, REQUESTS_PER_S, sentences

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Words:
    """How one of the questions is answered."""

    sentence: Callable[[Facts], str]
    rows: Callable[[Facts], list[Sequence[str]]]
    around: Callable[[Facts], list[str]]


WORDS = {
    "rate": Words(rate.sentence, rate.table_rows, lambda result: sentences(result, REQUESTS_PER_S)),
    "concurrency": Words(concurrency.sentence, concurrency.table_rows, lambda result: sentences(result, CLIENTS)),
    "ratio": Words(ratio.sentence, ratio.table_rows, lambda result: []),
    "replicas": Words(fleet_size.sentence, fleet_size.table_rows, lambda result: []),
}
"""Sentences by question."""


def paragraphs(result: Facts) -> list[str]:
    """The answer, and what lies around it."""
    words = WORDS[result["asked"]]
    around = words.around(result)
    return [words.sentence(result), *([" ".join(around)] if around else [])]


def table_rows(result: Facts) -> list[Sequence[str]]:
    """What was tried."""
    return WORDS[result["asked"]].rows(result)
