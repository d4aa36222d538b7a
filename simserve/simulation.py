"""simulate(scenario) -> Results: the whole simulator on one page.

    scenario -> setups (model, GPU, engine, policy, memory) -> costs -> replicas behind a router
             -> offered load -> the clock runs -> tables -> metrics

Read on in `engine/cluster.py` (which replica gets a request), `engine/replica.py` (plan, sleep, commit),
`state/cohort.py` (why a step is O(1)), `schedulers/chunked.py` (a policy) and `cost/operations.py` (its price).
"""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np

from simserve.columns import run as columns
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.engine.cluster import Cluster
from simserve.engine.decode import Speculation
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.host_tier import host_facts
from simserve.engine.link import LinkSpec
from simserve.engine.losses import Rescue
from simserve.engine.offered import Backoff, Offered, Patience
from simserve.engine.placement import Placement
from simserve.engine.pods import PoolPlan
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.rollout import RollOut
from simserve.engine.routing_view import Delay
from simserve.engine.scaling import RecordedSignals as RecordedSignals
from simserve.engine.scaling import ReplicaFacts as ReplicaFacts
from simserve.engine.scaling import Scaling
from simserve.engine.tabulate import member_facts, tabulate
from simserve.errors import TraceError
from simserve.forks import can_fork
from simserve.metrics.results import Results
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.cost_warnings import notes, warnings
from simserve.scenario.experiment import traffic_notes
from simserve.scenario.fleet import OnFailure, PlacementSection, Scrape, Shutdown, Spares, Startup
from simserve.scenario.loader import AnyScenario, scenario_from
from simserve.scenario.pool import KvLink
from simserve.scenario.setup import Distortion
from simserve.shards import ShardFailed, run_in_shards
from simserve.tables.facts import (
    BenchFacts,
    HostFacts,
    KvSizes,
    LinkFacts,
    MemberFacts,
    PoolFacts,
    ReservingFacts,
    RunFacts,
    SpeculationFacts,
)
from simserve.tables.run_tables import RunTables
from simserve.tables.scratch import Scratch
from simserve.units import LONGEST, MAX_PS, EndsTooLate, to_ps, to_s
from simserve.workload.load import Load, offered_load

