"""Engine and oracle agree on every kind of hand-off: pulled and pushed, whole and in layers, or none."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import Link, LinkSpec
from simserve.engine.offered import Offered, Patience
from simserve.engine.recorder import FINISHED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.splitters.base import Splitter
from simserve.tables.facts import KvSizes
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, own, run_both
from tests.effort import examples
from tests.test_oracle_patience import assert_all_is_given_back, assert_clients_agree, patiences
from tests.worlds import ROUTERS, cached, disaggregated, links, mixing, shared_prompts, split, splitters, traces

SLOWLY = settings(max_examples=examples(300))


@st.composite
def layered(draw: st.DrawFn) -> LinkSpec:
    """Draw chunk-wise or layer-wise transfers."""
    return replace(draw(links()), n_layers=draw(st.sampled_from([1, 2, 3, 7])))


@SLOWLY
@given(disaggregated(), links(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5))
def test_on_whole_prompts_that_are_pushed(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link, is_pushed=True))


@SLOWLY
@given(disaggregated(), layered(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5))
def test_on_layers_that_are_pushed_as_they_are_computed(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link, is_pushed=True))


@SLOWLY
@given(disaggregated(), layered(), st.data())
def test_on_layers_of_prompts_of_which_a_cache_has_a_part(
    setups: list[ReplicaSetup], link: LinkSpec, data: st.DataObject
) -> None:
    setups = data.draw(cached(setups))
    load = data.draw(shared_prompts())
    assert_agreement(setups, *run_both(setups, RoundRobin, load, None, link=link, is_pushed=True))


@SLOWLY
@given(split(), splitters(), links(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5), st.booleans())
def test_on_requests_of_which_some_are_prefilled_apart(
    setups: list[ReplicaSetup],
    splitter: Splitter,
    link: LinkSpec,
    router: Any,
    load: Trace,
    concurrency: int | None,
    is_pushed: bool,
) -> None:
    how = {"link": link, "is_pushed": is_pushed, "splitter": splitter}
    assert_agreement(setups, *run_both(setups, router, load, concurrency, **how))  # type: ignore[arg-type]


@SLOWLY
@given(disaggregated(), mixing(), links(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5))
def test_on_requests_of_which_prefill_replicas_keep_some(
    setups: list[ReplicaSetup], splitter: Splitter, link: LinkSpec, router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, link=link, splitter=splitter))


@SLOWLY
@given(disaggregated(), mixing(), links(), st.data())
def test_on_kept_requests_of_whose_prompts_a_cache_has_a_part(
    setups: list[ReplicaSetup], splitter: Splitter, link: LinkSpec, data: st.DataObject
) -> None:
    setups = data.draw(cached(setups))
    load = data.draw(shared_prompts())
    assert_agreement(setups, *run_both(setups, RoundRobin, load, None, link=link, splitter=splitter))


@SLOWLY
@given(disaggregated(), mixing(), links(), traces(), st.none() | st.integers(1, 5), patiences())
def test_on_clients_that_give_up_on_replicas_that_keep_some(
    setups: list[ReplicaSetup],
    splitter: Splitter,
    link: LinkSpec,
    load: Trace,
    concurrency: int | None,
    patience: Patience,
) -> None:
    how = {"link": link, "patience": patience, "splitter": splitter}
    cluster, truth = run_both(setups, RoundRobin, load, concurrency, **how)  # type: ignore[arg-type]
    assert_agreement(setups, cluster, truth)
    assert_clients_agree(cluster, truth)
    assert_all_is_given_back(cluster)
    assert not any(getattr(replica, "_kept", ()) for replica in cluster.replicas)


@SLOWLY
@given(disaggregated(), mixing(), links(), traces())
def test_whoever_is_kept_is_not_sent_and_every_block_is_given_back(
    setups: list[ReplicaSetup], splitter: Splitter, link: LinkSpec, load: Trace
) -> None:
    sent_tokens: list[Fraction] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "arrival_ps", counting(Link.arrival_ps, sent_tokens))
        how = Disaggregation(RoundRobin(), replace(link, sizes=KvSizes()), splitter=splitter)
        cluster = Cluster(own(setups), RoundRobin(), Offered(load), 7, disaggregation=how)
        run_cluster(cluster)
    columns = cluster.recorder.columns
    assert sum(sent_tokens) == int(load.prompt_tokens[columns["prefill_replica"] >= 0].sum())
    for replica in cluster.replicas:
        pool = replica.pool
        assert (pool.free_blocks, replica.batch.n_away, replica.load.n_outstanding) == (pool.total_blocks, 0, 0)
        assert not getattr(replica, "_kept", ())


@SLOWLY
@given(disaggregated(), links(), st.sampled_from([None, 1, 3]), traces())
def test_every_token_is_sent_once_and_every_block_given_back(
    setups: list[ReplicaSetup], link: LinkSpec, n_layers: int | None, load: Trace
) -> None:
    sent_tokens: list[Fraction] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("arrival_ps", "streamed_arrival_ps"):
            patch.setattr(Link, name, counting(getattr(Link, name), sent_tokens))
        how = Disaggregation(RoundRobin(), replace(link, n_layers=n_layers, sizes=KvSizes()), is_pushed=True)
        cluster = Cluster(own(setups), RoundRobin(), Offered(load), 7, disaggregation=how)
        run_cluster(cluster)
    columns, outputs = cluster.recorder.columns, cluster.rows.output_tokens
    served = columns["status"] == FINISHED
    went = served if n_layers else served & (np.asarray(outputs) > 1)  # early transfers precede the first token
    assert sum(sent_tokens) == int(load.prompt_tokens[went].sum())
    for replica in cluster.replicas:
        pool = replica.pool
        assert (pool.free_blocks, replica.batch.n_away, replica.load.n_outstanding) == (pool.total_blocks, 0, 0)


def counting(method: Any, sent_tokens: list[Fraction]) -> Any:
    """Wrap a method of Link to note the tokens it gets; a stage sends its part of their layers."""

    def count(self: Link, kv_tokens: float, ports: Any, when: Any, n_stages: int = 1) -> int:
        sent_tokens.append(Fraction(kv_tokens) / n_stages)
        at_ps: int = method(self, kv_tokens, ports, when, *([n_stages] if n_stages > 1 else []))
        return at_ps

    return count
