"""The metrics of a real run against the oracle, which keeps every token's own time."""

import numpy as np
from hypothesis import given, settings

from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.tabulate import tabulate
from simserve.metrics.results import Results
from simserve.metrics.stats import PERCENTILES, level_name
from simserve.routers.round_robin import RoundRobin
from simserve.tables.run_tables import RunTables
from simserve.units import PS_PER_S
from simserve.workload.trace import Trace
from tests.agreement import run_both
from tests.effort import examples
from tests.metrics.stories import pool_facts, run_facts
from tests.oracle_replica import Life
from tests.worlds import setups, traces


def reduced(run: RunTables, setup: ReplicaSetup, n_replicas: int) -> Results:
    pool = pool_facts(n_replicas=n_replicas, streamed=setup.scheduler.stream)
    return Results.from_run(run, run_facts(run, pools=(pool,), slo={"itl_s": 1.0}), "")


def gaps_s(life: Life) -> list[float]:
    return [(after - before) / PS_PER_S for before, after in zip(life.token_ps, life.token_ps[1:], strict=False)]


@settings(max_examples=examples(60))
@given(setups(), traces())
def test_gaps_and_first_tokens_are_those_of_the_oracles_tokens(replicas: list[ReplicaSetup], load: Trace) -> None:
    cluster, truth = run_both(replicas, RoundRobin, load, None)
    n_ranks = len(cluster.replicas)
    run = tabulate(cluster, np.zeros(n_ranks, np.int32), ("serve",))
    results = reduced(run, replicas[0], n_ranks)
    done = {row: life for row, life in truth.lives.items() if life.finish_ps >= 0}
    pooled = [gap for life in done.values() for gap in gaps_s(life)]
    assert results.summary["itl_s"]["n"] == len(pooled)
    if pooled:
        result = [results.summary["itl_s"][level_name(level)] for level in PERCENTILES]
        assert result == np.percentile(pooled, PERCENTILES).tolist()
    requests = results.columns["requests"]
    for row, life in done.items():
        gaps = gaps_s(life)
        assert requests["max_itl_s"][row] == max(gaps) if gaps else np.isnan(requests["max_itl_s"][row])
        assert requests["ttft_s"][row] == requests["first_token_s"][row] - requests["arrival_s"][row]
        assert requests["first_token_s"][row] == life.token_ps[0] / PS_PER_S
