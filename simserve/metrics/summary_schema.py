"""Summary schema: types of numbers in answer files, and of what studies add to summary.json; `figures.py` has the rest.

Later versions only add keys: readers ignore those that they do not know, and may find none of those that are not
Required, which the first version had.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

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


def with_facts(facts: type, ranges: Mapping[Any, Any], *left_out: str) -> Callable[[type], type]:
    """Decorate a mapping with the fields of facts as further keys, with ranges for their numbers."""

    def decorated(own: type) -> type:
        keys = {each.name: ranges.get(each.type, each.type) for each in fields(facts) if each.name not in left_out}
        made: type = TypedDict(own.__name__, keys | own.__annotations__, total=False)  # type: ignore[misc]
        made.__doc__ = own.__doc__
        return made

    return decorated


Size = Annotated[int, Field(ge=1, le=10**9)]


class OverJson(TypedDict):
    """A measure over replications."""

    mean: Signed
    low: Signed
    high: Signed


class ReachedPrecisionJson(TypedDict):
    """What --precision came to."""

    of: str
    asked_frac: Measured
    reached_frac: Measured
    is_reached: bool


class ReplicationsJson(TypedDict, total=False):
    """Estimates over several runs."""

    n: Required[Count]
    seeds: Required[list[int]]
    confidence: Share
    n_requests: Required[Count]
    states: Required[dict[Queue, Count]]
    measures: Required[dict[str, OverJson]]
    precision: ReachedPrecisionJson | None


class PredictionJson(TypedDict, total=False):
    """Where latencies lie with other loads and costs."""

    replays: Required[Count]
    confidence: Required[Share]
    latencies: Required[dict[str, dict[str, Annotated[Sequence[Number], Field(min_length=2, max_length=2)] | None]]]
    attainment: EndsJson | None
    n_met: Count | None
    slo_probability: Share | None


class NearCapacityJson(TypedDict):
    """Offered rate against capacity, over draws of costs."""

    offered_per_s: Measured
    capacity_per_s: Measured
    low_per_s: Measured
    high_per_s: Measured
    confidence: Share
    n_draws: Count
