"""Comparison as an answer: what `simserve compare` found, as comparison.json has it."""

from typing import Annotated, Literal, Required

from pydantic import AfterValidator
from typing_extensions import TypedDict

from simserve.metrics.answers.parts import (
    NominalLoadJson,
    Verdict,
)
from simserve.metrics.summary_schema import (
    Count,
    Measured,
    Share,
    Signed,
)


class SideLoadJson(TypedDict):
    """The load that one side carries."""

    goodput_per_s: Measured
    holds_every_load: bool | None
    last_per_s: Measured
    fails_first: str | None


class LoadDecisionJson(TypedDict, total=False):
    """The side that carries more load, and how much more."""

    verdict: Required[Verdict]
    goal_frac: Required[Share]
    confidence: Share
    more_frac: Required[Signed]
    low_frac: Required[Signed]
    high_frac: Required[Signed]
    n_seeds: Required[Count]
    a: Required[SideLoadJson]
    b: Required[SideLoadJson]


def _has_interval(decision: LoadDecisionJson) -> LoadDecisionJson:
    ends = decision["low_frac"], decision["high_frac"]
    if decision["more_frac"] is not None and decision["n_seeds"] > 1 and None in ends:
        raise ValueError("must have low_frac and high_frac where it has more_frac")
    return decision


class NoDecisionJson(TypedDict):
    """Why load does not decide."""

    verdict: None
    reason: str


class DifferenceJson(TypedDict):
    """A measure on both sides."""

    key: str
    label: str
    unit: str
    a: Signed
    b: Signed
    difference: Signed
    low: Signed
    high: Signed
    change_frac: Signed
    verdict: Verdict


class ComparisonAnswer(TypedDict, total=False):
    """The file comparison.json."""

    version: str
    a: Required[str]
    b: Required[str]
    how: Required[str]
    confidence: Required[Share]
    decision: Annotated[LoadDecisionJson, AfterValidator(_has_interval)] | NoDecisionJson
    load: dict[Literal["a", "b"], NominalLoadJson | None]
    measures: Required[list[DifferenceJson]]
    warnings: list[str]
