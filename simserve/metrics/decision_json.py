"""Decision as answers hold it: a frozen struct that JSON, its schema, pages and terminal read."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from simserve.metrics.goal import CAP
from simserve.metrics.summary_schema import Count, Share

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
    probability: Share | None = None
    probability_by_noise: Share | None = None
    r: Ratio | None = None
    r_noise: Ends | None = None
    r_total: Ends | None = None
    r_by_limit: dict[str, Ratio] = {}
    first_limit: str | None = None
    slo_class: str | None = None
    edge_by: Cause | None = None
    break_even: Ratio | None = None
    goal: Share | None = None
    attained_frac: Share | None = None
    n_missed: Count | None = None
    n_requests: Count | None = None
    n_runs: Count = 1
    n_draws: Count = 0
    why: str = ""
