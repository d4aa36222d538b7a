"""Summary schema: names and types of all that summary.json holds, for its writer and for its readers.

Later versions only add keys: readers ignore those that they do not know, and may find none of those that are not
Required, which the first version had.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from simserve.tables.facts import HostFacts, PoolFacts

Count = Annotated[int, Field(ge=0, le=10**15)]
Number = Annotated[float, Field(ge=-1e18, le=1e18)]
"""Sums and products of a few of these are still finite."""
Amount = Annotated[float, Field(ge=0, le=1e18)]
Share = Annotated[float, Field(ge=0, le=1)]
Measured = Amount | None
"""None, in memory also NaN: it could not be measured."""
Signed = Number | None

Level = Literal["mean", "p50", "p90", "p95", "p99", "p99.9"]
Ends = Annotated[Sequence[Signed], Field(min_length=2, max_length=2)]
"""Low and high."""
Queue = Literal["growing", "critical", "undetermined", "steady"]
Slo = dict[str, Annotated[float, Field(gt=0, le=1e18)]]


def _with_facts(facts: type, ranges: Mapping[Any, Any], *left_out: str) -> Callable[[type], type]:
    """Decorate a mapping with the fields of facts as further keys, with ranges for their numbers."""

    def decorated(own: type) -> type:
        keys = {each.name: ranges.get(each.type, each.type) for each in fields(facts) if each.name not in left_out}
        made: type = TypedDict(own.__name__, keys | own.__annotations__, total=False)  # type: ignore[misc]
        made.__doc__ = own.__doc__
        return made

    return decorated


LatencyJson = TypedDict(
    "LatencyJson",
    {
        "n": Required[Count],
        "mean": Required[Measured],
        "std": Measured,
        "p50": Required[Measured],
        "p90": Required[Measured],
        "p95": Required[Measured],
        "p99": Required[Measured],
        "p99.9": Required[Measured],
        "max": Measured,
        "intervals": dict[str, Ends | None],
    },
    total=False,
)


class WindowFactsJson(TypedDict, total=False):
    """When requests count."""

    start_s: Required[Measured]
    end_s: Required[Measured]
    duration_s: Required[Measured]
    ends_with: str
    settled: bool | None


class FatesJson(TypedDict, total=False):
    """Requests, by what became of them."""

    offered: Count
    arrived: Required[Count]
    finished: Required[Count]
    rejected: Required[Count]
    timed_out: Required[Count]
    failed: Count
    unfinished: Count
    reasons: dict[str, Count]


class AttainmentJson(TypedDict, total=False):
    """Share of requests that met every SLO."""

    frac: Required[Share | None]
    low_frac: Share | None
    high_frac: Share | None
    confidence: Share
    interval: str
    n_batches: Count | None
    correlated: bool | None
    denominator: str
    n_met: Count
    n_arrived: Count
    of_admitted_frac: Share | None
    of_finished_frac: Share | None
    by_slo: dict[str, Share | None]


class GoodputJson(TypedDict, total=False):
    """Requests that met every SLO."""

    per_s: Measured
    per_gpu_s: Measured
    per_usd: Measured
    output_tokens_per_s: Measured
    total_tokens_per_s: Measured


class PreemptionsJson(TypedDict, total=False):
    """Preemptions of the window's requests."""

    n: Count
    requests: Count
    requests_frac: Share | None
    recomputed_tokens: Count


class GroupJson(TypedDict, total=False):
    """Figures of a class or a tenant."""

    requests: Required[FatesJson]
    offered_per_s: Measured
    requests_per_s: Measured
    served_per_s: Measured
    input_tokens_per_s: Measured
    output_tokens_per_s: Measured
    slo_attainment: AttainmentJson | None
    goodput: GoodputJson | None
    preemptions: PreemptionsJson
    priorities: list[int]
    slo: Slo
    ttft_s: LatencyJson
    tpot_s: LatencyJson
    itl_s: LatencyJson
    e2e_s: LatencyJson
    queue_s: LatencyJson


