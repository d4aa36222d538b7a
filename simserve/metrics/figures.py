"""Figures: all that summary.json holds. A figure is a key here, with its type, its function of a run, and its meaning.

The file, its schema (docs/summary.schema.json) and its table in docs/outputs.md come from these keys.
"""

from collections.abc import Callable, Collection, Sequence
from inspect import isfunction
from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.metrics.answer import AnswerJson
from simserve.metrics.answers.over_runs import NearCapacityJson, PredictionJson, ReplicationsJson
from simserve.metrics.answers.parts import NO_LOAD, NominalLoad
from simserve.metrics.answers.pools import PoolJson
from simserve.metrics.answers.struct import Figures
from simserve.metrics.basis import RunBasis
from simserve.metrics.classes import GroupJson, by_tenant
from simserve.metrics.decision_json import EARLIER, DecisionJson
from simserve.metrics.goodput import AttainmentJson, FatesJson, GoodputJson, good_tokens, goodput
from simserve.metrics.kv import host_tier, preemptions, prefix_cache
from simserve.metrics.kv_json import HostTierJson, KvUseJson, PreemptionsJson, PrefixHitsJson
from simserve.metrics.lifetimes import FleetTimeJson
from simserve.metrics.ratio_groups import TailJson
from simserve.metrics.reliability import TrustJson
from simserve.metrics.routing import RoutingJson, TransferJson, routing, transfer
from simserve.metrics.sessions import RetryFactsJson, SessionsJson, WastedJson, retries, sessions, wasted
from simserve.metrics.slowest import TimeSplitJson, time_split
from simserve.metrics.stats import NO_SAMPLE, LatencyJson
from simserve.metrics.summary_schema import Amount, Measured, Share, Slo
from simserve.metrics.utilization import SpeculationJson, pool_figures, speculation
from simserve.metrics.window import WindowFactsJson
from simserve.tables.files import plain
from simserve.tables.pieces import in_turn
from simserve.tables.schema import SCHEMA
from simserve.version import __version__