REPORT_EVERY_S = 0.1
"""Wall time between two calls of `progress`."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    n_done: int
    """Requests sent so far."""
    n_total: int | None
    """Requests in all; None for a closed loop that runs for a time."""
    sim_s: float
    """Simulated time."""


OnProgress = Callable[[Progress], None]
"""Called now and then."""


def simulate(
    scenario: AnyScenario,
    *,
    load: Load | None = None,
    progress: OnProgress | None = None,
    distortion: Distortion | None = None,
    jobs: int = 1,
    out: Path | None = None,
) -> Results:
    """Run a scenario to its end. Pure: the same scenario gives the same tables, in any process.

    A scenario may be a path, the name of a shipped one, or plain data, too. A `load` is served instead of its own
    workload; digest and YAML stay those of the scenario. `progress` is called now and then; a `distortion` multiplies
    all costs by its factors. Up to `jobs` processes serve replicas that cannot influence each other; the answer never
    depends on that. A long run keeps its rows in files on the disk of `out`, the folder of its result; by default in
    the system's temporary folder. Raises TraceError for a load that cannot be served, PolicyError for a policy that
    breaks a rule.
    """
    started_s = time.perf_counter()
    scenario = scenario_from(scenario)
    setups = scenario.setups
    if distortion is not None:
        setups = tuple(setup.distorted(distortion) for setup in setups)
    costs = [setup.step_cost() for setup in setups]
    if load is None:
        load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    priced = _Priced(setups, costs, _link(scenario, distortion), Scratch(out))
    served = None
    with suppress(ShardFailed):
        served = _serve(scenario, priced, load, progress, n_shards(scenario, load, jobs))
    priced.scratch.collect()
    if served is None:  # a single process says which error comes first
        served = _serve(scenario, priced, load, progress, 1)
        priced.scratch.collect()
    facts = replace(_run_facts(scenario, priced, load, served), wall_s=time.perf_counter() - started_s)
    return Results.from_run(served.tables, facts, scenario.to_yaml, load.drawn, priced.scratch.collect)


def _run_facts(scenario: Scenario, priced: "_Priced", load: Load, served: "_Served") -> RunFacts:
    """Return the facts of a run, without its wall time."""
    tables, setups, slo = served.tables, priced.setups, scenario.slo
    arrival_s = tables.requests["arrival_s"]
    is_offered = tables.requests["attempt"] == 1  # the window ends with the load, not with retries
    return RunFacts(
        name=scenario.name,
        seed=scenario.seed,
        digest=scenario.digest,
        pools=tuple(map(_pool_facts, setups, priced.costs, (pool.scheduler for pool in scenario.cluster.versions))),
        replica_pool=served.replica_pool,
        peak_kv_blocks=served.peak_kv_blocks,
        slo=slo.default.given,
        slo_classes={name: targets.given for name, targets in slo.classes.items()},
        measure={key: value for key, value in scenario.measure if value is not None and key != "replays"},
        last_arrival_s=float(arrival_s[is_offered].max(initial=0.0)),
        end_s=float(tables.steps["end_s"].max(initial=arrival_s.max(initial=0.0))),
        wall_s=0.0,
        notes=(*load.trace.notes, *notes(scenario.setups), *traffic_notes(slo, scenario.setups, _labels(tables))),
        warnings=warnings(scenario.setups),
        link=_link_facts(priced),
        host_tier=served.host_tier,
        drafting_s=served.drafting_s,
        respond_s=to_s(_front_end(setups).respond_ps),
        members=served.members,
        bench=_bench_facts(scenario),
        changes=scenario.cluster.changes,
    )


def _bench_facts(scenario: Scenario) -> BenchFacts:
    """Return what a benchmark of the same load would be told."""
    load: dict[str, Any] = {**(scenario.workload.arrivals or {}), **(scenario.workload.client or {})}
    rate = load.get("rate_per_s", inf if "concurrency" in load else None)
    bursts = load.get("burstiness", 1.0) if load.get("kind") in ("poisson", "gamma", "vllm_bench") else None
    return BenchFacts("inf" if rate == inf else rate, bursts, load.get("concurrency"))


def _labels(tables: RunTables) -> dict[str, list[Any] | None]:
    """Return the distinct labels of requests, by column."""
    columns = {name: tables.requests[name] for name in ("slo_class", "priority", "tenant")}
    return {name: None if column is None else np.unique(column).tolist() for name, column in columns.items()}


@dataclass(frozen=True)
class _Priced:
    """The pools, the costs of their steps, the link between them, and where the rows of the run lie."""

    setups: Sequence[PoolSetup]
    costs: Sequence[StepCost]
    link: KvLink | None
    scratch: Scratch


@dataclass(frozen=True)
class _Served:
    """Products of the clock."""

    tables: RunTables
    replica_pool: tuple[int, ...]
    """Pool of each rank."""
    peak_kv_blocks: tuple[int, ...]
    """Peak of each rank."""
    drafting_s: tuple[float, ...]
    """Time that each rank spent on proposals."""
    host_tier: HostFacts | None
    """Copies to and from hosts."""
    members: tuple[MemberFacts, ...]


LEAST_SHARDED = 100_000
"""Requests of the shortest load that is served in shards: beside a shorter run, its replays keep the cores busy."""


def n_shards(scenario: Scenario, load: Load, jobs: int) -> int:
    """Return how many processes serve a load: one where replicas influence each other, or for a short load."""
    is_open = load.concurrency is None and load.trace.dependencies is None and not load.n_timed
    n_members = sum(setup.n_independent for setup in scenario.setups)
    if jobs < 2 or not is_open or len(load.trace) < LEAST_SHARDED or scenario.why_one_process() or not can_fork():
        return 1
    return min(jobs, n_members)


def _serve(scenario: Scenario, priced: _Priced, load: Load, progress: OnProgress | None, n_processes: int) -> _Served:
    """Build a cluster, run the clock, and keep its tables."""
    setups = priced.setups
    _check_sessions(scenario, load)
    priced.scratch.is_shared = n_processes > 1
    cluster = _cluster(scenario, priced, load)
    priced.scratch.is_shared = False
    is_open = load.stop_sending_s is not None or scenario.workload.retries is not None
    on_send = _reporter(progress, None if is_open else len(load.trace)) if progress else None
    drain_limit_ps = None if load.drain_limit_s is None else to_ps(load.drain_limit_s)
    try:
        if n_processes > 1:
            run_in_shards(cluster, n_processes, drain_limit_ps, on_send)
        else:
            columns.serve(cluster, drain_limit_ps, on_send)
    except (OverflowError, ValueError, struct.error) as error:  # an instant that a column does not hold
        if cluster.clock.now_ps <= MAX_PS and not isinstance(error, EndsTooLate):
            raise
        raise _too_late(cluster, setups) from error
    replica_pool = tuple(member.setup.pool for member in cluster.members for _ in member.ranks)
    block_bytes = [setups[pool].ledger.block_bytes * setups[pool].gpus_per_lane for pool in replica_pool]
    return _Served(
        tabulate(cluster, np.array(replica_pool, np.int32), tuple(setup.name for setup in setups)),
        replica_pool,
        tuple(r.pool.total_blocks - r.pool.least_free_blocks for r in cluster.replicas),
        tuple(to_s(replica.decode.drafting_ps) for replica in cluster.replicas),
        host_facts([replica.tier for replica in cluster.replicas], block_bytes),
        member_facts(cluster),
    )


def _cluster(scenario: Scenario, priced: _Priced, load: Load) -> Cluster:
    views, has_prefixes = scenario.cluster.views, load.trace.prefixes is not None
    pools = list(enumerate(zip(priced.setups, priced.costs, strict=True)))
    first, seed = priced.setups[0], scenario.seed
    stop_ps = None if load.stop_sending_s is None else to_ps(load.stop_sending_s)
    replicas = [_replica(pool, *of_pool, has_prefixes, seed, first) for pool, of_pool in pools]
    return Cluster(
        [each for pool, (setup, _) in pools for each in replicas[pool].copies(setup.n_independent)],
        scenario.build_router(),
        Offered(load.trace, load.concurrency, load.draw_more, stop_ps, _patience(scenario), n_timed=load.n_timed),
        router_seed=f"router/{scenario.seed}",
        front_end=_front_end(priced.setups),
        disaggregation=_disaggregation(scenario, priced),
        delay=None if views is None else Delay(to_ps(views.refresh_s), views.counts_own_sends),
        admission=scenario.build_admission(),
        control=_control(scenario, priced.setups, replicas),
        scratch=priced.scratch,
    )


def _control(scenario: Scenario, setups: Sequence[PoolSetup], replicas: Sequence[ReplicaSetup]) -> Scaling | None:
    """Return what changes the fleet; None: it stays as it is."""
    cluster = scenario.cluster
    if not cluster.changes:
        return None
    rollout, names = cluster.rollout, [pool.name for pool in cluster.pools]
    turned = () if rollout is None or rollout.pool is None else (cluster.pools[names.index(rollout.pool)],)
    plans = [
        PoolPlan(
            setup.name,
            replica,
            setup.parallel.data // setup.n_sharing,
            setup.gpus_per_replica,
            setup.ledger.weights_bytes * setup.gpus_per_replica,
            pool.startup or Startup(),
            pool.shutdown or Shutdown(),
            pool.spares or Spares(),
        )
        for setup, replica, pool in zip(setups, replicas, (*cluster.pools, *turned), strict=True)
    ]
    nodes, loss = cluster.placement or PlacementSection(), cluster.on_failure or OnFailure()
    return Scaling(
        plans[: len(names)],
        deepcopy([setup.autoscaler for setup in setups[: len(names)]]),  # at once, as pools may share one
        scenario.seed,
        Placement(nodes.gpus_per_node or max(setup.gpu.gpus_per_node for setup in setups), nodes.nodes_per_rack),
        cluster.scrape or Scrape(),
        cluster.failures or (),
        cluster.gpu_budget,
        Rescue(
            loss.clients == "retry",
            loss.migrate != "none",
            loss.max_attempts,
            loss.host_tier == "kept",
            loss.migrate == "with_kv",
        ),
        rollout=None if rollout is None else RollOut(rollout, plans[-1], names.index(rollout.pool or "")),
    )


def _too_late(cluster: Cluster, setups: Sequence[PoolSetup]) -> TraceError:
    """Return the error of a run beyond the instant that 64 bits hold, which names its longest step."""
    longest_ps, pool = 0, ""
    for member in cluster.members:
        for rank in member.ranks:
            runs = cluster.recorder.step_runs(rank.id)
            last_ps = int((runs["first_ps"] + runs["growth_ps"] * (runs["n_steps"] - 1)).max(initial=0))
            longest_ps, pool = max((longest_ps, pool), (last_ps, setups[member.setup.pool].name))
    step = f"a step of pool {pool} took {to_s(longest_ps) / 3600:,.3g} h" if longest_ps else "no step had ended by then"
    rule = f"a run must end within {LONGEST} of simulated time"
    return TraceError(f"{rule}, and {step}; check the constants of engine and calibration, or shorten the load")


def _replica(
    pool: int, setup: PoolSetup, cost: StepCost, has_prefixes: bool, seed: int, first: PoolSetup
) -> ReplicaSetup:
    """Return a replica of a pool; data-parallel ranks that share nothing are replicas of their own. first: the setup of
    the first pool."""
    how = setup.speculation
    speculation = None if how is None else Speculation.drawn(how.rates, seed, how.n_slots)
    return ReplicaSetup(
        deepcopy(setup.scheduler),
        cost if how is None else how.running_cost(cost),
        setup.ledger.lane_blocks,
        setup.ledger.layout.blocks,
        setup.max_model_len,
        setup.plans_ahead,
        n_stages=setup.parallel.pipeline,
        n_in_step=setup.n_sharing,
        role=setup.role,
        caches_prefixes=setup.caches_prefixes and has_prefixes,
        keeps_contents=setup.caches_prefixes,
        host_tier=setup.host_tier,
        speculation=speculation,
        balance=setup.parallel.balance,
        pool=pool,
        has_common_kv=setup.model == first.model,
    )


def _front_end(setups: Sequence[PoolSetup]) -> FrontEnd:
    """Return one front end for all pools, with a server a data-parallel rank, as slow as the slowest engine."""
    receive_ps, token_ps, respond_ps, hand_over_ps = (
        to_ps(max(getattr(setup.engine, name) for setup in setups))
        for name in ("receive_s", "receive_token_s", "respond_s", "hand_over_s")
    )
    n_servers = sum(setup.most_replicas * setup.parallel.data for setup in setups)
    hands_over = any(setup.role != "both" for setup in setups)
    return FrontEnd(receive_ps, token_ps, respond_ps, n_servers, hand_over_ps if hands_over else 0)


def _link(scenario: Scenario, distortion: Distortion | None) -> KvLink | None:
    """Return the link of keys and values, where pools have roles."""
    link, by = scenario.cluster.kv_link, distortion.link if distortion else 1.0
    return link and link.model_copy(update={"bytes_per_s": link.bytes_per_s / by, "latency_s": link.latency_s * by})


def _link_facts(priced: _Priced) -> LinkFacts | None:
    if priced.link is None or all(setup.role == "both" for setup in priced.setups):
        return None
    shard = priced.costs[0].shard
    return LinkFacts(**dict(priced.link), kv_bytes_per_token=_sent_bytes(shard), sizes=_kv_sizes(shard))


def _sent_bytes(shard: Shard) -> float:
    """Return the bytes of a token in all layers that attend; where none does, those of a request's states."""
    return shard.whole.kv_bytes_per_token or shard.model.n_state_layers * shard.whole.state_bytes


