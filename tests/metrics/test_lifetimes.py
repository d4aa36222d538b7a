"""Lifetimes: everything that counts replicas or GPUs counts the time for which they were there."""

import numpy as np
import pytest

from simserve.metrics.goodput import AttainmentJson, goodput
from simserve.metrics.kv import kv_use
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.results import Results
from simserve.metrics.timeseries import pool_series
from simserve.metrics.utilization import utilization
from simserve.report.page import render
from simserve.tables.facts import MemberFacts, RunFacts, facts_from_dict, facts_to_dict
from simserve.tables.run_tables import RunTables
from simserve.tables.why import Reason, Why
from tests.metrics.stories import Life, S, Teller, pool_facts, run_facts, tables, window_of
from tests.metrics.test_timeseries import grid, series

ORDERED = Reason(Why.SCALED, "ordered")
HALF = (
    MemberFacts(reasons=(Reason(Why.START),), gone_s=4.0, draining_s=2.0),
    MemberFacts(1.0, 2.0, reasons=(ORDERED,)),
    MemberFacts(6.0, None, gone_s=7.0, reasons=(ORDERED, Reason(Why.LINK, "d", (5.0, None), 0.25))),
)
"""Of 8 s: one drains from 2 s and is gone at 4 s, one is ready from 2 s on, one never is."""


def story() -> tuple[RunTables, RunFacts]:
    """Two replicas, each busy for one of its two seconds in an interval of 4 s, with a queue of 3 requests."""
    lives = [Life(0, 1), Life(2 * S, 1)]
    tellers = [Teller(lives, 0, now_ps=0), Teller(lives, 1, now_ps=6 * S)]
    for request, teller in enumerate(tellers):
        teller.start(request)
        teller.row(1 * S, prefill_tokens=40, joins=(request,), queue_len=3, kv_blocks_used=50)
    run = tables(lives, tellers)
    pools = (pool_facts(n_replicas=3, gpus_per_replica=2, price_per_gpu_hour_usd=9.0),)
    return run, run_facts(run, pools=pools, end_s=8.0, members=HALF)


def test_gpu_time_counts_from_the_order_of_a_replica_to_its_end() -> None:
    lives = Lifetimes(story()[1])
    assert lives.gpu_seconds() == 2 * (4 + 7 + 1)
    states = [lives.gpu_seconds(*ends) for ends in (("ordered_s", "ready_s"), ("ready_s", "draining_s"))]
    assert [*states, lives.gpu_seconds("draining_s")] == [2 * (1 + 1), 2 * (2 + 6), 2 * 2]
    assert lives.gpus_by_pool((0.0, 2.0)).tolist() == [2 * 1.5]


def test_goodput_per_gpu_divides_by_the_mean_of_the_window() -> None:
    # 40 requests in 4 s on 2 GPUs for 4 s and 2 for 3 s: 3.5 on average, which cost 31.5 dollars an hour
    result = goodput(AttainmentJson(frac=1.0, n_met=40), window_of(0.0, 4.0), story()[1])
    assert result is not None
    assert result.facts() == pytest.approx({"per_s": 10.0, "per_gpu_s": 10 / 3.5, "per_usd": 10 / (31.5 / 3600)})


def test_a_series_covers_the_life_of_its_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """In intervals of 5 s: the first lives for 4 s of one, the second for 3 s of it and 3 s of the last."""
    monkeypatch.setattr("simserve.metrics.timeseries.MOST_INTERVALS", 2)
    result = series(*story(), (0.0, 8.0))
    assert [result.columns[name].tolist() for name in ("replica", "start_s", "end_s")] == [
        [0, 1, 1],
        [0, 2, 5],
        [4, 5, 8],
    ]
    assert grid(result, "busy_frac") == [[1 / 4, 0.0, 1 / 3]]
    assert grid(result, "prefill_tokens_per_s") == [[40 / 4, 0.0, 40 / 3]]
    assert grid(result, "running") == [[1 / 4, 0.0, 1 / 3]]
    assert grid(result, "queue_len") == [[3.0, 0.0, 2.0]]  # what waits, waits until its replica is gone, or the end
    use = utilization(result.window_work, window_of(0.0, 8.0), story()[1]).whole
    assert use.busy_frac == pytest.approx(2 / (4 + 6))


def test_the_series_of_a_pool_weighs_replicas_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simserve.metrics.timeseries.MOST_INTERVALS", 2)
    columns, _ = pool_series(series(*story()).columns, "serve", 10)
    assert [columns[name].tolist() for name in ("start_s", "end_s")] == [[0.0, 5.0], [5.0, 8.0]]
    assert columns["queue_len"].tolist() == pytest.approx([3 * 4 / 5, 2.0])
    assert columns["busy_frac"].tolist() == pytest.approx([1 / 7, 1 / 3])


def test_blocks_are_a_mean_over_the_run() -> None:
    _, facts = story()
    facts = RunFacts(**{**vars(facts), "peak_kv_blocks": (10, 10, 0)})
    assert kv_use(facts, None).blocks == 100 * (4 + 6) / 8


def test_the_page_says_when_a_replica_was_there() -> None:
    page = render(Results.from_run(*story(), "")).replace("\u00a0", " ")
    for label in (
        "0<small>serve, gone at 4.00 s",
        "1<small>serve, ready at 2.00 s<",
        "2<small>serve, never ready, gone",
    ):
        assert label in page
    assert "GPUs on average" in page


def test_facts_and_the_table_of_members_are_written_and_read() -> None:
    run, facts = story()
    assert facts_from_dict(facts_to_dict(facts), facts.wall_s).members == HALF
    table = Results.from_run(run, facts, "").members
    assert table["why"].tolist() == [
        "at the start",
        "ordered",
        "ordered; the link of pool d ran at 25% of its speed from 5 s on",
    ]
    assert table["gpus"].tolist() == [2, 2, 2]
    assert np.isnan(table["ready_s"][2]) and table["gone_s"][2] == 7.0
