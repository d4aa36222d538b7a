"""Fleets whose servers break down, and a fleet that grows too late, held against exact queueing theory and arithmetic.

A replica has one slot, prompts take 10 us a token, and answers are of one token.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spsolve

from simserve.autoscalers.schedule import Schedule, ScheduleStep
from simserve.columns.run import serve
from simserve.engine.cluster import Cluster
from simserve.engine.offered import Offered
from simserve.engine.placement import Placement
from simserve.engine.pods import PoolPlan
from simserve.engine.recorder import FAILED, FINISHED
from simserve.engine.scaling import Scaling
from simserve.routers.base import Router
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.scenario.fleet import Failure, Scrape, Shutdown, Spares, Startup
from simserve.schedulers.chunked import Chunked
from simserve.state.request import Request
from simserve.state.view import LoadView
from simserve.units import to_s
from simserve.workload.amounts import DrawnSeconds, Time
from simserve.workload.trace import Trace
from tests.doubles import LineCost, replica_setup
from tests.effort import runs, wider

pytestmark = pytest.mark.law("theory")

S_A_TOKEN = 1e-5
MEAN_S = 0.1
"""Mean service time."""


class Noting(LeastOutstanding):
    """Notes where each request went."""

    def __init__(self) -> None:
        self.replicas: dict[int, int] = {}

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        view = super().pick(request, views)
        self.replicas[request.row] = view.id
        return view


def run(
    arrival_s: NDArray[np.float64],
    service_s: NDArray[np.float64],
    n_replicas: int,
    start_s: Time,
    schedule: Schedule | None = None,
    router: Router | None = None,
    failures: Sequence[Failure] = (),
    seed: int = 0,
) -> Cluster:
    """Serve requests on replicas of one slot; a failed one starts again at once, and its requests fail."""
    policy = Chunked(max_num_batched_tokens=10**9, max_num_seqs=1)
    setup = replica_setup(policy, LineCost(token=round(S_A_TOKEN * 1e12)), n_blocks=10**8)
    startup = Startup(process_s=start_s, compile_s=0, ready_probe_s=0)
    plan = PoolPlan("p", setup, 1, 1, 0.0, startup, Shutdown(), Spares())
    control = Scaling([plan], [schedule], seed, Placement(8), Scrape(), failures)
    prompt_tokens = np.maximum(1, np.rint(service_s / S_A_TOKEN)).astype(np.int64)
    offered = Offered(Trace(arrival_s, prompt_tokens, np.ones(len(arrival_s), np.int64)))
    cluster = Cluster(setup.copies(n_replicas), router or LeastOutstanding(), offered, seed, control=control)
    serve(cluster)
    return cluster


DOWN = -1
State = tuple[int, ...]
"""Requests at the gateway, then those of each replica in ascending order, DOWN for one that starts."""


def moves(state: State, arrive: float, fail: float, repair: float, most: int) -> Iterator[tuple[float, State]]:
    """Yield the rates of a Markov chain from one state, and where they lead; the requests of a failed replica go."""
    held, *replicas = state
    up = [n for n in replicas if n != DOWN]

    def with_one(n: int, other: int, held: int = 0) -> State:
        left = [*replicas]
        left.remove(n)
        return (held, *sorted([*left, other]))

    if held + sum(up) < most:
        yield arrive, (with_one(min(up), min(up) + 1) if up else (held + 1, *replicas))
    for n in up:
        yield fail, with_one(n, DOWN)
        if n:
            yield 1 / MEAN_S, with_one(n, n - 1)
    if DOWN in replicas:
        yield repair * replicas.count(DOWN), with_one(DOWN, held)


def stationary(n_replicas: int, arrive: float, fail: float, repair: float, most: int) -> dict[State, float]:
    """Return the probability of each state, with no more requests than `most`: a linear system."""
    places: dict[State, int] = {(0,) * (n_replicas + 1): 0}
    entries = Counter[tuple[int, int]]()
    for state in (queue := [*places]):
        for rate, after in moves(state, arrive, fail, repair, most):
            if after not in places:
                places[after] = len(places)
                queue.append(after)
            entries[places[after], places[state]] += rate  # type: ignore[assignment]
            entries[places[state], places[state]] -= rate  # type: ignore[assignment]
    rows, columns = np.array([*entries]).T
    balance = csc_matrix(([*entries.values()], (rows, columns))).tolil()
    balance[0, :] = 1.0  # one equation follows from the others
    shares = spsolve(balance.tocsc(), np.eye(len(places))[0])
    return dict(zip(places, shares.tolist(), strict=True))


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of a series and the half width of its 99.9% interval, from thirty batches (Student's t)."""
    means = np.array([batch.mean() for batch in np.array_split(values, 30)])
    return float(values.mean()), 3.66 * float(means.std(ddof=1)) / float(np.sqrt(len(means)))


