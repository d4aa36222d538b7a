"""Parts that answers of several studies have."""

from typing import Annotated, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from simserve.metrics.summary_schema import Amount, Measured, Signed

Positive = Annotated[float, Field(gt=0, le=1e18)]
Index = Annotated[int, Field(ge=0, le=10**9)]
Verdict = Literal["better", "worse", "same", "unclear"]
Limit = Literal["queue", "ttft_s", "tpot_s", "itl_s", "e2e_s"]
Levels = dict[str, Measured]


class EstimateJson(TypedDict):
    """A number with its interval."""

    value: Signed
    low: Signed
    high: Signed


class BoundsJson(TypedDict):
    """A number that is known, with its interval."""

    value: Amount
    low: Signed
    high: Signed


class ScenarioNameJson(TypedDict, total=False):
    """The scenario that was studied."""

    name: Required[str]
    digest: str
    seed: int


class FleetJson(TypedDict, total=False):
    """Size and price of a cluster."""

    n_gpus: Required[Annotated[int, Field(ge=1, le=10**9)]]
    usd_per_hour: Required[Amount]
    kw: Required[Amount]
    gpus: list[str]


class NominalLoadJson(TypedDict, total=False):
    """Drawn against nominal load."""

    kind: Literal["requests", "sessions"]
    nominal_per_s: Required[Positive | None]
    drawn_per_s: Required[Measured]
    off_frac: Required[Signed]
