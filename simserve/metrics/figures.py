"""Figures: all that summary.json holds. A figure is a key here, with its type, its function of a run, and its meaning.

The file, its schema (docs/summary.schema.json) and its reference come from these keys.
"""

from collections.abc import Callable, Collection, Sequence
from inspect import isfunction
from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.metrics.answer import AnswerJson
from simserve.metrics.answers.parts import NO_LOAD, NearCapacityJson, NominalLoad, PredictionJson, ReplicationsJson
from simserve.metrics.answers.pools import PoolJson
from simserve.metrics.answers.struct import Figures
from simserve.metrics.basis import RunBasis
from simserve.metrics.classes import GroupJson, by_tenant, by_version
from simserve.metrics.goodput import AttainmentJson, FatesJson, GoodputJson, good_tokens, goodput
from simserve.metrics.kv import host_tier, preemptions, prefix_cache
from simserve.metrics.kv_json import HostTierJson, KvUseJson, PreemptionsJson, PrefixHitsJson
from simserve.metrics.lifetimes import FleetTimeJson
from simserve.metrics.reliability import TrustJson
from simserve.metrics.routing import RoutingJson, TransferJson, routing, transfer
from simserve.metrics.scaling import ScalingJson
from simserve.metrics.sessions import RetryFactsJson, SessionsJson, WastedJson, retries, sessions, wasted
from simserve.metrics.slowest import TimeSplitJson, time_split
from simserve.metrics.stats import NO_SAMPLE, LatencyJson, TailJson
from simserve.metrics.storms import StormJson
from simserve.metrics.summary_schema import EARLIER, Amount, DecisionJson, Measured, Share, Slo
from simserve.metrics.utilization import SpeculationJson, pool_figures, speculation
from simserve.metrics.window import WindowFactsJson
from simserve.tables.files import plain
from simserve.tables.pieces import in_turn
from simserve.tables.schema import SCHEMA
from simserve.version import __version__


