"""Engine and oracle agree on what routers see: every router, with views of any age, on random scenarios."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine.link import LinkSpec
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.routers.base import Router
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.session_affinity import SessionAffinity
from simserve.routers.weighted import Weighted
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, run_both
from tests.effort import examples
from tests.worlds import ROUTERS, caching, disaggregated, links, setups, shared_prompts, traces

MakeRouter = Callable[[], Router]


@st.composite
def routers(draw: st.DrawFn) -> MakeRouter:
    """Draw any router, with thresholds that a few requests reach."""
    known = {
        "exact": ("exact", None),
        "own_sends": ("own_sends", None),
        "few": ("own_sends", 30),
        "none": ("own_sends", 1),
    }
    index, index_tokens = known[draw(st.sampled_from(list(known)))]
    most = draw(st.integers(0, 4))
    least_frac = draw(st.sampled_from([0.0, 0.3]))
    queue, outstanding, kv, prefix = (draw(st.sampled_from([0.0, 0.5, 2.0])) for _ in range(4))
    session = draw(st.sampled_from([1.0, 4.0]))
    made: list[MakeRouter] = [
        *ROUTERS,
        lambda: PrefixAffinity(least_frac, most, cast(Any, index), index_tokens),
        lambda: SessionAffinity(most),
        lambda: Weighted(queue, outstanding, kv, prefix, session, cast(Any, index), index_tokens),
    ]
    return draw(st.sampled_from(made))


@st.composite
def delays(draw: st.DrawFn) -> Delay:
    """Draw delays from less than a step to most of a run; some in whole milliseconds, to tie with other events."""
    refresh_ps = draw(st.sampled_from([700_001, 1_000_000, 10_000_000, 33_000_003, 10**9, 13_700_000_000]))
    return Delay(refresh_ps, counts_own_sends=draw(st.booleans()))


@st.composite
def of_sessions(draw: st.DrawFn, load: Trace) -> Trace:
    """Assign each request to one of a few sessions or to none."""
    sessions = draw(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=len(load), max_size=len(load)))
    return replace(load, session_id=np.array(sessions, np.str_))


@settings(max_examples=examples(400))
@given(setups(), routers(), st.data(), st.none() | st.integers(1, 5), st.none() | delays())
def test_engine_and_oracle_agree_whatever_routers_see(
    setups: list[ReplicaSetup],
    router: MakeRouter,
    data: st.DataObject,
    concurrency: int | None,
    delay: Delay | None,
) -> None:
    load = data.draw(of_sessions(data.draw(traces())))
    assert_agreement(setups, *run_both(setups, router, load, concurrency, delay=delay))


@settings(max_examples=examples(400))
@given(caching(), links(), routers(), st.data(), st.none() | delays())
def test_engine_and_oracle_agree_on_old_news_and_prefix_caches(
    setups: list[ReplicaSetup], link: LinkSpec, router: MakeRouter, data: st.DataObject, delay: Delay | None
) -> None:
    prompts = data.draw(shared_prompts())
    load = data.draw(of_sessions(prompts))
    is_disaggregated = any(setup.role == "decode" for setup in setups)
    assert_agreement(
        setups, *run_both(setups, router, load, None, link=link if is_disaggregated else None, delay=delay)
    )


@settings(max_examples=examples(300))
@given(disaggregated(), links(), routers(), st.data(), st.none() | st.integers(1, 5), delays())
def test_engine_and_oracle_agree_on_old_news_of_prefill_and_decode_pools(
    setups: list[ReplicaSetup],
    link: LinkSpec,
    router: MakeRouter,
    data: st.DataObject,
    concurrency: int | None,
    delay: Delay,
) -> None:
    load = data.draw(of_sessions(data.draw(traces())))
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link, delay=delay))
