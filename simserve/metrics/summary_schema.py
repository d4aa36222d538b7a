"""Summary schema: types in answer files: of numbers, and of decisions."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from simserve.metrics.goal import CAP

Count = Annotated[int, Field(ge=0, le=10**15)]
Number = Annotated[float, Field(ge=-1e18, le=1e18)]
"""Sums and products of a few of these are still finite."""
Amount = Annotated[float, Field(ge=0, le=1e18)]
Share = Annotated[float, Field(ge=0, le=1)]
Measured = Amount | None
"""None, in memory also NaN: it could not be measured."""
Signed = Number | None

EndsJson = Annotated[Sequence[Signed], Field(min_length=2, max_length=2)]
"""Low and high."""
Queue = Literal["growing", "critical", "undetermined", "steady"]
Slo = dict[str, Annotated[float, Field(gt=0, le=1e18)]]

Size = Annotated[int, Field(ge=1, le=10**9)]

Word = Literal["meets", "likely_meets", "edge", "likely_misses", "misses", "saturated"]

Cause = Literal["noise", "cost", "load"]

Ratio = Annotated[float, Field(ge=0, le=CAP)]

Ends = Annotated[Sequence[Ratio], Field(min_length=2, max_length=2)]
"""Low and high."""

EARLIER: Mapping[str, Word] = {"met": "meets", "missed": "misses", "edge": "edge"}
"""Words of earlier versions."""


class DecisionJson(BaseModel, frozen=True):
    """The decision about the SLO, by its margin; without numbers where it comes from a file of an earlier version."""

    word: Word
    """The decision in a word."""
    probability: Share | None = None
    """[share] Probability that the SLO is met, with cost error."""
    probability_by_noise: Share | None = None
    """[share] Probability that the SLO is met by sampling noise alone, as if costs were exact."""
    r: Ratio | None = None
    """Quantile at the goal of latency / limit, the largest over the limits of a request; 16 stands for anything larger,
    and for no full answer."""
    r_noise: Ends | None = None
    """95% interval of `r` by sampling noise."""
    r_total: Ends | None = None
    """95% interval of `r` with cost error."""
    r_by_limit: dict[str, Ratio] = {}
    """Quantile at the goal of latency / limit, of each limit alone."""
    first_limit: str | None = None
    """The limit with the largest quantile in `r_by_limit`: it fails first."""
    slo_class: str | None = None
    """The class with the largest r, which decides; null without classes."""
    edge_by: Cause | None = None
    """What keeps the decision from being sure; null if nothing does."""
    break_even: Ratio | None = None
    """Factor on the latency of `first_limit` up to which the SLO is met; null if another limit fails as well."""
    goal: Share | None = None
    """[share] Requests that must meet every limit."""
    attained_frac: Share | None = None
    """[share] Requests that met every limit, over all runs with predicted costs."""
    n_missed: Count | None = None
    """Requests that missed a limit, over all runs with predicted costs."""
    n_requests: Count | None = None
    """Requests of all runs with predicted costs."""
    n_runs: Count = 1
    """Runs with predicted costs."""
    n_draws: Count = 0
    """Draws of costs; 0 if costs count as exact."""
    why: str = ""
    """`edge_by` in words; empty if nothing keeps it from being sure."""