def _kv_sizes(shard: Shard) -> KvSizes:
    """Return what crosses the link of a prompt, by group of layers."""
    whole, attending = shard.whole, [group for group in shard.model.groups if group.attends]
    if not attending:
        return KvSizes(0, (), 1)
    layer_bytes = whole.layer_kv_bytes_per_token / max(group.ratio for group in attending)
    sizes = [(ceil(each.n_keeping * whole.token_bytes(each) / layer_bytes), each) for each in attending]
    windows = tuple((n_layers, each.window, each.kind == "chunked") for n_layers, each in sizes if each.window)
    state_bytes = shard.model.n_state_layers * whole.state_bytes
    n_layers = max(1, sum(n_layers for n_layers, _ in sizes))
    return KvSizes(n_layers, windows, ceil(state_bytes / layer_bytes))


def _disaggregation(scenario: Scenario, priced: _Priced) -> Disaggregation | None:
    link, shard, router = priced.link, priced.costs[0].shard, scenario.build_decode_router() or scenario.build_router()
    if link is None:
        return None
    token_s = _sent_bytes(shard) / link.bytes_per_s
    layers = {"by_chunk": 1, "by_layer": shard.model.n_layers}.get(link.transfer)
    spec = LinkSpec(token_s, to_ps(link.latency_s), link.shared, layers, _kv_sizes(shard))
    return Disaggregation(router, spec, link.how == "push", scenario.build_splitter())


