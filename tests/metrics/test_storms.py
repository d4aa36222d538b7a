"""Retry storms and metastable overload: recognised where retries alone keep a fleet down, and nowhere else."""

from typing import Any

import numpy as np
import pytest

from simserve import Results, load_scenario, simulate
from simserve.metrics import storms as storms_module
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.storms import StormJson, storm_warnings, storms
from simserve.tables.columns import Categorical, Columns
from simserve.tables.facts import MemberFacts
from tests.metrics.stories import STATUS

BUDGET = "workload.retries.budget_frac=0.1"
QUICK = "cluster.pools.0.startup={process_s: 5, compile_s: 0, ready_probe_s: 1}"


def run(*overrides: str) -> Results:
    return simulate(load_scenario("scenarios/retry_storm.yaml", overrides=[*overrides, "measure={replays: 0}"]))


def storm_of(results: Results) -> StormJson:
    storm = results.figures.retry_storm
    assert storm is not None
    return storm


def answered_frac(results: Results, since_s: float) -> float:
    """Return the share answered in the end, of requests first sent since then."""
    requests = results.columns["requests"]
    late = requests["first_sent_s"] >= since_s
    answered = late & requests["status"].is_("finished")
    return float(answered.sum() / (late & (requests["attempt"] == 1)).sum())


def test_a_node_lost_at_peak_leaves_a_metastable_state_that_a_budget_prevents() -> None:
    eager, capped = run(), run(BUDGET)
    storm = storm_of(eager)
    assert storm.trigger_s == pytest.approx(92, abs=1)  # from when the failure is known
    assert storm.metastable_s == pytest.approx(354, abs=1)
    assert storm.answered_frac == pytest.approx(answered_frac(eager, 246), abs=1e-3)
    assert answered_frac(eager, 246) < 0.07
    assert storm_of(capped).metastable_s is None
    assert storm_of(capped).storm_s == 0
    assert answered_frac(capped, 246) > 0.98
    is_first = capped.columns["requests"]["attempt"] == 1
    assert (~is_first).sum() <= 10 + 0.1 * is_first.sum()
    first, second = [text for text in eager.figures.warnings if "storm" in text or "metastable" in text]
    assert first.startswith("metastable: 354 s after a trigger of 92 s had ended, ")
    assert "80% of attempts are retries and 6% of requests are answered; cap retries with workload.retries." in second
    assert not [text for text in capped.figures.warnings if "storm" in text]


@pytest.mark.parametrize(
    ("overrides", "is_storm"),
    [
        (["cluster.failures=null", "workload.arrivals.rate_per_s=13"], True),
        (["workload.arrivals.rate_per_s=13"], True),
        (["cluster.failures.0.recover=none"], True),
        ([QUICK, "workload.arrivals.rate_per_s=4"], False),
        (["cluster.failures=null"], False),
    ],
    ids=["load beyond capacity", "and a lost node", "a node lost for good", "a short dip", "no trigger"],
)
def test_other_overload_is_not_called_metastable(overrides: list[str], is_storm: bool) -> None:
    results = run(*overrides, "workload.duration_s=400")
    storm = results.figures.retry_storm
    assert storm is None or storm.metastable_s is None
    assert (storm is not None and (storm.storm_s or 0) > 100) == is_storm
    assert any("a retry storm: up to" in text for text in results.figures.warnings) == is_storm


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_near_capacity_a_backlog_that_grows_by_itself_is_not_called_metastable(seed: int) -> None:
    """At 10 requests/s the fleet, which serves 9.4, is overloaded some minutes later without any trigger, too."""
    results = run("workload.arrivals.rate_per_s=10", f"seed={seed}")
    assert storm_of(results).metastable_s is None
    assert (storm_of(results).storm_s or 0) > 400


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_each_seed_of_the_shipped_scenario_is_called_metastable(seed: int) -> None:
    assert (storm_of(run(f"seed={seed}")).metastable_s or 0) > 340


@pytest.mark.parametrize(("trend", "most"), [(0.0, 3.0), (9.0, 12.0)])
def test_the_bound_on_growth_covers_the_trend_at_its_confidence(trend: float, most: float) -> None:
    """Ten intervals with a noise of 12 requests: its standard error is 1.32, and Student's t is below 1.645 in 93%."""
    rng = np.random.default_rng(0)
    bounds = [storms_module._growth(trend * np.arange(10) + rng.normal(0, 12, 10)) for _ in range(2000)]
    assert np.mean(np.array(bounds) >= trend) == pytest.approx(0.93, abs=0.015)
    assert np.mean(bounds) == pytest.approx(trend + 1.645 * 1.32, rel=0.05) and np.mean(bounds) < most