class Summary(Figures, extra="allow"):
    """The whole file."""

    # Later versions only add keys: readers keep those that they do not know, and those with a default may be missing. A
    # key without a function comes from all others or from a study; one without a docstring, which is what
    # docs/outputs.md says after its unit, has that of the key before.
    of_version: Annotated[Literal["simserve/1"], Field(alias="schema"), lambda run: SCHEMA]
    """what was run; `digest` is the scenario's hash"""
    version: Annotated[str, lambda run: __version__] = ""
    name: Annotated[str, lambda run: run.facts.name]
    seed: Annotated[int, lambda run: run.facts.seed] = 0
    digest: Annotated[str, lambda run: run.facts.digest] = ""
    simulated_s: Annotated[Amount, lambda run: run.facts.end_s] = 0
    """[s] simulated time, and wall time of the run"""
    wall_s: Annotated[Amount, lambda run: run.facts.wall_s] = 0
    window: Annotated[WindowFactsJson, lambda run: run.window.figures()]
    """`start_s`, `end_s`, `duration_s` (the divisor of rates), `ends_with`; `settled`: whether `warmup_s: auto` found
    the end of the warm-up (null if you set the warm-up)"""
    requests: Annotated[FatesJson, lambda run: run.outcomes]
    """`offered` in all; of the window: `arrived`, `finished`, `rejected`, `timed_out`, `failed`, `unfinished`, and
    `reasons`: the three most frequent `status_reason` of requests that did not finish, with counts"""
    slo: Annotated[Slo, lambda run: dict(run.facts.slo)] = Field(default_factory=dict)
    """[s] the goals by latency: of all requests, and of each class that has its own"""
    slo_classes: Annotated[dict[str, Slo], lambda run: run.facts.slo_classes] = Field(default_factory=dict)
    ttft_s: Annotated[LatencyJson, lambda run: run.measured.latency("ttft_s").all_figures] = NO_SAMPLE
    """[s] each `n`, `mean`, `std`, `p50`, `p90`, `p95`, `p99`, `p99.9`, `max`, and `intervals`; see below. `itl_s`
    pools every gap between two tokens, exactly"""
    tpot_s: Annotated[LatencyJson, lambda run: run.measured.latency("tpot_s").all_figures] = NO_SAMPLE
    itl_s: Annotated[LatencyJson, lambda run: run.measured.latency("itl_s").all_figures] = NO_SAMPLE
    e2e_s: Annotated[LatencyJson, lambda run: run.measured.latency("e2e_s").all_figures] = NO_SAMPLE
    queue_s: Annotated[LatencyJson, lambda run: run.measured.latency("queue_s").all_figures] = NO_SAMPLE
    offered_per_s: Annotated[Measured, lambda run: run.rates["offered_per_s"]] = None
    """[/s] arrivals"""
    requests_per_s: Annotated[Measured, lambda run: run.rates["requests_per_s"]] = None
    """[/s] of the window's requests that finished at any time, divided by the length of the window"""
    served_per_s: Annotated[Measured, lambda run: run.rates["served_per_s"]] = None
    """[/s] requests that finished within the window, no matter when they arrived: the throughput of the cluster"""
    input_tokens_per_s: Annotated[Measured, lambda run: run.rates["input_tokens_per_s"]] = None
    """[/s] tokens of the requests of `requests_per_s`"""
    output_tokens_per_s: Annotated[Measured, lambda run: run.rates["output_tokens_per_s"]] = None
    total_tokens_per_s: Annotated[Measured, lambda run: run.rates["total_tokens_per_s"]] = None
    load: Annotated[NominalLoad, lambda run: run.load] = NO_LOAD
    """drawn against nominal load over the window: `kind` (`requests` or `sessions`), `drawn_per_s`, `nominal_per_s`,
    `off_frac` (drawn over nominal, less 1). Retries, later turns and batch jobs do not count. `nominal_per_s` and
    `off_frac` are null for traces, closed loops and arrival plug-ins without `expected`"""
    slo_attainment: Annotated[AttainmentJson | None, lambda run: run.attained] = None
    """of this run alone; null without an SLO; see below"""
    goodput: Annotated[
        GoodputJson | None,
        lambda run: goodput(run.attained, run.window, run.facts, **good_tokens(run.requests, run.window, run.met)),
    ] = None
    """SLO-meeting requests `per_s`, `per_gpu_s` (per GPU and second), `per_usd` (per dollar, at the catalog's prices),
    and their `output_tokens_per_s` and `total_tokens_per_s`; null without an SLO"""
    time_split: Annotated[TimeSplitJson | None, lambda run: time_split(run.measured.split, run.window, run.facts)] = (
        None
    )
    """what the window's finished requests waited for; null if none finished; see below"""
    preemptions: Annotated[PreemptionsJson, lambda run: preemptions(run.requests, run.window)] = (
        PreemptionsJson.model_construct()
    )
    """of the window's requests: `n`, `requests` with at least one, `requests_frac`, `recomputed_tokens`"""
    classes: Annotated[dict[str, GroupJson] | None, lambda run: run.classes] = None
    """the results of each class and each tenant; null if the load has none; see below"""
    tenants: Annotated[
        dict[str, GroupJson] | None,
        lambda run: by_tenant(run.requests, run.facts, run.window, run.met, run.measured.latencies_of),
    ] = None
    retries: Annotated[RetryFactsJson, lambda run: retries(run.requests, run.window)] = RetryFactsJson.model_construct()
    """of the requests with their first attempt in the window: `requests`, `attempts`, `attempts_per_request`;
    `succeeded` and `succeeded_frac`: finally answered; `slo_met_frac`: with an attempt that met the SLO (null without
    one); `e2e_s` of the answered requests, from the first attempt"""
    wasted: Annotated[WastedJson, lambda run: wasted(run.requests, run.steps)] = WastedJson.model_construct()
    """of the whole run: `tokens`, the sum of `wasted_tokens`, and `frac` of all tokens that steps computed"""
    prefix_cache: Annotated[PrefixHitsJson, lambda run: prefix_cache(run.requests, run.window)] = (
        PrefixHitsJson.model_construct()
    )
    """of the window's requests: `hit_tokens` served by a cache, `hit_frac` of their prompt tokens, `requests_frac` with
    any; hits after a preemption do not count"""
    transfer: Annotated[
        TransferJson | None,
        lambda run: run.facts.link and transfer(run.requests, run.window, run.facts, run.measured.use),
    ] = None
    """null unless pools have roles ([disaggregation.md](disaggregation.md)). `apart_frac`: the share of the window's
    requests with a prompt that went to a prefill replica, except `kept_frac`: requests that a prefill replica also
    answered. For requests that were handed off: `n`; `mean`, `p50` ... of `transfer_s`; `bytes` sent; and
    `found_tokens`, which the decode side already had. `link_busy_frac` of the busiest port over the whole run;
    `mean_wait_s` for `prefill`, `link` and `decode`; `binds`: the bottleneck among these, or null"""
    routing: Annotated[RoutingJson | None, lambda run: routing(run.requests, run.window, run.facts)] = None
    """null with one replica. Over the replicas that receive requests ([routers.md](routers.md)): `busiest_frac`: the
    largest share of the window's requests at one replica; `outstanding_std`: the standard deviation of outstanding
    requests across replicas, root mean square over the window, null if replicas joined or left; `session_kept_frac`: of
    requests that follow another of their session, the share sent to the same replica, null without sessions"""
    host_tier: Annotated[HostTierJson | None, lambda run: host_tier(run.requests, run.window, run.facts)] = None
    """null without host memory ([host-tier.md](host-tier.md)). For the window's requests: `n_swaps`, `requests_frac`
    with any, `hit_tokens` on `gpu`, `host` and `disk`. For the whole run and all GPUs: `swapped_out_bytes`, split into
    `swapped_in_bytes` that came back, `dropped_bytes` still cached on the GPU, and `left_bytes` still out at the end
    (no swaps with `scope: pool`); `written_bytes` and `read_bytes` of prefixes, `disk_written_bytes` and
    `disk_read_bytes`; `wait_s`: time that steps waited for copies, summed over replicas; `read_s`: time that requests
    waited for prefix reads while others went on, summed"""
    sessions: Annotated[SessionsJson | None, lambda run: sessions(run.requests, run.window)] = None
    """null unless requests wait for other answers ([sessions.md](sessions.md)). For sessions with their first request
    in the window: `n`, `finished` (all planned requests, at any attempt), `refused` (the last attempt of a request was
    refused, timed out or failed), `cut` (the load or the run ended first). For the finished ones: `requests_mean`,
    `per_s` of the window, and mean, percentiles and `max` of `e2e_s` (first request to last answer) and of
    `in_flight_s` (the part of it with a request in flight)"""
    speculation: Annotated[
        SpeculationJson | None,
        lambda run: speculation(run.requests, run.spans, run.steps, run.window, run.facts),
    ] = None
    """null unless a pool speculates ([speculation.md](speculation.md)). Of the window's finished requests:
    `request_steps`: decode steps of one request each; `tokens_per_step`: their mean output; `proposed_tokens`,
    `accepted_tokens`, `accepted_frac`. `drafting_frac`: share of the compute time of such pools, over the whole run,
    spent on proposals"""
    kv: Annotated[KvUseJson, lambda run: run.kv] = KvUseJson.model_construct()
    """`blocks` and `tokens` of all replicas (means over the run if replicas join or leave); `peak_blocks` and
    `peak_frac` of the fullest replica, over the whole run; `reservation`: see below"""
    gpu_seconds: Annotated[Amount, lambda run: run.lives.gpu_seconds()] = 0
    """[s] GPU time of the run, from when each replica was ordered to its end"""
    fleet: Annotated[FleetTimeJson, lambda run: run.lives.by_state()] = FleetTimeJson.model_construct()
    """[s] the same by state: `starting_gpu_s`, `serving_gpu_s`, `draining_gpu_s`"""
    busy_frac: Annotated[Measured, lambda run: run.measured.use.whole.busy_frac] = None
    """[share] over the window, all replicas while they were ready"""
    mfu: Annotated[Measured, lambda run: run.measured.use.whole.mfu] = None
    mbu: Annotated[Measured, lambda run: run.measured.use.whole.mbu] = None
    pools: Annotated[
        list[PoolJson],
        lambda run: pool_figures(run.facts, run.measured.use, run.lives.gpus_by_pool(run.window.span_s)),
    ]
    """the facts of each pool; see below"""
    trust: Annotated[TrustJson, lambda run: run.trust]
    """which numbers to trust; see below"""
    notes: Annotated[Sequence[str], lambda run: run.facts.notes] = ()
    """sentences. Notes: what the load's reader or generator did. Warnings: what to know before you trust the numbers"""
    warnings: Annotated[Sequence[str], lambda run: run.warnings] = ()
    decision: Annotated[DecisionJson | None, lambda run: run.decision and run.decision.facts()] = None
    """whether the SLO is met, by its margin ([statistics.md](statistics.md#the-decision)); null without an SLO or
    requests; see below"""
    tails: Annotated[Sequence[TailJson], lambda run: run.tails] = ()
    """of each class, or of all requests: r in groups, the highest first, with the `counts` of requests in each; studies
    pool runs by them"""
    answer: AnswerJson | None = None
    """what earlier versions said of the SLO; `decision` is `met` where that says `meets`, `missed` where it says
    `misses` or `saturated`, else `edge`; it will go with the next version; see below"""
    replications: ReplicationsJson | None = None
    """the estimates over all runs; only with `--replications` or `--precision`; see below"""
    prediction: PredictionJson | None = None
    """latencies with other loads and perturbed costs; null if nothing was replayed; see below"""
    probability_beyond_capacity: Share | None = None
    """[share] the probability that the nominal load is beyond capacity, over draws of costs
    ([statistics.md](statistics.md#near-capacity)); null without replays, for closed loops and batch jobs, and if the
    requests of the run do not fill the cluster"""
    near_capacity: NearCapacityJson | None = None
    """`offered_per_s`, `capacity_per_s` and the ends of its prediction interval, `low_per_s` and `high_per_s`;
    `confidence`, `n_draws`; null if the load is too far from capacity for costs to matter"""

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
