"""With one slot and one output token a replica is a single-server queue, with waits known from theory."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve.admission.base import Admission
from simserve.admission.queue_length import QueueLength
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered, Patience
from simserve.engine.recorder import REJECTED, TIMED_OUT
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Trace
from tests.doubles import LineCost, replica_setup, serve
from tests.effort import runs, wider

pytestmark = pytest.mark.law("theory")

FULL = 120_000
N_REQUESTS = runs(FULL, quick=30_000)
WIDER = wider(N_REQUESTS, FULL)
"""What follows holds for so many requests; with fewer every bound is as many standard errors away."""
PS_A_TOKEN = 10**8
"""A prompt token takes 0.1 ms, so a mean prompt of 1,000 tokens is served in 0.1 s."""

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

SERVICES: dict[str, Draw] = {
    "M/M/1": lambda rng, n: rng.exponential(1000, n),
    "M/D/1": lambda rng, n: np.full(n, 1000.0),
    "M/G/1": lambda rng, n: rng.lognormal(np.log(1000) - 0.32, 0.8, n),
}


def queue_waits(prompt_tokens: NDArray[np.int64], rate_per_s: float, seed: int) -> NDArray[np.float64]:
    """Return the waiting time of each request in front of one server."""
    n = len(prompt_tokens)
    arrival_s = np.cumsum(np.random.default_rng([seed, 1]).exponential(1 / rate_per_s, n))
    setup = replica_setup(
        Chunked(max_num_batched_tokens=10**9, max_num_seqs=1), LineCost(token=PS_A_TOKEN), n_blocks=10**8
    )
    cluster = serve(setup, Trace(arrival_s, prompt_tokens, np.ones(n, np.int64)))
    return (cluster.recorder.columns["scheduled_ps"] - cluster.rows.arrivals) / 1e12


@pytest.mark.parametrize("rate_per_s", [5.0, 8.0])
@pytest.mark.parametrize("kind", SERVICES)
def test_mean_wait_is_that_of_pollaczek_and_khinchine(kind: str, rate_per_s: float) -> None:
    prompt_tokens = np.maximum(1, SERVICES[kind](np.random.default_rng([3, 0]), N_REQUESTS)).astype(np.int64)
    service_s = prompt_tokens * (PS_A_TOKEN / 1e12)
    utilization = rate_per_s * service_s.mean()
    theory_s = rate_per_s * (service_s**2).mean() / (2 * (1 - utilization))

    waits = queue_waits(prompt_tokens, rate_per_s, seed=3)[N_REQUESTS // 20 :]

    batches = np.array_split(waits, 30)  # each batch is hundreds of busy periods long
    means = np.array([batch.mean() for batch in batches])
    half_width = 3.66 * means.std(ddof=1) / np.sqrt(len(means))  # 99.9% of Student's t with 29 degrees of freedom
    assert abs(waits.mean() - theory_s) < half_width
    assert half_width < 0.25 * WIDER * theory_s


def test_a_wait_in_m_m_1_is_exponential_with_a_mass_at_zero() -> None:
    prompt_tokens = np.maximum(1, np.random.default_rng(5).exponential(1000, N_REQUESTS)).astype(np.int64)
    waits = queue_waits(prompt_tokens, 7.0, seed=5)
    assert np.mean(waits == 0) == pytest.approx(0.3, abs=0.01 * WIDER)
    assert np.mean(waits > 0.5) == pytest.approx(0.7 * np.exp(-(10 - 7) * 0.5), abs=0.015 * WIDER)


def test_littles_law_holds_to_the_picosecond_for_decoding_requests() -> None:
    rng = np.random.default_rng(11)
    n = 2000
    load = Trace(np.cumsum(rng.exponential(0.05, n)), rng.integers(1, 900, n), rng.integers(1, 300, n))
    cluster = serve(replica_setup(Chunked(), LineCost(step=5_000_000_003, token=1_000_003, key=39_119)), load)
    rows = cluster.recorder.step_runs(0)
    n_steps = rows["n_steps"].astype(np.int64)
    lasted_ps = n_steps * rows["first_ps"] + rows["growth_ps"] * (n_steps * (n_steps - 1) // 2)
    columns = cluster.recorder.columns
    assert columns["n_preemptions"].sum() == 0
    in_decode_ps = columns["finish_ps"] - columns["first_token_ps"]
    assert int((rows["decode_requests"] * lasted_ps).sum()) == int(in_decode_ps.sum())


def one_server(load: Trace, patience: Patience, admission: Admission | None = None) -> Cluster:
    """Return one slot with one prompt per step."""
    policy = Chunked(max_num_batched_tokens=10**9, max_num_seqs=1)
    setup = replica_setup(policy, LineCost(token=PS_A_TOKEN), n_blocks=10**8)
    cluster = Cluster([setup], RoundRobin(), Offered(load, patience=patience), 0, admission=admission)
    run_cluster(cluster)
    return cluster


def poisson(rate_per_s: float, prompt_tokens: NDArray[np.float64], seed: int) -> Trace:
    n = len(prompt_tokens)
    arrival_s = np.cumsum(np.random.default_rng([seed, 1]).exponential(1 / rate_per_s, n))
    return Trace(arrival_s, np.maximum(1, prompt_tokens).astype(np.int64), np.ones(n, np.int64))


@pytest.mark.parametrize(("rate_per_s", "n_places"), [(8.0, 5), (14.0, 3), (5.0, 1)])
def test_a_queue_with_few_places_refuses_as_many_as_m_m_1_k(rate_per_s: float, n_places: int) -> None:
    load = poisson(rate_per_s, np.random.default_rng(17).exponential(1000, N_REQUESTS), seed=17)
    cluster = one_server(load, Patience(), QueueLength(max_outstanding=n_places))
    rho = rate_per_s / 10
    theory = (1 - rho) * rho**n_places / (1 - rho ** (n_places + 1))
    assert cluster.recorder.n_with(REJECTED) / N_REQUESTS == pytest.approx(theory, rel=0.03 * WIDER)


@pytest.mark.parametrize("rate_per_s", [8.0, 14.0])
def test_as_many_give_up_as_in_m_m_1_with_patience(rate_per_s: float) -> None:
    # The work V before an arrival has an atom c at 0 and, if no arrival joins that finds more than D, the density l c
    # exp(-(m - l) v) up to D and l c exp(l D) exp(-m v) beyond (level crossing; Gnedenko and Kovalenko, 1989). A first
    # token is in time if V + S <= D. A step is never cut short, so a time-out in service is served to the end.
    rate, mean_rate, patience_s = rate_per_s, 10.0, 0.3
    load = poisson(rate, np.random.default_rng(23).exponential(1000, N_REQUESTS), seed=23)
    cluster = one_server(load, Patience(ttft_ps=int(patience_s * 1e12)))
    both, gap = mean_rate * patience_s, mean_rate - rate
    below = (1 - np.exp(-gap * patience_s)) / gap
    empty = 1 / (1 + rate * below + rate * np.exp(-gap * patience_s) / mean_rate)
    late_below = np.exp(-both) * (np.exp(rate * patience_s) - 1) / rate
    in_time = empty * (1 - np.exp(-both) + rate * (below - late_below))
    assert cluster.recorder.n_with(TIMED_OUT) / N_REQUESTS == pytest.approx(1 - in_time, rel=0.03 * WIDER)
