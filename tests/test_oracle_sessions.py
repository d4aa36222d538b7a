"""Engine and oracle agree exactly on requests that wait for the answers of others, on random graphs."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd
from simserve.engine.link import LinkSpec
from simserve.engine.recorder import FINISHED, REJECTED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.units import PS_PER_S
from simserve.workload.trace import Dependencies, Trace
from tests.agreement import assert_agreement, run_both
from tests.effort import examples
from tests.worlds import ROUTERS, caching, disaggregated, front_ends, links, setups, shared_prompts, traces


@st.composite
def dependent(draw: st.DrawFn, loads: st.SearchStrategy[Trace]) -> Trace:
    """Draw chains, branches and joins of all kinds; some prompts too long for any replica; times that tie."""
    load = draw(loads)
    session: list[int] = []
    pairs: list[tuple[int, int]] = []
    for row in range(len(load)):
        of = draw(st.sampled_from([None, *dict.fromkeys(session[-8:])]))
        session.append(row if of is None else of)
        siblings = [other for other in range(row) if session[other] == of]
        for parent in draw(st.sets(st.sampled_from(siblings), min_size=1, max_size=3)) if siblings else ():
            pairs.append((row, parent))
    unit_s = draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.0137]))
    think_s = unit_s * np.array(draw(st.lists(st.integers(0, 9), min_size=len(load), max_size=len(load))), np.float64)
    table = np.array(pairs, np.int64).reshape(-1, 2)
    prompts = load.prompt_tokens.copy()
    if draw(st.booleans()):
        prompts[draw(st.integers(0, len(load) - 1))] = 500
    return replace(load, prompt_tokens=prompts, dependencies=Dependencies.from_pairs(table[:, 0], table[:, 1], think_s))


@st.composite
def beside(draw: st.DrawFn, loads: st.SearchStrategy[Trace]) -> tuple[Trace, int]:
    """Draw a load, and how many of its last rows wait for nothing, not even for a user."""
    load = draw(loads)
    n_timed = draw(st.integers(0, min(5, len(load) - 1)))
    result = load.dependencies
    if result is not None:
        own = result.children < len(load) - n_timed
        kept = Dependencies.from_pairs(result.children[own], result.parents[own], result.think_s)
        load = replace(load, dependencies=kept)
    return load, n_timed


USERS = st.none() | st.integers(1, 5)
STOPS = st.none() | st.none() | st.integers(1, 400).map(lambda ms: ms * PS_PER_S // 1000)


@settings(max_examples=examples(300))
@given(setups(), st.sampled_from(ROUTERS), dependent(traces()), USERS, front_ends(), STOPS)
def test_engine_and_oracle_agree_on_sessions(
    setups: list[ReplicaSetup], router: Any, load: Trace, n_users: int | None, front_end: FrontEnd, stop_ps: int | None
) -> None:
    cluster, truth = run_both(setups, router, load, n_users, front_end, stop_ps=stop_ps)
    assert_agreement(setups, cluster, truth)
    n_ended = cluster.recorder.n_with(FINISHED) + cluster.recorder.n_with(REJECTED)
    assert cluster.sender.n_sent == n_ended == len(truth.lives) + len(truth.rejected)
    sent_ps = cluster.rows.arrivals[cluster.sender.rows_sent]
    assert (np.diff(sent_ps) >= 0).all()


@settings(max_examples=examples(300))
@given(
    setups(),
    st.sampled_from(ROUTERS),
    beside(st.one_of(traces(), dependent(traces()))),
    st.integers(1, 5),
    front_ends(),
    STOPS,
)
def test_engine_and_oracle_agree_on_rows_with_their_own_times_beside_users(
    setups: list[ReplicaSetup],
    router: Any,
    loaded: tuple[Trace, int],
    n_users: int,
    front_end: FrontEnd,
    stop_ps: int | None,
) -> None:
    load, n_timed = loaded
    if load.dependencies is None and not n_timed:
        stop_ps = None  # the oracle ends other loads with their last row
    cluster, truth = run_both(setups, router, load, n_users, front_end, stop_ps=stop_ps, n_timed=n_timed)
    assert_agreement(setups, cluster, truth)


@settings(max_examples=examples(150))
@given(caching(), links(), st.sampled_from((*ROUTERS, PrefixAffinity)), st.data(), USERS)
def test_engine_and_oracle_agree_on_sessions_over_prefix_caches(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, data: st.DataObject, n_users: int | None
) -> None:
    load = data.draw(dependent(shared_prompts()))
    is_disaggregated = any(setup.role == "decode" for setup in setups)
    assert_agreement(setups, *run_both(setups, router, load, n_users, link=link if is_disaggregated else None))


@settings(max_examples=examples(150))
@given(disaggregated(), links(), st.sampled_from(ROUTERS), dependent(traces()), USERS, front_ends())
def test_engine_and_oracle_agree_on_sessions_over_prefill_and_decode_pools(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, load: Trace, n_users: int | None, front_end: FrontEnd
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, n_users, front_end, link))