class LoadJson(TypedDict):
    """Drawn against nominal load."""

    kind: Literal["requests", "sessions"]
    nominal_per_s: Annotated[float, Field(gt=0, le=1e18)] | None
    drawn_per_s: Measured
    off_frac: Signed


class TimePartsJson(TypedDict):
    """Parts of a latency, in seconds."""

    front_end_s: Number
    transfer_wait_s: Number
    queue_seats_s: Number
    queue_blocks_s: Number
    queue_budget_s: Number
    queue_turn_s: Number
    prefill_s: Number
    prefill_wait_s: Number
    link_s: Number
    decode_s: Number
    interference_s: Number
    copy_s: Number
    preempted_s: Number
    recompute_s: Number
    batch_wait_s: Number


class SlowestRequestsJson(TypedDict):
    """Where the time of the slowest requests went."""

    n: Count
    from_s: Number
    mean: TimePartsJson
    all: TimePartsJson
    binds: str | None


class TimeSplitJson(TypedDict):
    """Where the time of finished requests went."""

    parts: list[str]
    mean: TimePartsJson
    slowest: dict[str, SlowestRequestsJson | None]


class RetryFactsJson(TypedDict, total=False):
    """Attempts."""

    requests: Count
    attempts: Count
    attempts_per_request: Measured
    succeeded: Count
    succeeded_frac: Measured
    slo_met_frac: Measured
    e2e_s: LatencyJson


class WastedJson(TypedDict, total=False):
    """Work for requests without an answer."""

    tokens: Count
    frac: Measured


class PrefixHitsJson(TypedDict, total=False):
    """Hits of a prefix cache."""

    hit_tokens: Count
    hit_frac: Share | None
    requests_frac: Share | None


class WaitsJson(TypedDict):
    """Mean waits, in seconds."""

    prefill: Measured
    link: Measured
    decode: Measured


TransferJson = TypedDict(
    "TransferJson",
    {
        "apart_frac": Share | None,
        "kept_frac": Share | None,
        "n": Required[Count],
        "mean": Measured,
        "p50": Measured,
        "p90": Measured,
        "p95": Measured,
        "p99": Measured,
        "p99.9": Measured,
        "bytes": Measured,
        "found_tokens": Count,
        "link_busy_frac": Measured,
        "mean_wait_s": WaitsJson,
        "binds": Literal["prefill", "link", "decode"] | None,
    },
    total=False,
)


class RoutingJson(TypedDict, total=False):
    """Balance of replicas."""

    busiest_frac: Share | None
    outstanding_std: Measured
    session_kept_frac: Share | None


class HitTokensJson(TypedDict):
    """Prompt tokens by where they were cached."""

    gpu: Count
    host: Count
    disk: Count


@_with_facts(HostFacts, {float: Measured})
class HostTierJson(TypedDict, total=False):
    """Host memory."""

    n_swaps: Count
    requests_frac: Share | None
    hit_tokens: HitTokensJson


TimesJson = TypedDict(
    "TimesJson",
    {
        "mean": Measured,
        "p50": Measured,
        "p90": Measured,
        "p95": Measured,
        "p99": Measured,
        "p99.9": Measured,
        "max": Measured,
    },
    total=False,
)


class SessionsJson(TypedDict, total=False):
    """Sessions that began in the window."""

    n: Required[Count]
    finished: Count
    refused: Count
    cut: Count
    requests_mean: Measured
    per_s: Measured
    e2e_s: TimesJson
    in_flight_s: TimesJson


class SpeculationJson(TypedDict, total=False):
    """Proposed tokens."""

    request_steps: Count
    tokens_per_step: Measured
    proposed_tokens: Count
    accepted_tokens: Count
    accepted_frac: Measured
    drafting_frac: Measured


class ReservationJson(TypedDict):
    """What requests reserve and use, where reservations keep others waiting."""

    waits_frac: Share
    is_estimate: bool
    at_once: Annotated[int, Field(ge=1)]
    reserved_tokens: Count
    used_tokens: Count
    longest_output_tokens: Count
    max_tokens: Count | None
    without: str | None