def _check_sessions(scenario: Scenario, load: Load) -> None:
    """Check that the load has sessions if a router needs them. Raises TraceError."""
    routers = {"router": scenario.build_router(), "decode_router": scenario.build_decode_router()}
    for key, router in routers.items():
        if router is not None and router.needs_sessions and load.trace.session_id is None:
            kind = (getattr(scenario.cluster, key) or {}).get("kind")
            rule = "keeps the requests of a session together, and this load has no column session_id"
            raise TraceError(f"cluster.{key}: {rule}, got {kind!r}; add the column, or use prefix_affinity")


def _patience(scenario: Scenario) -> Patience | None:
    """Return timeouts and retries of clients; None: they wait."""
    timeout, retries = scenario.workload.timeout, scenario.workload.retries
    if timeout is None and retries is None:
        return None
    backoff = None
    if retries is not None:
        waits_ps = to_ps(retries.backoff_s), retries.multiplier, to_ps(retries.max_backoff_s)
        budget = retries.budget_frac, retries.budget_burst
        backoff = Backoff(retries.max_attempts, *waits_ps, retries.jitter, scenario.seed, *budget)
    if timeout is None:
        return Patience(backoff=backoff)
    ttft_ps, e2e_ps = (None if most_s is None else max(1, to_ps(most_s)) for most_s in (timeout.ttft_s, timeout.e2e_s))
    return Patience(ttft_ps, e2e_ps, backoff, timeout.then == "next_turn")


