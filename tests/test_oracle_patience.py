"""Engine and oracle agree on clients that time out, retry or are refused, wherever the request is then."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.admission.base import Admission
from simserve.admission.predicted_ttft import PredictedTtft
from simserve.admission.queue_length import QueueLength
from simserve.admission.token_bucket import TokenBucket
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Backoff, Offered, Patience
from simserve.engine.recorder import TIMED_OUT
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.session_sender import SessionSender
from simserve.engine.tabulate import attempt_columns
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.round_robin import RoundRobin
from simserve.state.speculative_cohort import SpeculativeCohort
from simserve.workload.trace import Dependencies, Trace
from tests import oracle
from tests.agreement import assert_agreement, own, run_both
from tests.doubles import trace
from tests.effort import examples
from tests.test_oracle_sessions import STOPS, USERS, beside, dependent
from tests.worlds import ROUTERS, caching, disaggregated, front_ends, links, setups, shared_prompts, traces

UNIT = st.sampled_from((5_000_003, 10**6, 17 * 10**6, 10**9))
UNITS_PS = (5_000_003, 10**6, 17 * 10**6, 10**9, 137 * 10**8)
"""Time units, from a fraction of a step to many steps."""


@st.composite
def patiences(draw: st.DrawFn) -> Patience:
    """Draw clients that time out after a few steps, or not, and perhaps retry."""
    unit_ps = draw(st.sampled_from(UNITS_PS))
    ttft, e2e = (draw(st.none() | st.integers(1, 40)) for _ in range(2))
    if draw(st.integers(0, 3)) == 0:
        e2e = ttft  # clients sent together give up together, those without a first token first
    backoff = Backoff(
        draw(st.integers(2, 4)),
        draw(st.integers(0, 20)) * unit_ps,
        draw(st.sampled_from([1.0, 2.0])),
        draw(st.sampled_from([1, 10, 100])) * unit_ps,
        draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        budget_frac=draw(st.sampled_from([None, 0.1, 0.1, 0.7])),
        budget_burst=draw(st.sampled_from([1, 1, 2])),
    )
    return Patience(
        None if ttft is None else ttft * unit_ps,
        None if e2e is None else e2e * unit_ps,
        draw(st.sampled_from([None, backoff])),
        draw(st.booleans()),
    )


@st.composite
def admissions(draw: st.DrawFn) -> Admission | None:
    """Draw any admission policy, or none, with limits that bind."""
    kind = draw(st.sampled_from(["none", "none", "bucket", "waiting", "outstanding", "predicted"]))
    if kind == "none":
        return None
    if kind == "bucket":
        return TokenBucket(draw(st.sampled_from([20.0, 500.0, 1e5])), draw(st.integers(1, 5)))
    if kind == "predicted":
        return PredictedTtft(draw(st.integers(1, 200)), 1.0)
    most = draw(st.integers(1, 6))
    return QueueLength(max_waiting=most - 1) if kind == "waiting" else QueueLength(max_outstanding=most)


def assert_clients_agree(cluster: Cluster, truth: oracle.OracleRun) -> None:
    """Compare attempts, their send times and time-outs."""
    clients, plain = cluster.sender, truth.clients
    if plain is None:
        return
    assert isinstance(clients, SessionSender)
    assert clients.rows_sent.tolist() == [each.row for each in plain.attempts]
    assert clients.attempts.tolist() == [each.number for each in plain.attempts]
    gave_up_ps = {each.row: each.gave_up_ps for each in plain.attempts if each.gave_up_ps is not None}
    timed_out = np.flatnonzero(cluster.recorder.columns["status"] == TIMED_OUT)
    assert set(timed_out.tolist()) == gave_up_ps.keys()
    if clients.deadlines is None:
        return
    assert clients.deadlines.gave_up_ps == gave_up_ps


def assert_all_is_given_back(cluster: Cluster) -> None:
    for replica in cluster.replicas:
        pool, cohort = replica.pool, replica.cohort
        assert (pool.free_blocks, pool.used_blocks, pool.reserved_blocks) == (replica.pool.total_blocks, 0, 0)
        assert (cohort.n, cohort.kv_tokens) == (0, 0)
        assert isinstance(cohort, SpeculativeCohort) or sum(cohort.crossings) == 0
        assert (replica.load.n_outstanding, replica.batch.n_away, replica.batch.requests) == (0, 0, ())


@settings(max_examples=examples(400))
@given(
    setups(),
    st.sampled_from(ROUTERS),
    beside(st.one_of(traces(), dependent(traces()))),
    USERS,
    front_ends(),
    st.none() | patiences(),
    admissions(),
    STOPS,
)
def test_engine_and_oracle_agree_on_clients_that_give_up(
    setups: list[ReplicaSetup],
    router: Any,
    loaded: tuple[Trace, int],
    concurrency: int | None,
    front_end: FrontEnd,
    patience: Patience | None,
    admission: Admission | None,
    stop_ps: int | None,
) -> None:
    load, n_timed = loaded
    n_timed = 0 if concurrency is None else n_timed
    limits: dict[str, Any] = {"patience": patience, "admission": admission, "n_timed": n_timed}
    if load.dependencies is None and patience is None and not n_timed:
        stop_ps = None  # the oracle ends other loads with their last row
    cluster, truth = run_both(setups, router, load, concurrency, front_end, stop_ps=stop_ps, **limits)
    assert_agreement(setups, cluster, truth)
    assert_clients_agree(cluster, truth)
    assert_all_is_given_back(cluster)


@settings(max_examples=examples(400))
@given(
    st.one_of(disaggregated(), caching()),
    links(),
    st.sampled_from((*ROUTERS, PrefixAffinity)),
    st.data(),
    st.none() | st.integers(1, 5),
    st.none() | patiences(),
    admissions(),
)
def test_engine_and_oracle_agree_on_clients_of_caches_and_of_prefill_and_decode_pools(
    setups: list[ReplicaSetup],
    link: LinkSpec,
    router: Any,
    data: st.DataObject,
    concurrency: int | None,
    patience: Patience | None,
    admission: Admission | None,
) -> None:
    plain = shared_prompts()
    load = data.draw(st.one_of(plain, dependent(plain)))
    is_disaggregated = any(setup.role == "decode" for setup in setups)
    cluster, truth = run_both(
        setups,
        router,
        load,
        concurrency,
        link=link if is_disaggregated else None,
        patience=patience,
        admission=admission,
    )
    assert_agreement(setups, cluster, truth)
    assert_clients_agree(cluster, truth)
    assert_all_is_given_back(cluster)


@st.composite
def branching(draw: st.DrawFn) -> Trace:
    """Draw tasks that each fan out after a short call and join again; some prompts are too long for any replica."""
    n_tasks, n_branches, n_joins = draw(st.integers(1, 3)), draw(st.integers(2, 5)), draw(st.integers(1, 3))
    pairs: list[tuple[int, int]] = []
    prompts, outputs = [], []
    for first in range(0, n_tasks * (1 + n_branches + n_joins), 1 + n_branches + n_joins):
        branches = range(first + 1, first + 1 + n_branches)
        pairs += [(row, first) for row in branches]
        for join in range(n_joins):
            parents = draw(st.sets(st.sampled_from(branches), min_size=1, max_size=3))
            pairs += [(first + 1 + n_branches + join, parent) for parent in parents]
        n_more = n_branches + n_joins
        lengths = st.sampled_from((1, 2, 5, 9, 20))
        prompts += [1, *draw(st.lists(st.sampled_from((1, 4, 7, 30, 500)), min_size=n_more, max_size=n_more))]
        outputs += [1, *draw(st.lists(lengths, min_size=n_more, max_size=n_more))]
    n = len(prompts)
    think_s = 1e-6 * np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), np.float64)
    table = np.array(pairs, np.int64)
    load = trace([0.0] * n, prompts, outputs)
    return replace(load, dependencies=Dependencies.from_pairs(table[:, 0], table[:, 1], think_s))


@settings(max_examples=examples(300))
@given(setups(), branching(), USERS, st.integers(0, 3), st.tuples(*[st.integers(2, 20)] * 4), admissions(), st.data())
def test_engine_and_oracle_agree_on_branches_of_which_one_fails(
    setups: list[ReplicaSetup],
    load: Trace,
    n_users: int | None,
    n_respond: int,
    units: tuple[int, int, int, int],
    admission: Admission | None,
    data: st.DataObject,
) -> None:
    ttft, e2e, first, longest = (n * UNITS_PS[0] for n in units)
    limited = Backoff(3, first, 2.0, longest, budget_frac=0.2, budget_burst=2)
    backoff = data.draw(st.none() | st.sampled_from([Backoff(3, first, 2.0, longest), limited]))
    patience = Patience(data.draw(st.sampled_from([None, ttft])), e2e, backoff, data.draw(st.booleans()))
    front_end = FrontEnd(respond_ps=n_respond * UNITS_PS[0] // 2)
    cluster, truth = run_both(setups, RoundRobin, load, n_users, front_end, patience=patience, admission=admission)
    assert_agreement(setups, cluster, truth)
    assert_clients_agree(cluster, truth)
    assert_all_is_given_back(cluster)


@settings(max_examples=examples(200))
@given(
    st.one_of(setups(), disaggregated()),
    links(),
    st.one_of(traces(), dependent(traces())),
    front_ends(),
    patiences(),
    st.integers(0, 40),
    UNIT,
)
def test_a_run_that_is_cut_short_has_lost_nobody(
    setups: list[ReplicaSetup],
    link: LinkSpec,
    load: Trace,
    front_end: FrontEnd,
    patience: Patience,
    drain_units: int,
    unit_ps: int,
) -> None:
    how = Disaggregation(RoundRobin(), link) if any(setup.role == "decode" for setup in setups) else None
    cluster = Cluster(own(setups), RoundRobin(), Offered(load, patience=patience), 7, front_end, how)
    run_cluster(cluster, drain_units * unit_ps)  # run checks that no request is lost
    columns = attempt_columns(cluster)
    status = cluster.recorder.columns["status"][cluster.sender.rows_sent]
    assert (np.isnan(columns["gave_up_s"]) == (status != TIMED_OUT)).all()
    assert (columns["wasted_tokens"][status != TIMED_OUT] == 0).all()
    assert (columns["wasted_tokens"] >= 0).all()