class Facts:
    """A fleet of replicas with a GPU each."""

    def __init__(self, *members: MemberFacts) -> None:
        self.members = members
        pool: Any = type("Pool", (), {"gpus_per_replica": 1, "ranks_per_replica": 1})
        self.pools_by_replica = [pool] * len(members)


def counted(n_first: list[int], n_retries: list[int], answered: list[int]) -> Columns:
    """Return attempts of intervals of 15 s: first attempts, of which some are answered at once, and retries."""
    rows = []
    for i, (first, retries, n) in enumerate(zip(n_first, n_retries, answered, strict=True)):
        at_s = 15 * i + 15 * (np.arange(first) + 0.5) / first
        rows += [(each, each, 1, k < n) for k, each in enumerate(at_s)]
        rows += [(15 * i + 7.0, max(15 * i - 5.0, 0.0), 2, False)] * retries
    last_s = 15 * len(n_first)
    rows.append((last_s, last_s, 1, False))
    arrival_s, first_s, attempt, is_answered = (np.array(column) for column in zip(*rows, strict=True))
    codes = np.array([STATUS.index("finished" if each else "timed_out") for each in is_answered], np.int32)
    return {
        "arrival_s": arrival_s.astype(np.float64),
        "first_sent_s": first_s.astype(np.float64),
        "attempt": attempt,
        "finish_s": np.where(is_answered, arrival_s + 0.1, np.nan),
        "status": Categorical(codes, STATUS),
    }


CALM, STORM = (100, 0, 100), (100, 200, 10)
"""First attempts, retries, and first attempts that are answered."""


@pytest.mark.parametrize(
    ("intervals", "metastable_s"),
    [
        ([CALM] * 6 + [(300, 200, 10)] * 2 + [STORM] * 4, 60),  # a burst of 30 s, and twice as long after it
        ([CALM] * 6 + [(300, 200, 10)] * 2 + [STORM] * 3 + [CALM], None),  # shorter than that
        ([CALM] * 6 + [(300, 200, 10)] * 3 + [STORM] * 5 + [CALM], None),
        ([CALM] * 6 + [(300, 200, 10)] * 3 + [STORM] * 6 + [CALM], 90),  # it ends by itself
        ([CALM] * 2 + [(300, 200, 10)] * 2 + [STORM] * 9, None),  # no calm that is long enough
        ([CALM] * 6 + [STORM] * 9, None),  # no trigger
        ([CALM] * 6 + [STORM] + [(300, 200, 10)] * 2 + [STORM] * 9, None),  # the storm came first
        ([CALM] * 6 + [(300, 200, 10)] * 2 + [(120, 240, 12)] * 9, None),  # more load than was served
        ([CALM] * 6 + [(300, 200, 10)] * 2 + [(100, 200, 95)] * 9, None),  # retries, but nearly all are answered
        ([CALM] * 6 + [(300, 200, 10)] * 2 + [(100, 45, 10)] * 9, None),  # too few retries
        ([(100, 0, 94)] * 6 + [(300, 200, 10)] * 2 + [STORM] * 9, None),  # its backlog grew before
    ],
)
def test_the_definition_by_hand(intervals: list[tuple[int, int, int]], metastable_s: float | None) -> None:
    facts: Any = Facts(MemberFacts())
    storm = storms(counted(*(list(column) for column in zip(*intervals, strict=True))), Lifetimes(facts))
    assert storm is not None
    assert storm.metastable_s == (None if metastable_s is None else pytest.approx(metastable_s))


@pytest.mark.parametrize(("back_s", "metastable_s"), [(120.0, 135), (165.0, None), (None, None)])
def test_fewer_gpus_are_a_trigger_until_they_are_back(back_s: float | None, metastable_s: float | None) -> None:
    # One of two replicas fails at 90 s. Its successor comes, too late to say what goes on after it, or never.
    intervals = [CALM] * 6 + [STORM] * 11
    facts: Any = Facts(MemberFacts(), MemberFacts(gone_s=90.0), MemberFacts(ordered_s=100.0, ready_s=back_s))
    storm = storms(counted(*(list(column) for column in zip(*intervals, strict=True))), Lifetimes(facts))
    assert storm is not None
    assert storm.metastable_s == (None if metastable_s is None else pytest.approx(metastable_s))
    assert storm.storm_s == pytest.approx(11 * 15)


def test_without_retries_there_is_nothing_to_say() -> None:
    facts: Any = Facts(MemberFacts())
    assert storms(counted([100] * 9, [0] * 9, [0] * 9), Lifetimes(facts)) is None
    assert storm_warnings(None) == []
    assert storm_warnings(StormJson(most_frac=0.2, storm_s=0.0)) == []
