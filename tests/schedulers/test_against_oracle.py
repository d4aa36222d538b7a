"""Each policy plans as the oracle does, in small random clusters of its own kind."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.link import LinkSpec
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.schedulers.continuous import Continuous
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.schedulers.sglang import SgLang
from simserve.schedulers.static import Static
from simserve.schedulers.trtllm import TrtLlm
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import assert_agreement, run_both
from tests.doubles import MS, LineCost, replica_setup, trace
from tests.effort import examples
from tests.worlds import cached, ordered, setups, shared_prompts, tagged, traces

KINDS = (Chunked, Continuous, Dynamic, PrefillFirst, SgLang, Static, TrtLlm)
WORLDS = settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))


def of_kind(kind: type) -> st.SearchStrategy[list[ReplicaSetup]]:
    """Draw replicas with this policy."""
    return setups().filter(lambda result: type(result[0].scheduler) is kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_plans_as_the_oracle_does(kind: type) -> None:
    @WORLDS
    @given(of_kind(kind), traces(), st.none() | st.integers(1, 5))
    def agree(result: list[ReplicaSetup], load: Trace, concurrency: int | None) -> None:
        assert_agreement(result, *run_both(result, RoundRobin, load, concurrency))

    agree()


@pytest.mark.parametrize("kind", [Chunked, SgLang, TrtLlm])
def test_a_policy_with_a_prefix_cache_plans_as_the_oracle_does(kind: type) -> None:
    @WORLDS
    @given(of_kind(kind).filter(lambda result: result[0].scheduler.shares_blocks), shared_prompts(), st.data())
    def agree(plain: list[ReplicaSetup], load: Trace, data: Any) -> None:
        result = data.draw(cached(plain))
        assert_agreement(result, *run_both(result, RoundRobin, load, None))

    agree()


@WORLDS
@given(ordered(setups()), tagged(traces()))
def test_orders_are_those_of_the_oracle(result: list[ReplicaSetup], load: Trace) -> None:
    assert_agreement(result, *run_both(result, RoundRobin, load, None))


def test_under_vtc_what_the_blocked_head_finds_is_looked_up_before_it_is_taken() -> None:
    """The tenants' counters keep the order for some steps, and the next one takes a block that the head finds."""
    shares = FairShares(input_weight=0.0, output_weight=1.0)
    policy = Chunked(2, 2, scheduler_reserve_full_isl=False, policy="vtc", vtc=shares)
    plain = replica_setup(policy, LineCost(step=5000003, token=70001), 100, max_model_len=50)
    setup = replace(plain, layers=LayerBlocks((KvGroup(1, n_parts=2),)), caches_prefixes=True, keeps_contents=True)
    prompts, outputs = np.ones(22, int), np.ones(22, int)
    prompts[[14, 15]], outputs[[10, 14]] = (25, 16), (17, 16)
    prefixes = Prefixes(1, np.array([0, 2, 4, *[0] * 19]), np.full(22, 2), np.arange(23))
    load = Trace(np.zeros(22), prompts, outputs, tenant=np.where(prompts > 1, "b", "a"), prefixes=prefixes)
    assert_agreement([setup], *run_both([setup], RoundRobin, load, 4))


@pytest.mark.parametrize("is_pushed", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "vtc"])
def test_under_vtc_a_decode_replica_charges_a_prompt_that_was_preempted_as_it_was_computed(
    policy: Any, is_pushed: bool
) -> None:
    """Two prompts of 8 are computed 4 tokens a step, in 10 blocks of one token: at 1 ms the second one is preempted."""
    chunks = Chunked(8, 2, 4, scheduler_reserve_full_isl=False, policy=policy)
    setups = [
        replace(replica_setup(chunks, LineCost(step=MS), n_blocks=10, block_size=1), role="prefill"),
        replace(replica_setup(Chunked(policy="vtc"), LineCost(step=MS), n_blocks=100, block_size=1), role="decode"),
    ]
    load = replace(trace([0.0, 0.0], [8, 8], [3, 3]), tenant=np.array(["a", "a"]))
    cluster, truth = run_both(setups, RoundRobin, load, None, link=LinkSpec(0.0, MS), is_pushed=is_pushed)
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 1]
    counters = truth.replicas[1].vtc
    assert counters is not None
    assert counters.counters == {"a": 2 * (8 + 2 * 2)}  # the first token of each comes from the prefill replica
    assert_agreement(setups, cluster, truth)
