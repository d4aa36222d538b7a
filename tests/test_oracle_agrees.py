"""The fast engine and the plain oracle agree exactly, on random scenarios and to the picosecond."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.recorder import FINISHED, REJECTED, SPAN_ROW, STRETCH_ROW
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.base import Router
from simserve.routers.least_kv import LeastKv
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.power_of_two import PowerOfTwo
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.continuous import Continuous
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.schedulers.sglang import SgLang
from simserve.schedulers.static import Static
from simserve.schedulers.trtllm import TrtLlm
from simserve.workload.trace import Prefixes, Trace
from tests import oracle
from tests.doubles import LineCost, trace

ROUTERS = (RoundRobin, Random, LeastOutstanding, LeastKv, PowerOfTwo)


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """Any policy, with small knobs so that every limit binds now and then."""
    seats = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["chunked", "prefill_first", "continuous", "trtllm", "sglang", "static", "dynamic"]))
    if kind == "chunked":
        return Chunked(
            max_num_batched_tokens=seats + draw(st.integers(0, 40)),
            max_num_seqs=seats,
            long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 11])),
            scheduler_reserve_full_isl=draw(st.booleans()),
        )
    if kind == "prefill_first":
        return PrefillFirst(max_num_batched_tokens=draw(st.sampled_from([None, 25])), max_num_seqs=seats)
    if kind == "continuous":
        return Continuous(max_num_seqs=seats)
    if kind == "trtllm":
        return TrtLlm(
            max_num_tokens=seats + draw(st.integers(0, 60)),
            max_batch_size=seats,
            capacity_scheduler_policy=draw(st.sampled_from(["guaranteed_no_evict", "max_utilization"])),
            enable_chunked_context=draw(st.booleans()),
        )
    if kind == "sglang":
        return SgLang(
            chunked_prefill_size=draw(st.sampled_from([None, 7, 16, 48])),
            max_prefill_tokens=draw(st.sampled_from([20, 64])),
            max_running_requests=draw(st.sampled_from([None, seats])),
            enable_mixed_chunk=draw(st.booleans()),
            schedule_conservativeness=draw(st.sampled_from([0.0, 0.1, 1.0])),
            new_token_ratio_decay_steps=draw(st.sampled_from([7, 600])),
            retract_decode_steps=draw(st.integers(0, 20)),
            clip_max_new_tokens_estimation=draw(st.sampled_from([9, 4096])),
        )
    if kind == "static":
        return Static(batch_size=seats, stream=draw(st.booleans()))
    return Dynamic(batch_size=seats, window_s=draw(st.sampled_from([0.0, 0.011, 0.2])), stream=draw(st.booleans()))


@st.composite
def setups(draw: st.DrawFn) -> list[ReplicaSetup]:
    """One to three replicas of one kind, with few enough blocks that they run out."""
    scheduler = draw(schedulers())
    cost = draw(st.sampled_from([
        LineCost(step=5_000_003, token=70_001, row=11, pair=101, key=1_009, shared=50_021),
        LineCost(step=1_000_000),
        LineCost(token=1_000_000),
        LineCost(step=10, key=1_000_000, pair=13),
    ]))  # fmt: skip
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    n_blocks = -(-draw(st.integers(60, 160)) // block_size)
    limit = min(n_blocks * block_size, draw(st.sampled_from([10**6, 50])))
    n_stages, n_in_step = draw(st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]))
    setup = ReplicaSetup(scheduler, cost, n_blocks, block_size, limit, draw(st.booleans()), n_stages, n_in_step)
    return [setup] * draw(st.integers(1, 3))


@st.composite
def disaggregated(draw: st.DrawFn) -> list[ReplicaSetup]:
    """One or two prefill and as many decode replicas, unlike each other; in any order."""
    pools = []
    roles: list[Literal["prefill", "decode"]] = ["prefill", "decode"]
    for role in draw(st.permutations(roles)):
        setup, *_ = draw(setups().filter(lambda found: can_be_apart(found[0].scheduler)))
        pools += [replace(setup, role=role)] * draw(st.integers(1, 2))
    return pools


@st.composite
def caching(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Replicas that cache prefixes, perhaps only those that compute prompts for others."""
    apart, together = disaggregated(), setups().filter(lambda found: can_be_apart(found[0].scheduler))
    n_blocks_an_id = draw(st.integers(1, 3))
    return [
        setup if setup.role == "decode" else replace(setup, block_tokens=n_blocks_an_id * setup.block_size)
        for setup in draw(st.one_of(together, together, apart))
    ]


