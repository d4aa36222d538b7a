"""Figures: all that summary.json holds. A figure is a line here: its name, type, unit and meaning, and its function.

The file, its schema (docs/summary.schema.json) and its table in docs/outputs.md come from these lines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import new_class
from typing import Any, Literal, Required

from typing_extensions import TypedDict

from simserve.metrics.answer import AnswerJson, run_answer
from simserve.metrics.basis import RunBasis
from simserve.metrics.classes import GroupJson, by_tenant
from simserve.metrics.drawn_load import LoadJson
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import AttainmentJson, FatesJson, GoodputJson, good_tokens, goodput
from simserve.metrics.kv import (
    HostTierJson,
    KvUseJson,
    PreemptionsJson,
    PrefixHitsJson,
    host_tier,
    preemptions,
    prefix_cache,
)
from simserve.metrics.lifetimes import FleetTimeJson
from simserve.metrics.reliability import TrustJson
from simserve.metrics.routing import RoutingJson, routing
from simserve.metrics.sessions import RetryFactsJson, SessionsJson, WastedJson, retries, sessions, wasted
from simserve.metrics.slowest import TimeSplitJson, time_split
from simserve.metrics.speculation import SpeculationJson, speculation
from simserve.metrics.stats import LatencyJson
from simserve.metrics.summary_schema import (
    Amount,
    Measured,
    NearCapacityJson,
    PredictionJson,
    ReplicationsJson,
    Share,
    Slo,
)
from simserve.metrics.transfer import TransferJson, transfer
from simserve.metrics.utilization import PoolJson, pool_figures
from simserve.metrics.window import WindowFactsJson
from simserve.tables.pieces import in_turn
from simserve.tables.schema import SCHEMA
from simserve.version import __version__


@dataclass(frozen=True)
class Entry:
    """A key of summary.json."""

    name: str
    type: Any
    compute: Callable[[RunBasis], Any] | None
    """None: not of the run alone; the answer comes from all other figures, and studies add more."""
    unit: str = ""
    meaning: str = ""
    """What docs/outputs.md says; empty: what it says of the figure before."""


def summary(run: RunBasis) -> dict[str, Any]:
    """Compute all figures of a run; NaN where one could not be measured."""
    numbers = {each.name: each.compute(run) for each in in_turn(FIGURES, run.requests) if each.compute}
    return numbers | {"answer": run_answer(numbers, GOAL_FRAC)}


# fmt: off
FIGURES: tuple[Entry, ...] = (
    Entry("schema", Required[Literal["simserve/1"]], lambda run: SCHEMA, "",
          "what was run; `digest` is the scenario's hash"),
    Entry("version", str, lambda run: __version__),
    Entry("name", Required[str], lambda run: run.facts.name),
    Entry("seed", int, lambda run: run.facts.seed),
    Entry("digest", str, lambda run: run.facts.digest),
    Entry("simulated_s", Amount, lambda run: run.facts.end_s, "s", "simulated time, and wall time of the run"),
    Entry("wall_s", Amount, lambda run: run.facts.wall_s),
    Entry("window", Required[WindowFactsJson], lambda run: run.window.figures(), "",
          "`start_s`, `end_s`, `duration_s` (the divisor of rates), `ends_with`; `settled`: whether `warmup_s: "
          "auto` found the end of the warm-up (null if you set the warm-up)"),
    Entry("requests", Required[FatesJson], lambda run: {"offered": len(run.requests["arrival_s"]), **run.outcomes}, "",
          "`offered` in all; of the window: `arrived`, `finished`, `rejected`, `timed_out`, `failed`, "
          "`unfinished`, and `reasons`: the three most frequent `status_reason` of requests that did not finish, "
          "with counts"),
    Entry("slo", Slo, lambda run: dict(run.facts.slo), "s",
          "the goals by latency: of all requests, and of each class that has its own"),
    Entry("slo_classes", dict[str, Slo], lambda run: run.facts.slo_classes),
    Entry("ttft_s", LatencyJson, lambda run: run.latencies["ttft_s"].figures(), "s",
          "each `n`, `mean`, `std`, `p50`, `p90`, `p95`, `p99`, `p99.9`, `max`, and `intervals`; see below. "
          "`itl_s` pools every gap between two tokens, exactly"),
    Entry("tpot_s", LatencyJson, lambda run: run.latencies["tpot_s"].figures()),
    Entry("itl_s", LatencyJson, lambda run: run.latencies["itl_s"].figures()),
    Entry("e2e_s", LatencyJson, lambda run: run.latencies["e2e_s"].figures()),
    Entry("queue_s", LatencyJson, lambda run: run.latencies["queue_s"].figures()),
    Entry("offered_per_s", Measured, lambda run: run.rates["offered_per_s"], "/s", "arrivals"),
    Entry("requests_per_s", Measured, lambda run: run.rates["requests_per_s"], "/s",
          "of the window's requests that finished at any time, divided by the length of the window"),
    Entry("served_per_s", Measured, lambda run: run.rates["served_per_s"], "/s",
          "requests that finished within the window, no matter when they arrived: the throughput of the cluster"),
    Entry("input_tokens_per_s", Measured, lambda run: run.rates["input_tokens_per_s"], "/s",
          "tokens of the requests of `requests_per_s`"),
    Entry("output_tokens_per_s", Measured, lambda run: run.rates["output_tokens_per_s"]),
    Entry("total_tokens_per_s", Measured, lambda run: run.rates["total_tokens_per_s"]),
    Entry("load", LoadJson, lambda run: run.load, "",
          "drawn against nominal load over the window: `kind` (`requests` or `sessions`), `drawn_per_s`, "
          "`nominal_per_s`, `off_frac` (drawn over nominal, less 1). Retries, later turns and batch jobs do not "
          "count. `nominal_per_s` and `off_frac` are null for traces, closed loops and arrival plug-ins without "
          "`expected`"),
    Entry("slo_attainment", AttainmentJson | None, lambda run: run.attained, "",
          "of this run alone; null without an SLO; see below"),
    Entry("goodput", GoodputJson | None,
          lambda run: run.attained
          and goodput(run.attained["n_met"], run.window, run.facts) | good_tokens(run.requests, run.window, run.met),
          "",
          "SLO-meeting requests `per_s`, `per_gpu_s` (per GPU and second), `per_usd` (per dollar, at the catalog's "
          "prices), and their `output_tokens_per_s` and `total_tokens_per_s`; null without an SLO"),
    Entry("time_split", TimeSplitJson | None, lambda run: time_split(run.requests, run.window, run.facts), "",
          "what the window's finished requests waited for; null if none finished; see below"),
    Entry("preemptions", PreemptionsJson, lambda run: preemptions(run.requests, run.window), "",
          "of the window's requests: `n`, `requests` with at least one, `requests_frac`, `recomputed_tokens`"),
    Entry("classes", dict[str, GroupJson] | None, lambda run: run.classes, "",
          "the results of each class and each tenant; null if the load has none; see below"),
    Entry("tenants", dict[str, GroupJson] | None,
          lambda run: by_tenant(run.requests, run.facts, run.window, run.met, run.latencies_of)),
    Entry("retries", RetryFactsJson, lambda run: retries(run.requests, run.window), "",
          "of the requests with their first attempt in the window: `requests`, `attempts`, "
          "`attempts_per_request`; `succeeded` and `succeeded_frac`: finally answered; `slo_met_frac`: with an "
          "attempt that met the SLO (null without one); `e2e_s` of the answered requests, from the first attempt"),
    Entry("wasted", WastedJson, lambda run: wasted(run.requests, run.steps), "",
          "of the whole run: `tokens`, the sum of `wasted_tokens`, and `frac` of all tokens that steps computed"),
    Entry("prefix_cache", PrefixHitsJson, lambda run: prefix_cache(run.requests, run.window), "",
          "of the window's requests: `hit_tokens` served by a cache, `hit_frac` of their prompt tokens, "
          "`requests_frac` with any; hits after a preemption do not count"),
    Entry("transfer", TransferJson | None, lambda run: transfer(run.requests, run.window, run.facts, run.use), "",
          "null unless pools have roles ([disaggregation.md](disaggregation.md)). `apart_frac`: the share of the "
          "window's requests with a prompt that went to a prefill replica, except `kept_frac`: requests that a prefill "
          "replica also answered. For requests that were handed off: `n`; `mean`, `p50` ... of `transfer_s`; "
          "`bytes` sent; and `found_tokens`, which the decode side already had. `link_busy_frac` of the busiest "
          "port over the whole run; `mean_wait_s` for `prefill`, `link` and `decode`; `binds`: the bottleneck "
          "among these, or null"),
    Entry("routing", RoutingJson | None, lambda run: routing(run.requests, run.window, run.facts), "",
          "null with one replica. Over the replicas that receive requests ([routers.md](routers.md)): "
          "`busiest_frac`: the largest share of the window's requests at one replica; `outstanding_std`: the "
          "standard deviation of outstanding requests across replicas, root mean square over the window, null if "
          "replicas joined or left; `session_kept_frac`: of requests that follow another of their session, the "
          "share sent to the same replica, null without sessions"),
    Entry("host_tier", HostTierJson | None, lambda run: host_tier(run.requests, run.window, run.facts), "",
          "null without host memory ([host-tier.md](host-tier.md)). For the window's requests: `n_swaps`, "
          "`requests_frac` with any, `hit_tokens` on `gpu`, `host` and `disk`. For the whole run and all GPUs: "
          "`swapped_out_bytes`, split into `swapped_in_bytes` that came back, `dropped_bytes` still cached on the "
          "GPU, and `left_bytes` still out at the end (no swaps with `scope: pool`); `written_bytes` and "
          "`read_bytes` of prefixes, `disk_written_bytes` and `disk_read_bytes`; `wait_s`: time that steps waited "
          "for copies, summed over replicas; `read_s`: time that requests waited for prefix reads while others "
          "went on, summed"),
    Entry("sessions", SessionsJson | None, lambda run: sessions(run.requests, run.window), "",
          "null unless requests wait for other answers ([sessions.md](sessions.md)). For sessions with their "
          "first request in the window: `n`, `finished` (all planned requests, at any attempt), `refused` (the last "
          "attempt of a request was refused, timed out or failed), `cut` (the load or the run ended first). For "
          "the finished ones: `requests_mean`, `per_s` of the window, and mean, percentiles and `max` of `e2e_s` "
          "(first request to last answer) and of `in_flight_s` (the part of it with a request in flight)"),
    Entry("speculation", SpeculationJson | None,
          lambda run: speculation(run.requests, run.spans, run.steps, run.window, run.facts), "",
          "null unless a pool speculates ([speculation.md](speculation.md)). Of the window's finished requests: "
          "`request_steps`: decode steps of one request each; `tokens_per_step`: their mean output; "
          "`proposed_tokens`, `accepted_tokens`, `accepted_frac`. `drafting_frac`: share of the compute time of "
          "such pools, over the whole run, spent on proposals"),
    Entry("kv", KvUseJson, lambda run: run.kv, "",
          "`blocks` and `tokens` of all replicas (means over the run if replicas join or leave); `peak_blocks` and "
          "`peak_frac` of the fullest replica, over the whole run; `reservation`: see below"),
    Entry("gpu_seconds", Amount, lambda run: run.lives.gpu_seconds(), "s",
          "GPU time of the run, from when each replica was ordered to its end"),
    Entry("fleet", FleetTimeJson, lambda run: run.lives.by_state(), "s",
          "the same by state: `starting_gpu_s`, `serving_gpu_s`, `draining_gpu_s`"),
    Entry("busy_frac", Measured, lambda run: run.use.whole.busy_frac, "share",
          "over the window, all replicas while they were ready"),
    Entry("mfu", Measured, lambda run: run.use.whole.mfu),
    Entry("mbu", Measured, lambda run: run.use.whole.mbu),
    Entry("pools", Required[list[PoolJson]],
          lambda run: pool_figures(run.facts, run.use, run.lives.gpus_by_pool(run.window.span_s)),
          "", "the facts of each pool; see below"),
    Entry("trust", Required[TrustJson], lambda run: run.trust, "", "which numbers to trust; see below"),
    Entry("notes", list[str], lambda run: list(run.facts.notes), "",
          "sentences. Notes: what the load's reader or generator did. Warnings: what to know before you trust the "
          "numbers"),
    Entry("warnings", list[str], lambda run: run.warnings),
    Entry("answer", AnswerJson | None, None, "",
          "the decision about the SLO and what it rests on; null without an SLO; see below"),
    Entry("replications", ReplicationsJson | None, None, "",
          "the estimates over all runs; only with `--replications` or `--precision`; see below"),
    Entry("prediction", PredictionJson | None, None, "",
          "latencies with other loads and perturbed costs; null if nothing was replayed; see below"),
    Entry("probability_beyond_capacity", Share | None, None, "share",
          "the probability that the nominal load is beyond capacity, over draws of costs "
          "([statistics.md](statistics.md#near-capacity)); null without replays, for closed loops and batch jobs, "
          "and if the requests of the run do not fill the cluster"),
    Entry("near_capacity", NearCapacityJson | None, None, "",
          "`offered_per_s`, `capacity_per_s` and the ends of its prediction interval, `low_per_s` and "
          "`high_per_s`; `confidence`, `n_draws`; null if the load is too far from capacity for costs to matter"),
)
# fmt: on


SUMMARY: Any = new_class(
    "Summary",
    (TypedDict,),
    {"total": False},
    lambda body: body.update(
        __doc__="The whole file.", __module__=__name__, __annotations__={each.name: each.type for each in FIGURES}
    ),
)
"""The type of all that summary.json holds.

Later versions only add keys: readers ignore those that they do not know, and may find none of those that are not
Required, which the first version had.
"""
