"""Priorities against queueing theory, fair shares against their proof, and batch traffic beside chats."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve.engine.cluster import Cluster
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.workload.trace import Trace
from tests.doubles import UNEVEN, LineCost, replica_setup, serve
from tests.effort import runs, wider

pytestmark = pytest.mark.law("theory")

FULL = 100_000
N_REQUESTS = runs(FULL, quick=25_000)
PS_A_TOKEN = 10**8
"""A prompt token takes 0.1 ms."""


def waits_s(cluster: Cluster) -> NDArray[np.float64]:
    """Return the waiting time of each request."""
    waits: NDArray[np.float64] = (cluster.recorder.columns["scheduled_ps"] - cluster.rows.arrivals) / 1e12
    return waits


@pytest.mark.parametrize("shares", [(0.3, 0.7), (0.2, 0.3, 0.5)])
def test_waits_of_each_class_in_front_of_one_seat_are_those_of_cobham(shares: tuple[float, ...]) -> None:
    """M/G/1 with non-preemptive priorities (Cobham 1954): W_k = R / ((1 - s_(k-1)) (1 - s_k)), where R is half the
    arrival rate times the second moment of the service time, and s_k the load of the classes up to k."""
    rng = np.random.default_rng([17, len(shares)])
    rate_per_s = 8.0
    arrival_s = np.cumsum(rng.exponential(1 / rate_per_s, N_REQUESTS))
    prompts = np.maximum(1, rng.lognormal(np.log(1000) - 0.32, 0.8, N_REQUESTS)).astype(np.int64)
    classes = rng.choice(len(shares), N_REQUESTS, p=shares)
    service_s = prompts * (PS_A_TOKEN / 1e12)
    residual_s = rate_per_s * (service_s**2).mean() / 2
    loads = [rate_per_s * share * service_s[classes == k].mean() for k, share in enumerate(shares)]

    policy = Chunked(max_num_batched_tokens=10**9, max_num_seqs=1, policy="priority")
    load = Trace(arrival_s, prompts, np.ones(N_REQUESTS, np.int64), priority=classes)
    waits = waits_s(serve(replica_setup(policy, LineCost(token=PS_A_TOKEN), n_blocks=10**8), load))

    for k in range(len(shares)):
        theory_s = residual_s / ((1 - sum(loads[:k])) * (1 - sum(loads[: k + 1])))
        mine = waits[N_REQUESTS // 20 :][classes[N_REQUESTS // 20 :] == k]
        means = np.array([batch.mean() for batch in np.array_split(mine, 30)])
        half_width = 3.66 * means.std(ddof=1) / np.sqrt(len(means))  # 99.9% of Student's t with 29 degrees of freedom
        assert abs(mine.mean() - theory_s) < half_width
        assert half_width < 0.25 * wider(N_REQUESTS, FULL) * theory_s


def served_until(cluster: Cluster, load: Trace, at_ps: NDArray[np.int64], tenant: str) -> NDArray[np.float64]:
    """Return a tenant's service until each instant: prompt tokens from admission on, plus twice the output tokens.

    Between its first and last token an answer advances step by step, here evenly: off by two tokens at most.
    """
    columns = cluster.recorder.columns
    served = np.zeros(len(at_ps))
    for row in np.flatnonzero(load.tenant == tenant):
        first, last, n = columns["first_token_ps"][row], columns["finish_ps"][row], int(load.output_tokens[row])
        out = np.interp(at_ps, [first, max(last, first + 1)], [1, n]) * (at_ps >= first)
        served += load.prompt_tokens[row] * (at_ps >= columns["scheduled_ps"][row]) + 2.0 * out
    return served


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_two_tenants_who_always_have_somebody_waiting_are_served_alike_within_the_proved_bound(weight: float) -> None:
    """Theorem 4.4 of the paper: over any interval in which both wait, the service of two tenants (by weight) differs by
    at most 2 max(w_p L_input, w_q M), where M is what fits the memory."""
    rng = np.random.default_rng(23)
    n = 1200
    lengths = {"long": (rng.integers(300, 600, n), rng.integers(50, 150, n)), "short": (rng.integers(5, 60, n),) * 2}
    tenants = np.where(rng.random(n) < 0.5, "long", "short")
    prompts, outputs = (np.where(tenants == "long", lengths["long"][i], lengths["short"][i]) for i in range(2))
    load = Trace(np.zeros(n), prompts, outputs, tenant=tenants)
    n_blocks, block_size = 400, 16
    policy = Chunked(policy="vtc", max_num_seqs=8, vtc=FairShares(tenant_weights={"long": weight}))
    cluster = serve(replica_setup(policy, UNEVEN, n_blocks=n_blocks, block_size=block_size), load)

    scheduled_ps = cluster.recorder.columns["scheduled_ps"]
    assert cluster.recorder.columns["n_preemptions"].sum() == 0  # the paper has none
    both_wait_until_ps = min(scheduled_ps[tenants == name].max() for name in ("long", "short"))
    at_ps = np.linspace(0, both_wait_until_ps, 400).astype(np.int64)[1:-1]
    gap = served_until(cluster, load, at_ps, "long") / weight - served_until(cluster, load, at_ps, "short")
    bound = 2 * max(1.0 * prompts.max(), 2.0 * n_blocks * block_size)
    widest = float(gap.max() - gap.min())  # of any two instants: the difference over the interval between them
    assert widest <= bound
    disaggregated = serve(replica_setup(in_turn(policy), UNEVEN, n_blocks=n_blocks, block_size=block_size), load)
    unfair = served_until(disaggregated, load, at_ps, "long") / weight - served_until(
        disaggregated, load, at_ps, "short"
    )
    assert float(unfair.max() - unfair.min()) > 3 * widest  # first come, first served, it only grows


def in_turn(policy: Chunked) -> Chunked:
    """Replace VTC by first come, first served."""
    return replace(policy, policy="fcfs", vtc=None)


def test_batch_traffic_fills_the_gaps_and_chats_wait_for_little_more_than_a_step() -> None:
    """A job of 300 prompts from the start, and chats beside it: the chats' p99 wait rises by at most two of the longest
    steps, but by the whole job with first come, first served."""
    rng = np.random.default_rng(29)
    n_chats, n_batch = 2000, 300
    chats = Trace(
        np.cumsum(rng.exponential(0.05, n_chats)), rng.integers(50, 400, n_chats), rng.integers(20, 80, n_chats)
    )
    order = np.argsort(np.concatenate([chats.arrival_s, np.zeros(n_batch)]), kind="stable")
    both = Trace(
        np.concatenate([chats.arrival_s, np.zeros(n_batch)]),
        np.concatenate([chats.prompt_tokens, np.full(n_batch, 1500)]),
        np.concatenate([chats.output_tokens, np.full(n_batch, 100)]),
        priority=np.concatenate([np.zeros(n_chats, np.int64), np.full(n_batch, 10)]),
    ).take(order)
    is_chat = order < n_chats

    def p99_and_end(load: Trace, mine: NDArray[np.bool_], policy: Chunked) -> tuple[float, float]:
        cluster = serve(replica_setup(policy, UNEVEN, n_blocks=2000), load)
        return float(np.percentile(waits_s(cluster)[mine], 99)), cluster.recorder.columns["finish_ps"].max() / 1e12

    by_priority = Chunked(max_num_batched_tokens=512, policy="priority", priority_preemption_threshold=0)
    alone_s, _ = p99_and_end(chats, np.ones(n_chats, np.bool_), by_priority)
    beside_s, end_s = p99_and_end(both, is_chat, by_priority)
    in_turn_s, in_turn_end_s = p99_and_end(
        both, is_chat, in_turn(replace(by_priority, priority_preemption_threshold=None))
    )
    longest_step_s = UNEVEN.mixed_ps(512, 512 * 2000, 2000 * 16, 256, 2000 * 16, 256) / 1e12
    assert beside_s <= alone_s + 2 * longest_step_s
    assert in_turn_s > 10 * beside_s
    assert end_s == pytest.approx(in_turn_end_s, rel=0.1)  # no throughput is lost