@st.composite
def shared_prompts(draw: st.DrawFn, block_tokens: int) -> Trace:
    """Each prompt begins as an earlier one does, up to some block; its own ids may go on into its answer."""
    load = draw(traces())
    chains: list[list[int]] = [[]]
    n_ids = 0
    for prompt, output in zip(load.prompt_tokens, load.output_tokens, strict=True):
        most = int(prompt + output) // block_tokens
        parent = chains[draw(st.integers(0, len(chains) - 1))]
        chain = parent[: draw(st.integers(0, most))]
        n_new = draw(st.integers(0, most - len(chain)))
        chains.append(chain + list(range(n_ids, n_ids + n_new)))
        n_ids += n_new
    ids = np.array([block for chain in chains[1:] for block in chain], np.int64)
    offsets = np.cumsum([0, *map(len, chains[1:])])
    return replace(load, prefixes=Prefixes.from_ids(block_tokens, ids, offsets))


def can_be_apart(scheduler: Scheduler) -> bool:
    """Prompts and answers of one request need not be at one replica."""
    return not scheduler.reserves and not scheduler.runs_to_completion


@st.composite
def links(draw: st.DrawFn) -> LinkSpec:
    """Far quicker than a step, or as slow as several."""
    return LinkSpec(draw(st.sampled_from([1e-9, 1.37e-7, 1e-6])), draw(st.sampled_from([0, 1_000_003, 10**9])))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to 25 requests; whole milliseconds, so that arrivals tie with each other and with step ends."""
    n = draw(st.integers(1, 25))
    unit_s = draw(st.sampled_from([1e-6, 1e-5, 1e-3, 0.0137]))
    gaps = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    most = draw(st.none() | st.lists(st.integers(1, 45), min_size=n, max_size=n))
    return trace(list(np.cumsum(gaps) * unit_s), prompts, outputs, most)


@st.composite
def front_ends(draw: st.DrawFn) -> FrontEnd:
    """None, or one whose work takes about as long as a step."""
    unit_ps = draw(st.sampled_from([0, 0, 1_000_003, 10**9]))
    receive_ps, token_ps, respond_ps = (unit_ps * draw(st.integers(0, 3)) for _ in range(3))
    return FrontEnd(receive_ps, token_ps, respond_ps, draw(st.integers(1, 3)))


def own(setups: list[ReplicaSetup]) -> list[ReplicaSetup]:
    """Policies may keep state, so that each replica has a copy."""
    return [replace(setup, scheduler=deepcopy(setup.scheduler)) for setup in setups]


def run_both(
    setups: list[ReplicaSetup],
    router: type[Router],
    load: Trace,
    concurrency: int | None,
    front_end: FrontEnd | None = None,
    link: LinkSpec | None = None,
) -> tuple[Cluster, oracle.OracleRun]:
    """The same question to both, each with policies of its own."""

    def how() -> Disaggregation | None:
        return None if link is None else Disaggregation(router(), link)

    cluster = Cluster(own(setups), router(), Offered(load, concurrency), 7, front_end, how())
    cluster.run()
    return cluster, oracle.run(own(setups), router(), load, 7, concurrency, front_end, how())


def request_rows(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    """What the engine recorded of each request that was not refused."""
    columns = cluster.recorder.columns
    names = (
        "replica",
        "cached_tokens",
        "prefill_replica",
        "transfer_ps",
        "scheduled_ps",
        "first_token_ps",
        "finish_ps",
        "preempted_ps",
        "n_preemptions",
    )
    table = np.stack([columns[name] for name in (*names, "n_recomputed_tokens")], axis=1).tolist()
    return {row: tuple(values) for row, values in enumerate(table) if columns["status"][row] != 2}


def oracle_rows(run: oracle.OracleRun) -> dict[int, tuple[int, ...]]:
    """The same of the oracle."""
    return {
        row: (
            life.replica,
            life.cached_tokens,
            life.prefill_replica,
            life.transfer_ps,
            life.scheduled_ps,
            life.token_ps[0],
            life.finish_ps,
            life.preempted_ps,
            life.n_preemptions,
            life.n_recomputed_tokens,
        )
        for row, life in run.lives.items()
    }


def engine_steps(cluster: Cluster, replica: int) -> list[dict[str, int]]:
    """The stretches of a replica, one row a step."""
    steps = []
    for values in cluster.recorder.stretches(replica).tolist():
        row = dict(zip(STRETCH_ROW.names or (), values, strict=True))
        at_ps = row["start_ps"]
        for i in range(row["n_steps"]):
            end_ps = at_ps + row["first_ps"] + i * row["growth_ps"]
            steps.append(
                row
                | {
                    "start_ps": at_ps,
                    "end_ps": end_ps,
                    "kv_tokens": row["kv_tokens"] + i * row["decode_requests"],
                    "is_first": i == 0,
                }
            )
            at_ps = end_ps
    return steps


def token_times(cluster: Cluster) -> dict[int, list[int]]:
    """Every token's time, from spans and stretches alone, as a reader of the files would find it."""
    times: dict[int, list[int]] = {}
    for replica in range(len(cluster.replicas)):
        ends = [step["end_ps"] for step in engine_steps(cluster, replica) if step["decode_requests"]]
        for values in cluster.recorder.spans(replica).tolist():
            span = dict(zip(SPAN_ROW.names or (), values, strict=True))
            mine = times.setdefault(span["request_id"], [])
            mine += [span["join_ps"], *ends[span["first_step"] : span["last_step"] + 1]]
    return times


