"""Summary schema: types of numbers in answer files."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

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
