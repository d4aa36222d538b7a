"""Engine and oracle agree exactly, on random scenarios and to the picosecond."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simserve.catalog.layers import LayerGroup
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.recorder import FINISHED, REJECTED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.sglang import SgLang
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.state.request import Request
from simserve.state.view import ReplicaView
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import assert_agreement, own, run_both
from tests.doubles import MS, LineCost, plain_blocks, replica_setup, trace
from tests.effort import examples
from tests.oracle_view import OracleRequest, OracleView
from tests.worlds import (
    ROUTERS,
    balanced,
    caching,
    disaggregated,
    front_ends,
    grouped,
    grouped_replica,
    links,
    ordered,
    setups,
    shared_prompts,
    tagged,
    traces,
)

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
    layers=plain_blocks(4),
    max_model_len=60,
)
"""Decoding requests leave no room for a chunk, and some steps later no blocks either; the policy keeps this state."""


@example([BUDGET_THEN_BLOCKS], RoundRobin, trace([0.0] * 5, [1] * 5, [12, 11, 10, 10, 1]), None, FrontEnd())
@settings(max_examples=examples(400))
@given(setups() | grouped(setups()), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5), front_ends())
def test_engine_and_oracle_agree_on_every_request_step_and_token(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, front_end: FrontEnd
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, front_end))


@settings(max_examples=examples(400))
@given(ordered(balanced()) | balanced(), st.sampled_from(ROUTERS), tagged(traces()), st.none() | st.integers(1, 12))
def test_engine_and_oracle_agree_on_ranks_that_wait_for_balance(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency))


@settings(max_examples=examples(400))
@given(
    caching() | grouped(caching()),
    links(),
    st.sampled_from((*ROUTERS, PrefixAffinity)),
    st.data(),
    st.none() | st.integers(1, 5),
)
def test_engine_and_oracle_agree_on_prefix_caches(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, data: st.DataObject, concurrency: int | None
) -> None:
    load = data.draw(shared_prompts())
    is_disaggregated = any(setup.role == "decode" for setup in setups)
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link if is_disaggregated else None))


@st.composite
def preempted(draw: st.DrawFn) -> tuple[list[ReplicaSetup], Trace]:
    """Draw a replica with layers that keep different tokens and blocks for few requests, and its load: short prompts
    that grow until some are preempted, and find blocks of their own, with or without ids."""
    setup, *_ = draw(ordered(setups()))
    n_slots = draw(st.integers(3, 8))
    policy = replace(setup.scheduler, max_num_seqs=n_slots, max_num_batched_tokens=draw(st.integers(n_slots, 60)))  # type: ignore[type-var]
    has_ids = draw(st.booleans())
    setup = replace(setup, scheduler=policy, n_blocks=1, max_model_len=50, keeps_contents=True, caches_prefixes=has_ids)
    setup = draw(grouped_replica(setup))
    setup = replace(setup, n_blocks=setup.n_blocks + draw(st.integers(0, setup.n_blocks)))
    load = draw(tagged(shared_prompts(8) if has_ids else traces(8)))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(load), max_size=len(load)))
    return [setup], replace(load, arrival_s=np.cumsum(gaps) * draw(st.sampled_from([1e-6, 1e-4])))


@settings(max_examples=examples(200))
@given(preempted())
def test_engine_and_oracle_agree_on_what_preempted_requests_find_in_each_layer(
    world: tuple[list[ReplicaSetup], Trace],
) -> None:
    setups, load = world
    assert_agreement(setups, *run_both(setups, RoundRobin, load, None))


@settings(max_examples=examples(400))
@given(
    disaggregated() | grouped(disaggregated()),
    links(),
    st.sampled_from(ROUTERS),
    traces(),
    st.none() | st.integers(1, 5),
)
def test_engine_and_oracle_agree_on_prefill_and_decode_pools(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link))


@settings(max_examples=examples(200))
@given(setups() | grouped(setups()), st.sampled_from(ROUTERS), traces())
def test_requests_blocks_and_tokens_are_conserved(setups: list[ReplicaSetup], router: Any, load: Trace) -> None:
    cluster = Cluster(own(setups), router(), Offered(load), router_seed=1)
    run_cluster(cluster)
    recorder = cluster.recorder
    assert recorder.n_with(FINISHED) + recorder.n_with(REJECTED) == len(load)
    for replica in cluster.replicas:
        assert (replica.pool.free_blocks, replica.pool.used_blocks, replica.pool.reserved_blocks) == (
            replica.pool.total_blocks,
            0,
            0,
        )
        assert (replica.cohort.n, replica.cohort.kv_tokens, sum(replica.cohort.crossings)) == (0, 0, 0)
        assert replica.load.n_outstanding == 0
        step_runs = recorder.step_runs(replica.id)
        held = step_runs["kv_blocks_used"] + step_runs["kv_blocks_reserved"]
        assert (held >= 0).all()
        assert (held <= replica.pool.total_blocks).all()
    requested = sum(cluster.rows.output_tokens[row] for row in range(len(load)) if recorder.columns["status"][row] == 1)
    spans = [recorder.spans(replica.id) for replica in cluster.replicas]
    assert requested == sum(int((2 + s["last_step"] - s["first_step"]).sum()) for s in spans)


def test_routers_see_what_growing_requests_evict_whatever_windows_free_meanwhile() -> None:
    """The last arrival falls into steps that have evicted a prefix, though fewer blocks are held than before."""
    layers = LayerBlocks((KvGroup(4, 1, LayerGroup("windowed", 1, 4)), KvGroup(4)), most_chunk=16)
    policy, cost = Chunked(max_num_batched_tokens=16, max_num_seqs=4), LineCost(step=10 * MS, windows=(0,))
    setup = replica_setup(policy, cost, n_blocks=26, block_size=4, max_model_len=100)
    setup = replace(setup, layers=layers, caches_prefixes=True)
    arrivals = [0.0675, 0.0975, 0.105, 0.1425, 0.27, 0.2925]
    load = trace(arrivals, [22, 13, 15, 15, 15, 11], [1, 20, 5, 4, 10, 20])
    ids = np.array([100, 101, 102, 103, 0, 1, 2, 0, 1, 100, 100, 101, 102, 0, 1])
    load = replace(load, prefixes=Prefixes.from_ids(4, ids, np.array([0, 4, 7, 9, 10, 13, 15])))
    assert_agreement([setup] * 2, *run_both([setup] * 2, PrefixAffinity, load, None))


def test_the_oracle_counts_for_itself_what_policies_ask_of_requests_and_replicas() -> None:
    for engines, its_own in ((Request, OracleRequest), (ReplicaView, OracleView)):
        counted = {name for name, value in vars(engines).items() if callable(value) or isinstance(value, property)}
        assert {name for name in counted if not name.startswith("_")} <= vars(its_own).keys()