class Summary(Figures, extra="allow"):
    """Figures of a run."""

    # Later versions only add keys: readers keep those that they do not know, and those with a default may be missing. A
    # key without a function comes from all others or from a study.
    of_version: Annotated[Literal["simserve/1"], Field(alias="schema"), lambda run: SCHEMA]
    """Version of the schema, `simserve/1`; later versions only add keys and columns."""
    version: Annotated[str, lambda run: __version__] = ""
    """Version of simserve that ran it."""
    name: Annotated[str, lambda run: run.facts.name]
    """Name of the scenario."""
    seed: Annotated[int, lambda run: run.facts.seed] = 0
    """Seed of the run."""
    digest: Annotated[str, lambda run: run.facts.digest] = ""
    """Hash of the scenario."""
    simulated_s: Annotated[Amount, lambda run: run.facts.end_s] = 0
    """[s] Simulated time."""
    wall_s: Annotated[Amount, lambda run: run.facts.wall_s] = 0
    """[s] Wall time of the run."""
    window: Annotated[WindowFactsJson, lambda run: run.window.figures()]
    """When requests count: from the end of the warm-up to the last offered arrival."""
    requests: Annotated[FatesJson, lambda run: run.outcomes]
    """Requests by what became of them."""
    slo: Annotated[Slo, lambda run: dict(run.facts.slo)] = Field(default_factory=dict)
    """[s] Limits by latency, of requests without limits of their class."""
    slo_classes: Annotated[dict[str, Slo], lambda run: run.facts.slo_classes] = Field(default_factory=dict)
    """[s] Limits by latency of each class that has its own."""
    ttft_s: Annotated[LatencyJson, lambda run: run.measured.latency("ttft_s").all_figures] = NO_SAMPLE
    """[s] Time to the first token, of the finished requests of the window."""
    tpot_s: Annotated[LatencyJson, lambda run: run.measured.latency("tpot_s").all_figures] = NO_SAMPLE
    """[s] Time per output token after the first, of the finished requests of the window."""
    itl_s: Annotated[LatencyJson, lambda run: run.measured.latency("itl_s").all_figures] = NO_SAMPLE
    """[s] Every gap between two tokens, pooled over the finished requests of the window, exactly."""
    e2e_s: Annotated[LatencyJson, lambda run: run.measured.latency("e2e_s").all_figures] = NO_SAMPLE
    """[s] Time to the last token, of the finished requests of the window."""
    queue_s: Annotated[LatencyJson, lambda run: run.measured.latency("queue_s").all_figures] = NO_SAMPLE
    """[s] Time until the first step that gave it tokens, of the finished requests of the window."""
    offered_per_s: Annotated[Measured, lambda run: run.rates["offered_per_s"]] = None
    """[/s] Arrivals in the window over its length."""
    requests_per_s: Annotated[Measured, lambda run: run.rates["requests_per_s"]] = None
    """[/s] Requests of the window that finished at any time, over its length."""
    served_per_s: Annotated[Measured, lambda run: run.rates["served_per_s"]] = None
    """[/s] Requests that finished within the window, no matter when they arrived: the throughput."""
    input_tokens_per_s: Annotated[Measured, lambda run: run.rates["input_tokens_per_s"]] = None
    """[tokens/s] Prompt tokens of the requests of `requests_per_s`."""
    output_tokens_per_s: Annotated[Measured, lambda run: run.rates["output_tokens_per_s"]] = None
    """[tokens/s] Output tokens of the requests of `requests_per_s`."""
    total_tokens_per_s: Annotated[Measured, lambda run: run.rates["total_tokens_per_s"]] = None
    """[tokens/s] Prompt and output tokens of the requests of `requests_per_s`."""
    load: Annotated[NominalLoad, lambda run: run.load] = NO_LOAD
    """Drawn against nominal load over the window; retries, later turns and batch jobs do not count."""
    slo_attainment: Annotated[AttainmentJson | None, lambda run: run.attained] = None
    """Share of requests that met the SLO, of this run alone; null without an SLO."""
    goodput: Annotated[
        GoodputJson | None,
        lambda run: goodput(run.attained, run.window, run.facts, **good_tokens(run.requests, run.window, run.met)),
    ] = None
    """Rates of the requests that met the SLO; null without an SLO."""
    time_split: Annotated[TimeSplitJson | None, lambda run: time_split(run.measured.split, run.window, run.facts)] = (
        None
    )
    """Where the time of the window's finished requests went; null if none finished."""
    preemptions: Annotated[PreemptionsJson, lambda run: preemptions(run.requests, run.window)] = (
        PreemptionsJson.model_construct()
    )
    """Preemptions of the window's requests."""
    classes: Annotated[dict[str, GroupJson] | None, lambda run: run.classes] = None
    """Results of each class, of requests without one under `default`; null if the load has no classes."""
    tenants: Annotated[
        dict[str, GroupJson] | None,
        lambda run: by_tenant(run.requests, run.facts, run.window, run.met, run.measured.latencies_of),
    ] = None
    """Results of each tenant; null if the load has none."""
    versions: Annotated[
        dict[str, GroupJson] | None,
        lambda run: by_version(run.requests, run.facts, run.window, run.met, run.measured.latencies_of),
    ] = None
    """Results of the pools of a roll-out, of requests that arrived while its new version and another one served; null
    without one."""
    retries: Annotated[RetryFactsJson, lambda run: retries(run.requests, run.window)] = RetryFactsJson.model_construct()
    """Attempts of the requests with their first attempt in the window."""
    retry_storm: Annotated[StormJson | None, lambda run: run.storm] = None
    """Storms of retries and what they sustain, over the whole run; null without retries (docs/fleets.md)."""
    wasted: Annotated[WastedJson, lambda run: wasted(run.requests, run.steps)] = WastedJson.model_construct()
    """Tokens computed in vain, over the whole run."""
    prefix_cache: Annotated[PrefixHitsJson, lambda run: prefix_cache(run.requests, run.window)] = (
        PrefixHitsJson.model_construct()
    )
    """What a prefix cache served to the window's requests; hits after a preemption do not count."""
    transfer: Annotated[
        TransferJson | None,
        lambda run: run.facts.link and transfer(run.requests, run.window, run.facts, run.measured.use),
    ] = None
    """Hand-offs from prefill to decode replicas; null unless pools have roles (docs/disaggregation.md)."""
    routing: Annotated[RoutingJson | None, lambda run: routing(run.requests, run.window, run.facts)] = None
    """Balance of the replicas that receive requests; null with one of these (docs/routers.md)."""
    host_tier: Annotated[HostTierJson | None, lambda run: host_tier(run.requests, run.window, run.facts)] = None
    """Swaps and caches in host memory and on disk; null without a host tier (docs/host-tier.md)."""
    sessions: Annotated[SessionsJson | None, lambda run: sessions(run.requests, run.window)] = None
    """Sessions with their first request in the window; null unless requests wait for other answers
    (docs/sessions.md)."""
    speculation: Annotated[
        SpeculationJson | None, lambda run: speculation(run.requests, run.spans, run.steps, run.window, run.facts)
    ] = None
    """Proposed tokens; null unless a pool speculates (docs/speculation.md)."""
    kv: Annotated[KvUseJson, lambda run: run.kv] = KvUseJson.model_construct()
    """KV blocks: in all, at the peak, and reserved."""
    gpu_seconds: Annotated[Amount, lambda run: run.lives.gpu_seconds()] = 0
    """[s] GPU time of the run, from when each replica was ordered to its end."""
    fleet: Annotated[FleetTimeJson, lambda run: run.lives.by_state()] = FleetTimeJson.model_construct()
    """[s] GPU time by the state of replicas."""
    scaling: Annotated[ScalingJson | None, lambda run: run.scaling] = None
    """What happened to a fleet that changed; null for a fixed one (docs/fleets.md)."""
    busy_frac: Annotated[Measured, lambda run: run.measured.use.whole.busy_frac] = None
    """[share] Time with a step in progress, over the window, of all replicas while they were ready."""
    mfu: Annotated[Measured, lambda run: run.measured.use.whole.mfu] = None
    """[share] FLOP/s of all computation over the data-sheet peak, over the window."""
    mbu: Annotated[Measured, lambda run: run.measured.use.whole.mbu] = None
    """[share] Bytes/s of all computation over the data-sheet bandwidth, over the window."""
    pools: Annotated[
        list[PoolJson], lambda run: pool_figures(run.facts, run.measured.use, run.lives.gpus_by_pool(run.window.span_s))
    ]
    """Facts of each pool."""
    trust: Annotated[TrustJson, lambda run: run.trust]
    """Which numbers to trust."""
    notes: Annotated[Sequence[str], lambda run: run.facts.notes] = ()
    """What the load's reader or generator did, in sentences."""
    warnings: Annotated[Sequence[str], lambda run: run.warnings] = ()
    """What to know before you trust the numbers, in sentences."""
    decision: Annotated[DecisionJson | None, lambda run: run.decision and run.decision.facts()] = None
    """Whether the SLO is met, by its margin (docs/statistics.md#the-decision); null without an SLO or requests."""
    tails: Annotated[Sequence[TailJson], lambda run: run.tails] = ()
    """Latency / limit of the requests of each class, or of all, in groups; studies pool runs by them."""
    answer: AnswerJson | None = None
    """What earlier versions said of the SLO, instead of `decision`; the next version leaves it out."""
    replications: ReplicationsJson | None = None
    """Estimates over all runs; only with `--replications` or `--precision`."""
    prediction: PredictionJson | None = None
    """Latencies with other loads and perturbed costs (docs/statistics.md#replays); null if nothing was replayed."""
    probability_beyond_capacity: Share | None = None
    """[share] Probability that the nominal load is beyond capacity, over draws of costs
    (docs/statistics.md#near-capacity); null without replays, for closed loops and batch jobs, and if the run's requests
    do not fill the cluster."""
    near_capacity: NearCapacityJson | None = None
    """Nominal load against capacity; null if the load is too far from capacity for costs to matter."""

    @property
    def service_s(self) -> float:
        """Mean time of an answer without waiting; 0 without any."""
        return max((self.e2e_s.mean or 0.0) - (self.queue_s.mean or 0.0), 0.0)

    @property
    def attained(self) -> AttainmentJson:
        """The attainment of a run that has an SLO."""
        assert self.slo_attainment is not None, "a study of an SLO has runs with one"
        return self.slo_attainment

    @property
    def decided(self) -> DecisionJson | None:
        """The decision, which files of earlier versions have as a word alone; None without one."""
        if self.decision is not None or self.answer is None:
            return self.decision
        return DecisionJson(word=EARLIER[self.answer.decision], slo_class=self.answer.slo_class)


FIGURES: dict[str, Callable[[RunBasis], Any]] = {
    field.alias or name: function
    for name, field in Summary.model_fields.items()
    for function in filter(isfunction, field.metadata)
}
"""The function of each figure of a run alone, in the order of the file."""


def figures_of(run: RunBasis) -> Summary:
    """Compute all figures of a run alone."""
    return Summary(**{name: FIGURES[name](run) for name in in_turn(FIGURES, run.requests)})


def part_of(run: RunBasis, keys: Collection[str]) -> Summary:
    """Compute the figures with these keys; a reader of any other gets an AttributeError, not its default."""
    figures = {key: plain(FIGURES[key](run)) for key in in_turn(dict.fromkeys(keys), run.requests)}
    part = Summary.model_construct(**figures)
    for name in part.__dict__.keys() - keys:
        del part.__dict__[name]
    return part
