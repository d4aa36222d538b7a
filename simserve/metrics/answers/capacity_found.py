"""What a capacity study found: the highest rate or concurrency, the fewest replicas, or the best split of GPUs."""

from collections.abc import Mapping
from typing import Literal

from simserve.metrics.answers.capacity_loads import Attained, SearchEnd
from simserve.metrics.answers.parts import Bounded, FoundLoad, Limit, NearCapacityJson, StudiedFleet
from simserve.metrics.answers.struct import Ratio, Share, Struct
from simserve.metrics.summary_schema import Cause, Count, Measured, Number, Size, Word
from simserve.metrics.summary_schema import Share as KnownShare


class Efficiency(Struct):
    """What a load comes to per GPU, dollar and kWh; None where a GPU has no price or power."""

    per_gpu_s: Bounded
    """[/s] Requests per second and GPU."""
    per_usd: Bounded | None
    """[/USD] Requests per dollar, at the catalog's prices; null without a price."""
    per_kwh: Bounded | None
    """[/kWh] Requests per kWh, by the data sheets; null without a power."""
    fleet: StudiedFleet
    """Size, price and power of the cluster."""


class FoundPrecision(Struct):
    """How precisely the highest load is known, and what fails beyond it."""

    confidence: KnownShare
    """[share] Confidence of its interval: 0.95."""
    n_seeds: Count
    """Seeds behind it."""
    n_requests: Count
    """Requests of these runs."""
    n_enough: bool
    """Whether the goal allows at least ten of them to miss."""
    is_precise: bool
    """Whether half of its interval is at most `precision_frac` of it, or the whole number is known."""
    precision_frac: KnownShare
    """[share] The precision that was asked for."""
    fails_first: Limit
    """What fails beyond it: a limit, or `queue`."""
    kv_limit_is_a_guess: bool | None = None
    """Whether a replica held more than 90% of an estimated number of KV blocks."""


class HighestRate(FoundPrecision):
    """The highest rate."""

    scale: Bounded | None = None
    """The highest rate as a multiple of the scenario's rates."""
    offered_per_s: FoundLoad
    """[/s] The highest rate, with the rate to count on."""

    @property
    def load(self) -> FoundLoad:
        """Return the highest load."""
        return self.offered_per_s


class FoundRate(Efficiency, HighestRate):
    """The highest rate with its efficiency, and how it compares with the capacity of its cluster."""

    probability_beyond_capacity: Share = None
    """[share] Probability that it is beyond capacity, over draws of costs; null as in summary.json."""
    near_capacity: NearCapacityJson | None = None
    """It against capacity; null as in summary.json."""


class HighestConcurrency(FoundPrecision):
    """The highest concurrency, and the throughput there."""

    concurrency: FoundLoad
    """The most clients, with the number to count on."""
    attained_frac: Attained = None
    """[share] Requests that meet every limit there."""
    requests_per_s: Number
    """[/s] Requests that were answered there."""
    output_tokens_per_s: Measured
    """[tokens/s] Output tokens of the requests of `requests_per_s`."""
    clients_per_gpu: Number
    """Clients per GPU."""
    enough_turns: bool
    """Whether a run has at least ten requests per client; with fewer, the burst at the start dominates."""

    @property
    def load(self) -> FoundLoad:
        """Return the highest load."""
        return self.concurrency


class FoundClients(Efficiency, HighestConcurrency):
    """The highest concurrency with its efficiency."""


class FoundReplicas(Struct):
    """A number of replicas."""

    replicas: Size
    """Replicas of the pool."""
    decision: Literal["met", "edge", "missed"] | None = None
    """`met`, `edge` or `missed`."""
    attained_frac: Attained = None
    """[share] Requests that met every limit."""
    low_frac: Attained
    """[share] Low end of its 95% interval; null without an interval."""
    high_frac: Attained
    """[share] High end of its 95% interval; null without an interval."""
    n_seeds: Count
    """Seeds behind it."""
    fleet: StudiedFleet
    """Size, price and power of the cluster."""
    word: Word | None = None
    """The decision in the words of summary.json; left out if costs were not drawn."""
    probability: Share = None
    """[share] Probability that it meets the goal, with cost error; left out if costs were not drawn."""
    r: Ratio = None
    """Quantile at the goal of latency / limit; left out if costs were not drawn."""
    edge_by: Cause | None = None
    """What keeps it on the edge; null if nothing does."""


class SplitLoad(Struct):
    """The highest rate of one division of the GPUs."""

    split: str
    """Prefill : decode replicas, or `together`."""
    replicas: Mapping[str, Count]
    """Replicas by pool."""
    state: SearchEnd
    """Where the search ended: `found`, or with `every load` or `no load` meeting the goal."""
    offered_per_s: FoundLoad
    """[/s] The highest rate: that of the last load if every load meets the goal, 0 if none does."""
    fails_first: Limit
    """What fails beyond it: a limit, or `queue`."""

    @property
    def load(self) -> FoundLoad:
        """Return the highest load."""
        return self.offered_per_s


class SplitRate(Efficiency, SplitLoad):
    """The highest rate of one division of the GPUs, with its efficiency."""


class FoundSplit(SplitRate):
    """The best division."""

    confidence: KnownShare
    """[share] Confidence of the intervals: 0.95."""
    n_seeds: Count
    """Seeds of each load."""
    is_clear: bool
    """Whether its interval lies above those of all others."""
