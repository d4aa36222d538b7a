"""Priorities and tenants: engine and oracle agree on the order of requests, on random scenarios."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd
from simserve.engine.link import LinkSpec
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, run_both
from tests.doubles import LineCost, plain_blocks, trace
from tests.effort import examples
from tests.worlds import (
    ROUTERS,
    caching,
    disaggregated,
    front_ends,
    links,
    ordered,
    setups,
    shared_prompts,
    tagged,
    traces,
)

OUT_OF_TURN = ReplicaSetup(
    Chunked(max_num_batched_tokens=1, max_num_seqs=1, scheduler_reserve_full_isl=False, policy="priority"),
    LineCost(step=5_000_003, token=70_001, row=11, pair=101, key=1_009),
    n_blocks=60,
    layers=plain_blocks(1),
    max_model_len=60,
    async_scheduling=True,
)
"""Steps are planned ahead, so an arrival at an idle replica is seen before one during the last step."""


@example([OUT_OF_TURN] * 2, RoundRobin, trace([0.0] * 18, [1] * 10 + [2] + [1] * 7, [1] * 18), 4, FrontEnd())
@settings(max_examples=examples(400))
@given(ordered(setups()), st.sampled_from(ROUTERS), tagged(traces()), st.none() | st.integers(1, 8), front_ends())
def test_engine_and_oracle_agree_on_who_passes_whom(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, front_end: FrontEnd
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, front_end))


@settings(max_examples=examples(200))
@given(ordered(st.one_of(caching(), disaggregated())), links(), st.sampled_from(ROUTERS), st.data())
def test_engine_and_oracle_agree_where_prefixes_are_shared_or_prompts_handed_over(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, data: st.DataObject
) -> None:
    load = data.draw(tagged(shared_prompts()))
    is_disaggregated = any(setup.role == "decode" for setup in setups)
    assert_agreement(setups, *run_both(setups, router, load, None, link=link if is_disaggregated else None))
