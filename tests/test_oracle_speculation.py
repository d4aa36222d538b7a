"""Engine and oracle agree exactly on speculative decoding."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.columns.run import serve as run_cluster
from simserve.cost.speculative import Drafting, ModelDrafting, SpeculativeCost
from simserve.engine.cluster import Cluster
from simserve.engine.decode import Speculation
from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Offered
from simserve.engine.recorder import FINISHED, REJECTED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.state.acceptance import Acceptance
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, engine_steps, own, request_rows, run_both, token_times
from tests.doubles import LineCost
from tests.effort import examples
from tests.worlds import ROUTERS, caching, front_ends, grouped, setups, shared_prompts, traces

RATES = st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0])


def can_speculate(result: list[ReplicaSetup]) -> bool:
    return not result[0].scheduler.runs_to_completion


def is_one_pool(result: list[ReplicaSetup]) -> bool:
    return result[0].role == "both"


@st.composite
def speculating(draw: st.DrawFn, plain: st.SearchStrategy[list[ReplicaSetup]]) -> list[ReplicaSetup]:
    """Add up to five proposed tokens, by a model or for free; each pair of rates is 1 now and then."""
    result = draw(plain.filter(can_speculate))
    rates = tuple(draw(st.lists(RATES, min_size=1, max_size=5)))
    k = len(rates)
    drafts: st.SearchStrategy[Drafting] = st.sampled_from(
        [Drafting(), ModelDrafting(LineCost(step=70_001, token=1_013, row=7, pair=5, key=91), k)]
    )
    how = Speculation(Acceptance(rates, draw(st.integers(0, 5))), 1 + k + draw(st.sampled_from([0, k])))
    drafting = draw(drafts)
    floor_ps, host_ps = draw(st.sampled_from([0, 0, 2_003])), draw(st.sampled_from([0, 0, 3]))
    host: dict[str, Any] = {
        "propose_ps": draw(st.sampled_from([0, 333])),
        "launch_ps": draw(st.sampled_from([0, 0, 2_000_003])),
    }
    return [
        replace(setup, cost=SpeculativeCost(setup.cost, drafting, k, floor_ps, host_ps, **host), speculation=how)
        for setup in result
    ]


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    speculating(setups()) | grouped(speculating(setups())),
    st.sampled_from(ROUTERS),
    traces(),
    st.none() | st.integers(1, 5),
    front_ends(),
)
def test_engine_and_oracle_agree_on_every_request_step_and_token(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, front_end: FrontEnd
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, front_end))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    speculating(caching().filter(is_one_pool)) | grouped(speculating(caching().filter(is_one_pool))),
    st.sampled_from((*ROUTERS, PrefixAffinity)),
    st.data(),
    st.none() | st.integers(1, 5),
)
def test_engine_and_oracle_agree_on_prefix_caches(
    setups: list[ReplicaSetup], router: Any, data: st.DataObject, concurrency: int | None
) -> None:
    load = data.draw(shared_prompts())
    assert_agreement(setups, *run_both(setups, router, load, concurrency))


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(speculating(setups()) | grouped(speculating(setups())), st.sampled_from(ROUTERS), traces())
def test_requests_blocks_and_tokens_are_conserved(setups: list[ReplicaSetup], router: Any, load: Trace) -> None:
    cluster = Cluster(own(setups), router(), Offered(load), router_seed=1)
    run_cluster(cluster)
    recorder = cluster.recorder
    assert recorder.n_with(FINISHED) + recorder.n_with(REJECTED) == len(load)
    n_tokens = 0
    for replica in cluster.replicas:
        pool, cohort = replica.pool, replica.cohort
        assert (pool.free_blocks, pool.used_blocks, pool.reserved_blocks) == (replica.pool.total_blocks, 0, 0)
        assert (cohort.n, cohort.kv_tokens, cohort.blocks_to_grow(9)) == (0, 0, 0)
        step_runs, spans = recorder.step_runs(replica.id), recorder.spans(replica.id)
        held = step_runs["kv_blocks_used"] + step_runs["kv_blocks_reserved"]
        assert ((held >= 0) & (held <= replica.pool.total_blocks)).all()
        n_tokens += int((2 + spans["last_step"] - spans["first_step"]).sum() + step_runs["accepted_tokens"].sum())
    finished = (row for row in range(len(load)) if recorder.columns["status"][row] == FINISHED)
    assert n_tokens == sum(cluster.rows.output_tokens[row] for row in finished)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    (setups() | grouped(setups())).filter(can_speculate),
    st.sampled_from(ROUTERS),
    traces(),
    st.none() | st.integers(1, 5),
)
def test_a_replica_that_proposes_nothing_is_a_plain_one(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None
) -> None:
    none = Speculation(Acceptance(()), n_slots=1)
    proposing = [replace(each, cost=SpeculativeCost(each.cost, Drafting(), 0), speculation=none) for each in setups]
    runs = [Cluster(own(each), router(), Offered(load, concurrency), router_seed=7) for each in (setups, proposing)]
    for cluster in runs:
        run_cluster(cluster)
    plain, other = runs
    assert request_rows(plain) == request_rows(other)
    assert token_times(plain) == token_times(other)
    for replica in range(len(setups)):
        times = [[(s["start_ps"], s["end_ps"], s["kv_tokens"]) for s in engine_steps(run, replica)] for run in runs]
        assert times[0] == times[1]
