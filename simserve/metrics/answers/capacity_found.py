"""What a capacity study found: the highest rate or concurrency, the fewest replicas, or the best split of GPUs."""

from collections.abc import Mapping
from typing import Literal

from simserve.metrics.answers.capacity_loads import Attained, SearchEnd
from simserve.metrics.answers.over_runs import NearCapacityJson
from simserve.metrics.answers.parts import Bounded, FoundLoad, Limit, StudiedFleet
from simserve.metrics.answers.struct import Ratio, Share, Struct
from simserve.metrics.decision_json import Cause, Word
from simserve.metrics.summary_schema import Count, Measured, Number, Size
from simserve.metrics.summary_schema import Share as KnownShare


class Efficiency(Struct):
    """What a load comes to per GPU, dollar and kWh; None where a GPU has no price or power."""

    per_gpu_s: Bounded
    per_usd: Bounded | None
    per_kwh: Bounded | None
    fleet: StudiedFleet


class FoundPrecision(Struct):
    """How precisely the highest load is known, and what fails beyond it."""

    confidence: KnownShare
    n_seeds: Count
    n_requests: Count
    n_enough: bool
    is_precise: bool
    precision_frac: KnownShare
    fails_first: Limit
    kv_limit_is_a_guess: bool | None = None


class HighestRate(FoundPrecision):
    """The highest rate."""

    scale: Bounded | None = None
    offered_per_s: FoundLoad

    @property
    def load(self) -> FoundLoad:
        """Return the highest load."""
        return self.offered_per_s


class FoundRate(Efficiency, HighestRate):
    """The highest rate with its efficiency, and how it compares with the capacity of its cluster."""

    probability_beyond_capacity: Share = None
    near_capacity: NearCapacityJson | None = None


class HighestConcurrency(FoundPrecision):
    """The highest concurrency, and the throughput there."""

    concurrency: FoundLoad
    attained_frac: Attained = None
    requests_per_s: Number
    output_tokens_per_s: Measured
    clients_per_gpu: Number
    enough_turns: bool

    @property
    def load(self) -> FoundLoad:
        """Return the highest load."""
        return self.concurrency


class FoundClients(Efficiency, HighestConcurrency):
    """The highest concurrency with its efficiency."""


class FoundReplicas(Struct):
    """The fewest replicas, or the fewest that are statistically tied with the goal."""

    replicas: Size
    decision: Literal["met", "edge", "missed"] | None = None
    attained_frac: Attained = None
    low_frac: Attained
    high_frac: Attained
    n_seeds: Count
    fleet: StudiedFleet
    word: Word | None = None
    probability: Share = None
    """Probability that it meets the goal, with the error of costs."""
    r: Ratio = None
    edge_by: Cause | None = None


class SplitLoad(Struct):
    """The highest rate of one division of the GPUs."""

    split: str
    replicas: Mapping[str, Count]
    state: SearchEnd
    offered_per_s: FoundLoad
    fails_first: Limit

    @property
    def load(self) -> FoundLoad:
        """Return the highest load."""
        return self.offered_per_s


class SplitRate(Efficiency, SplitLoad):
    """The highest rate of one division of the GPUs, with its efficiency."""


class FoundSplit(SplitRate):
    """The best division."""

    confidence: KnownShare
    n_seeds: Count
    is_clear: bool
