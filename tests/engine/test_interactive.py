"""A closed loop of users with think times is an interactive system (laws: Lazowska et al. 1984, chapter 3)."""

from dataclasses import replace
from math import factorial

import numpy as np
import pytest

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.units import PS_PER_S, array_to_ps
from simserve.workload.trace import Dependencies, Trace
from tests.doubles import LineCost, replica_setup

pytestmark = pytest.mark.law("theory")

PS_A_TOKEN = 10**8
"""A prompt token takes 0.1 ms."""


def users(n_users: int, prompt_tokens: list[int], think_s: list[float]) -> Cluster:
    """Draw users that send one-token requests to one slot, and think before each but their first."""
    n = len(prompt_tokens)
    load = Trace(np.zeros(n), np.array(prompt_tokens), np.ones(n, np.int64))
    load = replace(load, dependencies=replace(Dependencies.none(n), think_s=np.array(think_s)))
    setup = replica_setup(
        Chunked(max_num_batched_tokens=10**9, max_num_seqs=1), LineCost(token=PS_A_TOKEN), n_blocks=10**8
    )
    cluster = Cluster([setup], RoundRobin(), Offered(load, n_users), 0)
    run_cluster(cluster)
    return cluster


def test_users_times_time_are_responses_and_thoughts_to_the_picosecond() -> None:
    # N T = sum of (R + Z): each user alternates answers and thinking without a gap until its last answer.
    rng = np.random.default_rng(4)
    n_users, n = 7, 3000
    think_s = rng.exponential(0.3, n)
    cluster = users(n_users, rng.integers(1, 2000, n).tolist(), think_s.tolist())
    finish_ps, sent_ps = cluster.recorder.columns["finish_ps"], cluster.rows.arrivals
    in_all_ps = int((finish_ps - sent_ps).sum()) + int(array_to_ps(think_s)[n_users:].sum())
    # The user of row i had its answer one think time earlier; the last answers belong to N different users.
    went_on_ps = sorted((sent_ps - array_to_ps(think_s))[n_users:].tolist())
    last_ps = list(finish_ps.tolist())
    for answered_ps in went_on_ps:
        last_ps.remove(answered_ps)
    assert len(last_ps) == n_users
    assert in_all_ps == sum(last_ps)


@pytest.mark.parametrize(("n_users", "per_s"), [(1, 1 / 0.5), (4, 4 / 0.5), (5, 10.0), (9, 10.0)])
def test_equal_users_get_the_lesser_of_their_own_pace_and_the_servers(n_users: int, per_s: float) -> None:
    """X = min(N / (S + Z), 1 / S): fixed times reach the asymptotic bounds; S = 0.1 s, Z = 0.4 s."""
    n = 400
    cluster = users(n_users, [1000] * n, [0.4] * n)
    finish_s = np.sort(cluster.recorder.columns["finish_ps"]) / PS_PER_S
    n_late = n_users * 40
    assert n_late / (finish_s[-1] - finish_s[-1 - n_late]) == pytest.approx(per_s, rel=1e-9)


@pytest.mark.parametrize("n_users", [2, 6, 12])
def test_throughput_is_that_of_the_machine_repairman(n_users: int) -> None:
    """M/M/1//N with Z = 0.5 s and S = 0.1 s: the server idles with P0 = 1 / sum of N!/(N-k)! (S/Z)^k."""
    n = 30_000
    rng = np.random.default_rng(n_users)
    prompts = np.maximum(1, rng.exponential(1000, n)).astype(np.int64)
    cluster = users(n_users, prompts.tolist(), rng.exponential(0.5, n).tolist())
    service_s = prompts.mean() * PS_A_TOKEN / PS_PER_S
    weights = [factorial(n_users) / factorial(n_users - k) * (service_s / 0.5) ** k for k in range(n_users + 1)]
    theory_per_s = (1 - 1 / sum(weights)) / service_s
    finish_s = np.sort(cluster.recorder.columns["finish_ps"]) / PS_PER_S
    batches = np.array([each[-1] - each[0] for each in np.array_split(finish_s, 30)])
    mean_s = n / 30 / theory_per_s
    half_width_s = 3.66 * batches.std(ddof=1) / np.sqrt(len(batches))  # 99.9% of Student's t, 29 degrees of freedom
    assert abs(batches.mean() - mean_s) < half_width_s + 1 / theory_per_s
    assert half_width_s < 0.03 * mean_s
