"""Text of each kind of question of `simserve capacity`: the answer, its context, and a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.capacity import concurrency, fleet_size, rate, ratio
from simserve.report.capacity.load_curve import CLIENTS, REQUESTS_PER_S, sentences

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Words:
    """Functions that write the answer to one kind of question."""

    sentence: Callable[[Facts], str]
    rows: Callable[[Facts], list[Sequence[str]]]
    context: Callable[[Facts], list[str]]


WORDS = {
    "rate": Words(rate.sentence, rate.table_rows, lambda result: sentences(result, REQUESTS_PER_S)),
    "concurrency": Words(concurrency.sentence, concurrency.table_rows, lambda result: sentences(result, CLIENTS)),
    "ratio": Words(ratio.sentence, ratio.table_rows, lambda result: []),
    "replicas": Words(fleet_size.sentence, fleet_size.table_rows, lambda result: []),
}
"""Text of each kind of question."""


def paragraphs(result: Facts) -> list[str]:
    """Return the answer, and its context."""
    words = WORDS[result["asked"]]
    context = words.context(result)
    return [words.sentence(result), *([" ".join(context)] if context else [])]


def table_rows(result: Facts) -> list[Sequence[str]]:
    """Return the table of all loads that ran."""
    return WORDS[result["asked"]].rows(result)