def up_frac(cluster: Cluster, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many replicas are ready in each interval, on average."""
    ready_s, gone_s = (
        np.array([np.inf if at_ps is None else to_s(at_ps) for at_ps in instants])[:, None]
        for instants in zip(*((each.ready_ps, each.gone_ps) for each in cluster.members), strict=True)
    )
    lived_s = np.maximum(np.minimum(edges_s[1:], gone_s) - np.maximum(edges_s[:-1], ready_s), 0.0)
    n_up: NDArray[np.float64] = lived_s.sum(axis=0) / np.diff(edges_s)
    return n_up


FULL = 200_000
N_REQUESTS = runs(FULL, quick=30_000)
WIDER = wider(N_REQUESTS, FULL)
LIFE_S, REPAIR_S = 10.0, 1.5


@pytest.mark.parametrize(
    ("n_replicas", "rate_per_s", "most"),
    [(1, 6.0, 120), (2, 13.0, 100), pytest.param(3, 16.0, 60, marks=pytest.mark.thorough)],
)
def test_servers_that_break_down_and_are_repaired_agree_with_their_markov_chain(
    n_replicas: int, rate_per_s: float, most: int
) -> None:
    """M/M/c with a queue at each server, of which the shortest is chosen; lives and repairs are exponential."""
    rng = np.random.default_rng([29, n_replicas])
    arrival_s = np.cumsum(rng.exponential(1 / rate_per_s, N_REQUESTS))
    failures = [Failure(what="process", mtbf_s=LIFE_S, detect_s=0)]
    service_s, router = rng.exponential(MEAN_S, N_REQUESTS), Noting()
    repair = DrawnSeconds(mean=REPAIR_S)
    cluster = run(arrival_s, service_s, n_replicas, repair, router=router, failures=failures, seed=31)
    chain = stationary(n_replicas, rate_per_s, 1 / LIFE_S, 1 / REPAIR_S, most)
    n_there = {state: sum(n for n in state if n != DOWN) for state in chain}
    assert sum(share for state, share in chain.items() if n_there[state] == most) < 1e-4

    columns = cluster.recorder.columns
    is_lost = columns["status"] == FAILED
    assert (is_lost | (columns["status"] == FINISHED)).all()
    gone_s = np.array([np.nan if each.gone_ps is None else to_s(each.gone_ps) for each in cluster.members])
    replica_of = [router.replicas[row] for row in range(N_REQUESTS)]
    end_s = np.where(is_lost, gone_s[replica_of], columns["finish_ps"] / 1e12)
    n_up = sum(share * sum(n != DOWN for n in each) for (_, *each), share in chain.items())
    mean_there = sum(share * n_there[state] for state, share in chain.items())
    n_held = sum(share * state[0] for state, share in chain.items())
    assert n_up == pytest.approx(n_replicas * LIFE_S / (LIFE_S + REPAIR_S))
    for values, theory in (
        (up_frac(cluster, np.linspace(0.0, arrival_s[-1], 301)), n_up),
        (is_lost.astype(np.float64), (mean_there - n_held) / LIFE_S / rate_per_s),
        (end_s - arrival_s, mean_there / rate_per_s),  # Little's law
    ):
        mean, half_width = interval(values)
        assert abs(mean - theory) < half_width
        assert half_width < 0.25 * WIDER * theory


def test_the_queue_while_a_replica_starts_and_its_drain_follow_from_fluid_arithmetic() -> None:
    """A replica serves 8 requests/s; 5 come each second, 10 from 10 s on, when a second one is ordered, for 20 s."""
    arrival_s = np.r_[np.arange(1, 51) * 0.2, 10 + np.arange(1, 401) * 0.1]
    steps = [ScheduleStep(at_s=0, replicas=1), ScheduleStep(at_s=10, replicas=2)]
    cluster = run(arrival_s, np.full(len(arrival_s), 0.125), 1, 20.0, Schedule(steps, interval_s=0.1))
    ordered_s, ready_s = to_s(cluster.members[1].ordered_ps), to_s(cluster.members[1].ready_ps or 0)
    assert 10 <= ordered_s < 10.1 and ready_s == pytest.approx(ordered_s + 20)
    finish_s = np.sort(cluster.recorder.columns["finish_ps"] / 1e12)

    def there(at_s: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(arrival_s, at_s, "right") - np.searchsorted(finish_s, at_s, "right")

    assert there(np.array([ready_s])) == 1 + 20 * (10 - 8)  # one is served, 40 wait
    empty_s = ready_s + 40 / (2 * 8 - 10)
    grows, drains = np.linspace(10.0, ready_s, 500), np.linspace(ready_s, empty_s, 500)
    assert np.abs(there(grows) - (1 + (10 - 8) * (grows - 10))).max() <= 1
    assert np.abs(there(drains) - (2 + (2 * 8 - 10) * (empty_s - drains))).max() <= 2
    assert there(np.linspace(empty_s, 50.0, 500)).max() <= 2  # nothing waits
