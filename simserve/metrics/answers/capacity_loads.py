"""Loads of a capacity: those that ran, the highest for each SLO and class alone, and the knees of latency."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from simserve.metrics import summary_schema
from simserve.metrics.answers.parts import Bounded
from simserve.metrics.answers.struct import AS_GIVEN, FINITE, Column, Count, PerS, Share, Struct, Text, titled
from simserve.metrics.summary_schema import Amount, Measured, Number, Word

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
    """Left out: splits stand in `splits`."""
    replicas: Count = titled("Replicas")
    """Replicas, in a study of these; else null."""
    concurrency: Clients = None
    """Clients, in a study of these; else null."""
    scale: Annotated[Amount, AS_GIVEN]
    """Multiple of the scenario's rates; or the number of clients or replicas."""
    offered_per_s: Annotated[Amount, Column("amount", "float", "requests/s")] = Field(title="Offered (requests/s)")
    """[/s] Arrivals, at the nominal load where there is one."""
    drawn_per_s: PerS = None
    """[/s] Drawn rate."""
    served_per_s: PerS = titled("Served (requests/s)")
    """[/s] Requests that finished within the window."""
    requests_per_s: PerS
    """[/s] Requests of the window that finished at any time."""
    output_tokens_per_s: OutputTokensPerS = titled("Output (tokens/s)")
    """[tokens/s] Output tokens of the requests of `requests_per_s`."""
    n_runs: Annotated[summary_schema.Count, Column("count", "replica")] = Field(title="Runs")
    """Runs."""
    n_requests: summary_schema.Count
    """Requests of these runs."""
    attained_frac: Attained = Field(title="Attained (share)")
    """[share] Requests that met every limit."""
    low_frac: Attained = Field(title="Attained, low (share)")
    """[share] Low end of its 95% interval; null without an interval."""
    high_frac: Attained = Field(title="Attained, high (share)")
    """[share] High end of its 95% interval; null without an interval."""
    decision: Literal["met", "edge", "missed"] | None = None
    """`met`, `edge` or `missed`."""
    saturated: Annotated[bool, Column("flag", "flag")] = Field(title="Queue only grows")
    """Whether the queue only grew."""
    by_slo: Levels
    """[share] Requests that met each limit."""
    ttft_s: Levels
    """[s] Percentiles of the time to the first token."""
    tpot_s: Levels
    """[s] Percentiles of the time per output token."""
    itl_s: Levels
    """[s] Percentiles of the gaps between tokens."""
    e2e_s: Levels
    """[s] Percentiles of the time to the last token."""
    probability_beyond_capacity: Share = None
    """[share] Probability that it is beyond capacity, over draws of costs; null unless it is the scenario's own
    load."""
    word: Word | None = None
    """The decision in the words of summary.json; null where only the attainment decides."""
    probability: Share = titled("P (goal met)")
    """[share] Probability that it meets the goal, with cost error; null as `word`."""

    def latency_s(self, latency: str, level: str) -> float | None:
        """Return a percentile of a latency in seconds; None where no run has one."""
        levels: Mapping[str, float | None] = getattr(self, latency)
        return levels.get(level)


class CriterionLoad(Struct):
    """The highest load for one SLO or class."""

    slo: str | None
    """The limit; null for a class."""
    slo_class: str | None
    """The class; null for a limit."""
    room_frac: Number
    """[share] Headroom beyond the capacity."""
    state: SearchEnd
    """Where the search ended: `found`, or with `every load` or `no load` meeting the goal."""
    offered_per_s: Bounded | None = None
    """[/s] The highest rate; null in a study of concurrency."""
    concurrency: Bounded | None = None
    """The most clients; null in a study of rates."""
    attained_frac: Attained = None
    """[share] Requests that met it where the search ended without a highest load; null with one."""
    ends_with: Literal["queue", "slo"]
    """What fails beyond it: the limit, or the queue, which only grows."""


class KneeLoad(Struct):
    """Where a latency begins to rise."""

    offered_per_s: Measured = None
    """[/s] Rate at which the percentile is `rise` times `light_s`; null beyond the loads that ran."""
    concurrency: Measured = None
    """Clients at which that is so, in a study of these."""
    light_s: Amount
    """[s] The percentile at the lightest load."""
    rise: Amount
    """Factor of the knee."""
    level: str | None = None
    """The percentile."""


class LoadCurve(Struct):
    """What lies around a capacity."""

    alone: Sequence[CriterionLoad] = ()
    """For each limit and class, the highest load by that criterion alone; empty where there is only one."""
    curve: Sequence[ProbedLoad] = ()
    """Loads around the capacity, all with the same seeds."""
    knees: Mapping[str, KneeLoad] = {}
    """Knee of the p99 of each latency."""