class KvUseJson(TypedDict, total=False):
    """Blocks of keys and values."""

    blocks: Count
    tokens: Count
    peak_blocks: Count
    peak_frac: Measured
    reservation: ReservationJson | None


class FleetTimeJson(TypedDict, total=False):
    """GPU-seconds, by state."""

    starting_gpu_s: Measured
    serving_gpu_s: Measured
    draining_gpu_s: Measured


class SpeculatingJson(TypedDict, total=False):
    """How a pool speculates."""

    kind: Required[str]
    tokens: Required[Count]
    acceptance: Sequence[Number]
    model: str | None


Size = Annotated[int, Field(ge=1, le=10**9)]


@_with_facts(PoolFacts, {int: Count, float: Amount, int | float: Amount}, "work", "reserving")
class PoolJson(TypedDict, total=False):
    """A pool."""

    name: Required[str]
    n_replicas: Required[Annotated[int, Field(ge=0, le=10**9)]]
    gpus_per_replica: Required[Size]
    ranks_per_replica: Size
    gpu: Required[str]
    model: Required[str]
    engine: Required[str]
    scheduler: Required[str]
    speculation: SpeculatingJson | None
    mean_gpus: Measured
    busy_frac: Measured
    mfu: Measured
    mbu: Measured


class TrustJson(TypedDict, total=False):
    """Flags that tell which numbers to trust."""

    calibrated: bool
    kv_verified: bool
    kv_limit_is_a_guess: bool
    n_requests: Count
    n_enough_for_p99: bool
    n_enough_for_p999: bool
    saturated: Required[bool]
    steady: Queue
    n_worth: Measured
    backlog_by_thirds: Sequence[Measured]
    free_frac: Measured
    interval_too_narrow: bool


class AnswerJson(TypedDict):
    """The decision about the SLO."""

    decision: Literal["met", "edge", "missed"]
    goal_frac: Share
    attained_frac: Share
    low_frac: Share
    high_frac: Share
    confidence: Share
    n_runs: Count
    n_requests: Count
    basis: Literal["run", "replays", "replications"]
    slo_class: str | None
    load_off_frac: Signed
    queue: Queue | None
    is_far_below: bool
    by_slo: dict[str, Share]


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
    attainment: Ends | None
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


class Summary(TypedDict, total=False):
    """The whole file."""

    schema: Required[Literal["simserve/1"]]
    version: str
    name: Required[str]
    seed: int
    digest: str
    simulated_s: Amount
    wall_s: Amount
    window: Required[WindowFactsJson]
    requests: Required[FatesJson]
    slo: Slo
    slo_classes: dict[str, Slo]
    classes: dict[str, GroupJson] | None
    tenants: dict[str, GroupJson] | None
    ttft_s: LatencyJson
    tpot_s: LatencyJson
    itl_s: LatencyJson
    e2e_s: LatencyJson
    queue_s: LatencyJson
    offered_per_s: Measured
    requests_per_s: Measured
    served_per_s: Measured
    input_tokens_per_s: Measured
    output_tokens_per_s: Measured
    total_tokens_per_s: Measured
    load: LoadJson
    slo_attainment: AttainmentJson | None
    goodput: GoodputJson | None
    time_split: TimeSplitJson | None
    preemptions: PreemptionsJson
    retries: RetryFactsJson
    wasted: WastedJson
    prefix_cache: PrefixHitsJson
    transfer: TransferJson | None
    routing: RoutingJson | None
    host_tier: HostTierJson | None
    sessions: SessionsJson | None
    speculation: SpeculationJson | None
    kv: KvUseJson
    gpu_seconds: Amount
    fleet: FleetTimeJson
    busy_frac: Measured
    mfu: Measured
    mbu: Measured
    pools: Required[list[PoolJson]]
    trust: Required[TrustJson]
    notes: list[str]
    warnings: list[str]
    answer: AnswerJson | None
    replications: ReplicationsJson | None
    prediction: PredictionJson | None
    probability_beyond_capacity: Share | None
    near_capacity: NearCapacityJson | None