BUDGET_THEN_BLOCKS = ReplicaSetup(
    SgLang(
        chunked_prefill_size=7,
        max_prefill_tokens=20,
        enable_mixed_chunk=True,
        schedule_conservativeness=0.0,
        new_token_ratio_decay_steps=7,
        retract_decode_steps=0,
        clip_max_new_tokens_estimation=9,
    ),
    LineCost(step=5_000_003, token=70_001, row=11, pair=101, key=1_009),
    n_blocks=15,
    block_size=4,
    max_model_len=60,
)
"""Decoding requests leave no room for a chunk, and some steps later no blocks either, which the policy remembers."""


@example([BUDGET_THEN_BLOCKS], RoundRobin, trace([0.0] * 5, [1] * 5, [12, 11, 10, 10, 1]), None, FrontEnd())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setups(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5), front_ends())
def test_engine_and_oracle_agree_on_every_request_step_and_token(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, front_end: FrontEnd
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, front_end))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(caching(), links(), st.sampled_from((*ROUTERS, PrefixAffinity)), st.data(), st.none() | st.integers(1, 5))
def test_engine_and_oracle_agree_on_prefix_caches(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, data: st.DataObject, concurrency: int | None
) -> None:
    load = data.draw(shared_prompts(next(setup.block_tokens for setup in setups if setup.block_tokens) or 1))
    is_apart = any(setup.role == "decode" for setup in setups)
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link if is_apart else None))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(disaggregated(), links(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5))
def test_engine_and_oracle_agree_on_prefill_and_decode_pools(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link))


def assert_agreement(setups: list[ReplicaSetup], cluster: Cluster, truth: oracle.OracleRun) -> None:
    """On every request, step and token."""
    assert request_rows(cluster) == oracle_rows(truth)
    assert cluster.rows.arrivals.tolist() == truth.sent_ps
    assert set(np.flatnonzero(cluster.recorder.columns["status"] == 2)) == truth.rejected
    for index, replica in enumerate(truth.replicas):
        steps = engine_steps(cluster, index)
        assert [
            (s["start_ps"], s["end_ps"], s["prefill_tokens"], s["decode_requests"], s["kv_tokens"]) for s in steps
        ] == [(s.start_ps, s.end_ps, s.prefill_tokens, s.decode_requests, s.kv_tokens) for s in replica.steps]
        at_starts = [
            (mine["kv_blocks_used"], mine["queue_len"], true.used_blocks, true.queue_len)
            for mine, true in zip(steps, replica.steps, strict=True)
            if mine["is_first"]
        ]
        assert [a[:2] for a in at_starts] == [a[2:] for a in at_starts]
    if all(setup.scheduler.stream for setup in setups):
        assert {row: sorted(times) for row, times in token_times(cluster).items()} == {
            row: life.token_ps for row, life in truth.lives.items()
        }


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setups(), st.sampled_from(ROUTERS), traces())
def test_requests_blocks_and_tokens_are_conserved(setups: list[ReplicaSetup], router: Any, load: Trace) -> None:
    cluster = Cluster(own(setups), router(), Offered(load), router_seed=1)
    cluster.run()
    recorder = cluster.recorder
    assert recorder.n_with(FINISHED) + recorder.n_with(REJECTED) == len(load)
    for replica in cluster.replicas:
        assert (replica.pool.free_blocks, replica.pool.used_blocks, replica.pool.reserved_blocks) == (
            replica.total_blocks,
            0,
            0,
        )
        assert (replica.cohort.n, replica.cohort.kv_tokens, sum(replica.cohort.crossings)) == (0, 0, 0)
        assert replica.n_outstanding == 0
        stretches = recorder.stretches(replica.index)
        held = stretches["kv_blocks_used"] + stretches["kv_blocks_reserved"]
        assert (held >= 0).all()
        assert (held <= replica.total_blocks).all()
    asked = sum(cluster.rows.output_tokens[row] for row in range(len(load)) if recorder.columns["status"][row] == 1)
    spans = [recorder.spans(replica.index) for replica in cluster.replicas]
    assert asked == sum(int((2 + s["last_step"] - s["first_step"]).sum()) for s in spans)
