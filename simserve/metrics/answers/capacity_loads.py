"""Loads of a capacity: those that ran, the highest for each SLO and class alone, and the knees of latency."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.parts import Bounded
from simserve.metrics.answers.struct import AS_GIVEN, FINITE, Column, Count, PerS, Share, Struct, Text, titled
from simserve.metrics.decision_json import Word
from simserve.metrics.summary_schema import Amount, Measured, Number

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")

SearchEnd = Literal["found", "every load", "no load"]
"""Where a search ended."""

Attained = Annotated[Measured, FINITE, Column("share", "float", "share 0..1")]
Clients = Annotated[Measured, AS_GIVEN, FINITE, Column("count", "float")]
OutputTokensPerS = Annotated[Measured, FINITE, Column("amount", "float", "tokens/s")]
Levels = Annotated[Mapping[str, Measured], FINITE]
"""Seconds by percentile."""


class ProbedLoad(Struct):
    """A load that ran, what it attained and its latencies, means over its runs."""

    split: Text = titled("Split")
    replicas: Count = titled("Replicas")
    concurrency: Clients = None
    scale: Annotated[Amount, AS_GIVEN]
    """Multiple of the scenario's rates; or the number of clients or replicas."""
    offered_per_s: Annotated[Amount, Column("amount", "float", "requests/s")] = Field(title="Offered (requests/s)")
    drawn_per_s: PerS = None
    served_per_s: PerS = titled("Served (requests/s)")
    requests_per_s: PerS
    output_tokens_per_s: OutputTokensPerS = titled("Output (tokens/s)")
    n_runs: Annotated[summary_schema.Count, Column("count", "replica")] = Field(title="Runs")
    n_requests: summary_schema.Count
    attained_frac: Attained = Field(title="Attained (share)")
    low_frac: Attained = Field(title="Attained, low (share)")
    high_frac: Attained = Field(title="Attained, high (share)")
    decision: Literal["met", "edge", "missed"] | None = None
    saturated: Annotated[bool, Column("flag", "flag")] = Field(title="Queue only grows")
    by_slo: Levels
    """Share that met each SLO."""
    ttft_s: Levels
    tpot_s: Levels
    itl_s: Levels
    e2e_s: Levels
    probability_beyond_capacity: Share = None
    word: Word | None = None
    probability: Share = titled("P (goal met)")
    """Probability that it meets the goal, with the error of costs."""

    def latency_s(self, latency: str, level: str) -> float | None:
        """Return a percentile of a latency in seconds; None where no run has one."""
        levels: Mapping[str, float | None] = getattr(self, latency)
        return levels.get(level)


class CriterionLoad(Struct):
    """The highest load for one SLO or class."""

    slo: str | None
    slo_class: str | None
    room_frac: Number
    """Headroom beyond the capacity."""
    state: SearchEnd
    offered_per_s: Bounded | None = None
    concurrency: Bounded | None = None
    attained_frac: Attained = None
    ends_with: Literal["queue", "slo"]


class KneeLoad(Struct):
    """Where a latency begins to rise; a load of None lies beyond those that ran."""

    offered_per_s: Measured = None
    concurrency: Measured = None
    light_s: Amount
    rise: Amount
    level: str | None = None


class LoadCurve(Struct):
    """What lies around a capacity."""

    alone: Sequence[CriterionLoad] = ()
    curve: Sequence[ProbedLoad] = ()
    knees: Mapping[str, KneeLoad] = {}
