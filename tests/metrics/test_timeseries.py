"""Time series and utilization."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.metrics.decode_rows import decode_rows
from simserve.metrics.itl import span_ends
from simserve.metrics.timeseries import MOST_INTERVALS, TimeSeries, interval_edges, time_series
from simserve.metrics.utilization import utilization
from simserve.tables.facts import RunFacts
from simserve.tables.run_tables import RunTables
from tests.effort import examples
from tests.metrics.stories import Life, S, Teller, in_pieces, pool_facts, random_story, run_facts, tables, window_of


def series(run: RunTables, facts: RunFacts, window_s: tuple[float, float] = (0.0, 1.0)) -> TimeSeries:
    return time_series(run, decode_rows(run.steps, run.spans), facts, window_s)


def grid(result: TimeSeries, name: str, n_replicas: int = 1) -> list[list[float]]:
    values: list[list[float]] = np.asarray(result.columns[name]).reshape(n_replicas, -1).tolist()
    return values


def one_busy_second_of_two(monkeypatch: pytest.MonkeyPatch) -> tuple[RunTables, RunFacts]:
    """Two intervals of 1 s: a prefill of 40 tokens in [0, 0.5), a decode step in [0.5, 1), nothing, until 2 s."""
    monkeypatch.setattr("simserve.metrics.timeseries.MOST_INTERVALS", 2)
    lives = [Life(0, 2)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(S // 2, prefill_tokens=40, joins=(0,), kv_blocks_used=0, kv_blocks_reserved=50, queue_len=2)
    teller.row(S // 2, kv_tokens=41, kv_blocks_used=50, queue_len=0)
    run = tables(lives, [teller])
    return run, run_facts(run, end_s=2.0)


def test_every_column_is_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    run, facts = one_busy_second_of_two(monkeypatch)
    result = series(run, facts)
    assert grid(result, "start_s") == [[0.0, 1.0]]
    assert grid(result, "end_s") == [[1.0, 2.0]]
    assert grid(result, "busy_frac") == [[1.0, 0.0]]
    assert grid(result, "prefill_tokens_per_s") == [[40.0, 0.0]]
    assert grid(result, "output_tokens_per_s") == [[2.0, 0.0]]
    assert grid(result, "running") == [[1.0, 0.0]]
    assert grid(result, "queue_len") == [[0.5, 0.0]]  # from 2 down to 0 in the first half second
    assert grid(result, "kv_frac") == [[0.5, 0.0]]
    # FLOP: 41 tokens at 2, 800 pairs of the prefill and 41 keys at 3, one decoded token's LM head at 5
    assert grid(result, "mfu") == [[pytest.approx((41 * 2 + 841 * 3 + 5) / 1000), 0.0]]
    # bytes: two steps of weights at 7, 41 keys read and 41 tokens written at 11
    assert grid(result, "mbu") == [[pytest.approx((2 * 7 + 82 * 11) / 2000), 0.0]]


def test_the_window_has_its_own_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    run, facts = one_busy_second_of_two(monkeypatch)
    result = series(run, facts, (0.5, 1.5))
    use = utilization(result.window_work, window_of(0.5, 1.5), facts).whole
    assert use.busy_frac == pytest.approx(0.5)
    assert use.mfu == pytest.approx((1 * 2 + 41 * 3 + 5) / 1000)
    assert use.mbu == pytest.approx((7 + 42 * 11) / 2000)


def test_a_window_without_length_has_no_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    run, facts = one_busy_second_of_two(monkeypatch)
    assert np.isnan(utilization(series(run, facts).window_work, window_of(0.0, np.nan), facts).whole.mfu)


def test_a_stretch_across_intervals_is_spread_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simserve.metrics.timeseries.MOST_INTERVALS", 4)
    lives = [Life(0, 41)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1, joins=(0,))
    teller.row(S // 10, 0, 40)
    run = tables(lives, [teller])
    result = series(run, run_facts(run, end_s=4.0))
    assert grid(result, "output_tokens_per_s")[0] == pytest.approx([11.0, 10.0, 10.0, 10.0])
    assert grid(result, "running")[0] == pytest.approx([1.0] * 4)


def test_each_replica_has_its_own_series() -> None:
    """Replica 0's numbers under replica 1's label would make it look busy."""
    lives = [Life(0, 1)]
    tellers = [Teller(lives, 0), Teller(lives, 1)]
    tellers[1].start(0)
    tellers[1].row(1 * S, prefill_tokens=30, joins=(0,))
    run = tables(lives, tellers)
    pools = (pool_facts("a"), pool_facts("b"))
    result = series(run, run_facts(run, pools=pools))
    busy = grid(result, "busy_frac", 2)
    assert sum(busy[0]) == 0.0
    assert np.mean(busy[1]) == pytest.approx(1.0)
    pool = result.columns["pool"]
    names = [pool.categories[code] for code in pool.codes]
    assert names == ["a"] * len(busy[0]) + ["b"] * len(busy[0])
    assert result.columns["replica"].tolist() == [0] * len(busy[0]) + [1] * len(busy[0])


@pytest.mark.parametrize("end_s", [1e-6, 0.037, 1.0, 59.9, 60.0, 902.4, 123456.7])
def test_intervals_are_few_round_and_cover_the_run(end_s: float) -> None:
    edges_s = interval_edges(end_s)
    assert (edges_s[0], edges_s[-1]) == (0.0, end_s)
    assert (np.diff(edges_s) > 0).all()
    assert MOST_INTERVALS / 3 < len(edges_s) - 1 <= MOST_INTERVALS + 1
    width = f"{edges_s[1]:.3e}"
    assert width[0] in "125"
    assert width[1:5] == ".000"


@pytest.mark.parametrize(
    ("end_s", "width_s"), [(600, 1), (601, 2), (1200, 2), (1201, 5), (3000, 5), (3001, 10), (6000, 10), (6001, 20)]
)
def test_six_hundred_intervals_are_the_most(end_s: float, width_s: float) -> None:
    assert interval_edges(end_s)[1] == width_s


def test_a_run_in_which_nothing_happens_has_one_quiet_interval() -> None:
    lives: list[Life] = []
    run = tables(lives, [Teller(lives)])
    result = series(run, run_facts(run))
    assert grid(result, "busy_frac") == [[0.0]]
    assert grid(result, "kv_frac") == [[0.0]]


@settings(max_examples=examples(40))
@given(st.integers(0, 10**9))
@in_pieces()
def test_amounts_add_up_to_those_of_the_run(seed: int) -> None:
    lives, run = random_story(seed)
    facts = run_facts(run, n_replicas=2)
    result = series(run, facts)
    lasts_s = result.columns["end_s"] - result.columns["start_s"]

    def amount(name: str) -> Any:
        return float((result.columns[name] * lasts_s).sum())

    steps = run.steps
    assert amount("busy_frac") == pytest.approx((steps["end_s"] - steps["start_s"]).sum(), abs=1e-9)
    assert amount("prefill_tokens_per_s") == pytest.approx(steps["prefill_tokens"].sum(), abs=1e-9)
    assert amount("output_tokens_per_s") == pytest.approx(sum(len(life.token_ps) for life in lives), abs=1e-9)


@settings(max_examples=examples(40))
@given(st.integers(0, 10**9))
@in_pieces()
def test_running_is_the_time_between_the_start_of_prefill_and_the_last_token(seed: int) -> None:
    lives, run = random_story(seed)
    facts = run_facts(run, n_replicas=2)
    result = series(run, facts)
    lasts_s = result.columns["end_s"] - result.columns["start_s"]
    begun = [(life.scheduled_ps, life.token_ps[0]) for life in lives if life.scheduled_ps is not None]
    first_prefills_s = sum((first_ps - scheduled_ps) / S for scheduled_ps, first_ps in begun)
    rows = decode_rows(run.steps, run.spans)
    expected_s = first_prefills_s + float((span_ends(rows, rows.by_span(run.spans)) - run.spans["join_s"]).sum())
    assert float((result.columns["running"] * lasts_s).sum()) == pytest.approx(expected_s, abs=1e-9)


def test_who_waits_when_a_replica_stops_waits_to_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simserve.metrics.timeseries.MOST_INTERVALS", 2)
    lives = [Life(0, 1), Life(0, 1)]
    tellers = [Teller(lives, 0), Teller(lives, 1)]
    for request, teller in enumerate(tellers):
        teller.start(request)
        teller.row(1 * S, joins=(request,), queue_len=3 - 3 * request)
    run = tables(lives, tellers)
    result = series(run, run_facts(run, n_replicas=2, end_s=2.0))
    assert grid(result, "queue_len", 2) == [[3.0, 3.0], [0.0, 0.0]]


def test_contexts_grow_within_a_stretch() -> None:
    """Three steps of one request with 10, 11 and 12 keys: 33 keys at 3 FLOP, 3 tokens at 2 and at the head's 5."""
    lives = [Life(0, 4)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(1 * S, n=3, kv_tokens=10)
    run = tables(lives, [teller])
    facts = run_facts(run)
    use = utilization(series(run, facts, (1.0, 4.0)).window_work, window_of(1.0, 4.0), facts).whole
    assert use.mfu == pytest.approx((33 * 3 + 3 * 2 + 3 * 5) / 1000 / 3)
    assert use.mbu == pytest.approx((3 * 7 + (33 + 3) * 11) / 2000 / 3)
