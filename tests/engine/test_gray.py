"""Slow replicas and links that carry less, worked by hand; and the queue before a slow replica, as theory has it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve import Scenario, simulate
from simserve.columns.run import serve as run_cluster
from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.cluster import Cluster
from simserve.engine.fleet import Fleet
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import Link, LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.slowness import Slowness, Window
from simserve.integers import NEVER
from simserve.report.page import render
from simserve.report.run_head import run_head
from simserve.report.run_view import RunView
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Trace
from tests.doubles import MS, LineCost, instants, replica_setup, trace
from tests.engine.test_push import pool
from tests.engine.test_scaling import FAST, scenario
from tests.oracle_fleet import Change, Script

LINK = LinkSpec(token_s=1e-3, latency_ps=1 * MS)


@dataclass
class Weakened:
    """A control that lets links carry less."""

    windows: Sequence[tuple[int, Window]]
    """Pools, and when."""

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        for number, window in self.windows:
            assert fleet.wiring.handoff is not None
            fleet.wiring.handoff.weaken(number, iter([window]))

    def goes_on(self) -> bool:
        return False


def serve(setups: list[ReplicaSetup], load: Trace, control: Any, how: Disaggregation | None = None) -> Cluster:
    cluster = Cluster(setups, RoundRobin(), Offered(load), router_seed=0, disaggregation=how, control=control)
    run_cluster(cluster)
    return cluster


def slow(load: Trace, *windows: tuple[int, int, float], **how: Any) -> Cluster:
    """Serve a load on a replica with steps of 10 ms that is slow from an instant on, for a time."""
    setup = replace(replica_setup(cost=LineCost(step=10 * MS)), **how)
    changes = [Change(at_ms * MS, "slow", 0, for_ms * MS, speed) for at_ms, for_ms, speed in windows]
    return serve([setup], load, Script(changes, [setup]))


def test_steps_that_begin_in_the_window_take_longer() -> None:
    # The run of 100 steps is cut at 110; steps of 20 begin at 110, 130, ... 290, and the next one at 310.
    cluster = slow(trace([0.0], [5], [100]), (105, 195, 0.5))
    assert instants(cluster, "finish_ps") == [1100]
    rows = cluster.recorder.step_runs(0)
    assert (rows["n_steps"] * rows["first_ps"])[rows["start_ps"] < 110 * MS].sum() == 110 * MS
    assert rows["start_ps"][rows["first_ps"] == 20 * MS].tolist() == [at * MS for at in range(110, 310, 20)]


@pytest.mark.parametrize(("at_ms", "for_ms", "n_slow"), [(100, 1, 1), (101, 9, 0), (100, 20, 1), (100, 21, 2)])
def test_a_window_has_its_first_instant_and_not_its_last(at_ms: int, for_ms: int, n_slow: int) -> None:
    cluster = slow(trace([0.0], [5], [100]), (at_ms, for_ms, 0.5))
    assert instants(cluster, "finish_ps") == [1000 + 10 * n_slow]


def test_the_least_speed_holds_where_windows_overlap() -> None:
    # 20 from 0 to 100, then 40 to 180, and 20 until 200: 5 + 2 + 1 steps of 10 take 200.
    cluster = slow(trace([0.0], [5], [30]), (0, 200, 0.5), (100, 80, 0.25))
    assert instants(cluster, "finish_ps") == [200 + 220]


@pytest.mark.parametrize("how", [{"n_in_step": 2}, {"n_stages": 2}])
def test_ranks_and_stages_are_slow_together(how: dict[str, int]) -> None:
    assert instants(slow(trace([0.0], [5], [100]), (105, 195, 0.5), **how), "finish_ps") == [1100]


def test_decode_is_longer_and_is_no_interference() -> None:
    results = simulate(scenario({}, 5.0, 100, failures=[{"what": "slow", "at_s": 0.1, "speed_frac": 0.25}]))
    whole = simulate(scenario({}, 5.0, 100, failures=[{"what": "slow", "at_s": 0.1, "speed_frac": 1}]))
    alone = results.steps["prefill_tokens"] == 0
    assert (results.steps["interference_s"][alone] == 0).all()
    ratio = results.requests["decode_s"][1:].mean() / whole.requests["decode_s"][1:].mean()
    assert 4 <= ratio < 4.5  # batches are larger


def test_a_run_with_a_slow_replica_is_not_told_to_scale_up() -> None:
    slow_one = [{"what": "slow", "at_s": 20, "member": 1, "speed_frac": 0.2, "for_s": 60}]
    given = scenario({"replicas": 2}, 30.0, 3600, failures=slow_one).to_dict() | {"slo": {"tpot_s": 0.03}}
    results = simulate(Scenario.from_dict(given))
    assert results.summary["scaling"]["longest_below_s"] > 15
    told = str(results._repr_html_()) + repr(results)
    assert "Find what slows its replicas or links" in told and "Scale up sooner" not in told


def test_a_failure_that_leaves_all_speed_changes_no_request() -> None:
    lossless = [{"what": "slow", "mtbf_s": 5, "speed_frac": 1, "for_s": 3}]
    one, other = (simulate(scenario({"replicas": 2}, 30.0, 600, failures=each)) for each in (None, lossless))
    pd.testing.assert_frame_equal(one.requests, other.requests)
    assert other.summary["scaling"]["n_slowed"] > 0


@pytest.mark.parametrize(
    ("window", "through"),
    [((1000, 3000, 0.25), 3500), ((1000, 3000, 0.0), 4000), ((0, 2000, 0.5), 3000), ((1999, NEVER, 0.5), 2001)],
)
def test_a_transfer_of_two_thousand_takes_longer_while_the_link_carries_less(window: Window, through: int) -> None:
    link = Link(LinkSpec(token_s=1e-9, latency_ps=7))
    link.weaken(0, iter([window]))
    assert link.arrival_ps(2.0, link.ports(), 0) == through + 7
    assert Link(link.spec).arrival_ps(2.0, Link(link.spec).ports(), 0) == 2007


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_prompt_waits_for_a_link_that_is_down_and_goes_on(is_pushed: bool) -> None:
    # Computed by 10, and by 11 with push, which waits for word; 1 ms a token: 5 tokens, of which the link is down for
    # 20 ms after the first two, and 1 ms of latency.
    done = 11 if is_pushed else 10
    how = Disaggregation(RoundRobin(), LINK, is_pushed=is_pushed)
    window = ((done + 2) * MS, (done + 22) * MS, 0.0)
    for number in (0, 1):
        setups = [replace(pool("prefill"), pool=0), replace(pool("decode"), pool=1)]
        cluster = serve(setups, trace([0.0], [5], [4]), Weakened([(number, window)]), how)
        assert instants(cluster, "transfer_ps") == [26]
        assert instants(cluster, "finish_ps") == [done + 26 + 30]


def test_layers_go_one_after_the_other_where_a_link_carries_less_for_a_time() -> None:
    # Layers are ready at 2, 4, ... 10 and take 1; at a quarter from 3 to 9 the second takes 4 to 8, and the third, of
    # which a quarter is through by 9, ends at 9.75, the fourth at 10.75 and the fifth at 11.75.
    link = Link(LinkSpec(token_s=5e-12, latency_ps=0, n_layers=5))
    for number in (0, 1):
        link.weaken(number, iter([(300, 900, 0.25)]))
    (own,), (other,) = link.ports(pool=0), link.ports(pool=1)
    assert link.streamed_arrival_ps(100.0, (own, other), (0, 1000)) == 1175


def test_slow_replicas_and_links_are_counted_and_named() -> None:
    apart = scenario({}, 2.0, 60).to_dict()
    apart["cluster"] = {
        "pools": [{"name": role[0], "role": role} for role in ("prefill", "decode")],
        "failures": [
            {"what": "link", "at_s": 5, "pool": "d", "speed_frac": 0, "for_s": 2},
            {"what": "link", "at_s": 9, "speed_frac": 0.25},
            {"what": "slow", "at_s": 3, "member": 1, "for_s": 4},
        ],
    }
    results = simulate(Scenario.from_dict(apart))
    counts = results.summary["scaling"]
    assert (counts["n_failures"], counts["n_slowed"]) == (0, 3)
    assert results.summary["requests"]["failed"] == 0
    requests, end_s = results.requests, results.facts.end_s
    through_s = requests["first_token_s"] + requests["transfer_s"]
    n_weak = ((through_s > 5) & (requests["first_token_s"] < 7) | (through_s > 9)).sum()
    n_slow = ((requests["finish_s"] > 3) & (requests["scheduled_s"] < 7)).sum()
    assert [each for each in results.summary["warnings"] if "speed" in each] == [
        f"slow replicas: 1 window of 1 replica, 4 s in all, {n_slow} requests there meanwhile: "
        "replica 1 ran at 50% of its speed from 3 s to 7 s",
        f"slow links: 2 windows, {end_s - 9 + 2:.3g} s in all, {n_weak} requests in transfer meanwhile: "
        "the link between pools ran at 25% of its speed from 9 s on, the link of pool d was down from 5 s to 7 s",
    ]
    page, brief = render(results).replace("\u00a0", " "), str(run_head(RunView(results.figures)).warnings)
    assert "low links: 2 windows" in page and "slow links: 2 windows" in brief
    waits = results.requests["arrival_s"].between(5, 6.9)
    assert results.requests["transfer_s"][waits].min() > 0.1 > results.requests["transfer_s"][:6].max()


def test_a_link_is_down_when_it_says_however_late_the_first_transfer_is() -> None:
    late = scenario({}, 2.0, 60).to_dict()
    late["workload"] |= {"arrivals": {"kind": "poisson", "rate_per_s": 0.2}, "n_requests": 9}
    late["cluster"] = {
        "pools": [{"name": role[0], "role": role} for role in ("prefill", "decode")],
        "failures": [{"what": "link", "at_s": 7, "speed_frac": 0, "for_s": 10}],
    }
    requests = simulate(Scenario.from_dict(late)).requests
    through_s = requests["first_token_s"] + requests["transfer_s"]
    assert requests["arrival_s"][0] > 3
    assert through_s[requests["transfer_s"] > 1].tolist() == pytest.approx([17, 17, 17], abs=0.01)


@pytest.mark.parametrize("failure", [{"what": "slow", "for_s": 9}, {"what": "process"}])
def test_what_is_said_of_a_pool_is_of_its_new_version_too(failure: dict[str, Any]) -> None:
    failing = [{"at_s": 40, "pool": "serve"} | failure]
    results = simulate(scenario({"startup": FAST}, 4.0, 400, failures=failing, rollout={"at_s": 12}))
    assert results.members["why"][1].startswith("rolled out; ")


def test_a_replica_forgets_windows_that_are_over() -> None:
    slowness = Slowness()
    for start in range(0, 1000, 10):
        slowness.begin((start, start + 15, 0.5))
        assert slowness.windows == [(at, at + 15, 0.5) for at in (start - 10, start) if at >= 0]
    slowness.begin((1000, NEVER, 0.25))
    slowness.begin((2000, 2001, 0.9))
    assert slowness.windows == [(1000, NEVER, 0.25), (2000, 2001, 0.9)]
    starts = np.array([5, 985, 990, 999, 1000, 2000])
    assert slowness.steps_ps(np.full(6, 30), starts).tolist() == [60, 60, 60, 60, 120, 120]


def test_ports_forget_windows_that_are_over_each_at_its_own_time() -> None:
    link = Link(LinkSpec(token_s=1e-9, latency_ps=0))
    (early,), (late,) = link.ports(), link.ports()
    link.weaken(0, ((at, at + 500, 0.5) for at in range(0, 10**6, 1000)))
    link.weaken(0, iter([(0, NEVER, 0.8)]))
    for at in range(0, 10**5, 1000):
        assert link.arrival_ps(0.25, (late,), at) == at + 500
        assert len(late.slowness.windows) <= 4
    assert link.arrival_ps(0.25, (early,), 3000) == 3500
    assert link.arrival_ps(0.25, link.ports(), 7500) == 7813


def test_with_a_rate_it_comes_back_after_it_is_over() -> None:
    failing = [{"what": "slow", "mtbf_s": 10, "speed_frac": 0.5, "for_s": 5}]
    results = simulate(scenario({"replicas": 2}, 4.0, 2400, failures=failing))
    spans = [text for why in results.members["why"] for text in why.split("; ") if text.startswith("ran at")]
    assert len(spans) == results.summary["scaling"]["n_slowed"]
    assert len(spans) == pytest.approx(2 * 600 / 15, rel=0.25)


PS_A_TOKEN = 10**8
N_REQUESTS = 20_000


@dataclass
class Slowed:
    """A control that lets the only replica be slow from the start on."""

    speed: float

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        def act(now_ps: int) -> None:
            assert fleet.serving is not None
            fleet.serving.slow(fleet.replicas[0], (0, NEVER, self.speed))

        Alarm(clock, act, FLEET_PHASE).set(0)

    def goes_on(self) -> bool:
        return False


def one_by_one(rate_per_s: float, speed: float) -> Iterator[Any]:
    """Yield waits and the attained rate of a server that takes 0.1 s a request at full speed."""
    arrival_s = np.cumsum(np.random.default_rng([3, 1]).exponential(1 / rate_per_s, N_REQUESTS))
    cost, policy = LineCost(token=PS_A_TOKEN), Chunked(max_num_batched_tokens=10**9, max_num_seqs=1)
    load = Trace(arrival_s, np.full(N_REQUESTS, 1000), np.ones(N_REQUESTS, np.int64))
    cluster = serve([replica_setup(policy, cost, n_blocks=10**8)], load, Slowed(speed))
    columns = cluster.recorder.columns
    yield (columns["scheduled_ps"] - cluster.rows.arrivals) / 1e12
    yield N_REQUESTS / (columns["finish_ps"].max() / 1e12)


def test_the_attained_rate_of_a_slow_replica_halves() -> None:
    (_, whole), (_, half) = one_by_one(40.0, 1.0), one_by_one(40.0, 0.5)
    assert (whole, half) == (pytest.approx(10, rel=1e-3), pytest.approx(5, rel=1e-3))


def test_the_wait_before_a_slow_replica_is_that_of_an_m_d_1_queue_with_twice_the_service_time() -> None:
    waits, _ = one_by_one(4.0, 0.5)
    utilization = 4.0 * 0.2
    assert waits[1000:].mean() == pytest.approx(utilization * 0.2 / (2 * (1 - utilization)), rel=0.1)