def _reporter(progress: OnProgress, n_total: int | None) -> Callable[[int, int], None]:
    """Return a callback that calls `progress`, at most once in REPORT_EVERY_S."""
    reported_s = time.perf_counter()

    def on_send(n_sent: int, now_ps: int) -> None:
        nonlocal reported_s
        if time.perf_counter() - reported_s >= REPORT_EVERY_S:
            reported_s = time.perf_counter()
            progress(Progress(n_sent, n_total, to_s(now_ps)))

    return on_send


def _pool_facts(setup: PoolSetup, cost: StepCost, scheduler: Mapping[str, Any] | None) -> PoolFacts:
    return PoolFacts(
        name=setup.name,
        role=setup.role,
        n_replicas=setup.n_replicas,
        gpus_per_replica=setup.gpus_per_replica,
        ranks_per_replica=setup.ranks_per_replica,
        gpu=setup.gpu.name,
        model=setup.model.name,
        engine=setup.engine.name,
        scheduler=str((scheduler or {}).get("kind")),
        slots_argument=setup.scheduler.slots_argument,
        budget_argument=setup.scheduler.budget_argument,
        calibrated=setup.calibrated,
        calibration=setup.calibration_name,
        kv_verified=setup.ledger.verified,
        n_blocks=setup.ledger.lane_blocks,
        block_size=setup.ledger.block_size,
        streamed=setup.scheduler.stream,
        price_per_gpu_hour_usd=setup.gpu.price_per_hour_usd,
        tdp_w=setup.gpu.tdp_w,
        work=cost.work,
        speculation=_speculation_facts(setup, cost),
        blocks_per_tokens=setup.ledger.layout.blocks_per_tokens,
        engine_version=setup.engine.version,
        reserving=_reserving_facts(setup),
    )


def _reserving_facts(setup: PoolSetup) -> ReservingFacts | None:
    policy = setup.scheduler
    if not policy.reserves and policy.most_counted_on is None:
        return None
    return ReservingFacts(policy.max_running, setup.max_model_len, policy.without_reserving, policy.most_counted_on)


def _speculation_facts(setup: PoolSetup, cost: StepCost) -> SpeculationFacts | None:
    how = setup.speculation
    if how is None:
        return None
    model = None if how.model is None else how.model.name
    return SpeculationFacts(how.kind, how.n_proposed, how.rates, model, how.draft_work(cost))
