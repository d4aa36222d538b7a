"""Gaps between tokens: pooled percentiles and largest gaps, against writing every token out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import InvariantError
from simserve.metrics.decode_rows import decode_rows
from simserve.metrics.itl import largest_gaps, pooled_itl, span_ends
from simserve.metrics.stats import PERCENTILES, Distribution
from simserve.tables import scratch
from simserve.tables.columns import Flags
from simserve.tables.run_tables import RunTables
from tests.effort import examples
from tests.metrics.stories import Life, S, Teller, in_pieces, random_story, tables


def pooled(run: RunTables, counts: Flags, n_whole_gaps: int = 0) -> Distribution:
    return pooled_itl(decode_rows(run.steps, run.spans), run.spans, counts, n_whole_gaps)


def largest(run: RunTables, lives: list[Life]) -> list[float]:
    has_finished = run.requests["status"].is_("finished")
    nobody = np.zeros(len(lives), np.bool_)
    rows = decode_rows(run.steps, run.spans)
    result: list[float] = largest_gaps(rows, run.spans, has_finished, nobody, run.requests["output_tokens"]).tolist()
    return result


def test_gaps_are_those_between_token_and_token_and_the_first_begins_at_the_join() -> None:
    lives = [Life(0, 4), Life(0, 3)]
    teller = Teller(lives)
    teller.start(0, 1)
    teller.row(1 * S, joins=(0,))  # token at 1
    teller.row(2 * S)  # token of 0 at 3
    teller.row(4 * S, joins=(1,), decodes=False)  # a prefill alone: 0 waits, 1 has its first token at 7
    teller.row(1 * S, 1 * S, 2)  # steps of 1 s and 2 s: tokens of both at 8 and 10
    run = tables(lives, [teller])
    assert [life.gaps_s for life in lives] == [[2.0, 5.0, 2.0], [1.0, 2.0]]
    result = pooled(run, np.array([True, True]))
    assert result.n == 5
    assert result.mean == pytest.approx(12 / 5)
    assert result.std == pytest.approx(np.std([2, 5, 2, 1, 2]))
    assert result.percentiles[50.0] == 2.0
    assert result.highest == 5.0
    assert largest(run, lives) == [5.0, 2.0]


def test_steps_that_become_shorter_have_their_largest_gap_in_the_second() -> None:
    lives = [Life(0, 4)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(4 * S, -1 * S, 3)
    run = tables(lives, [teller])
    assert lives[0].gaps_s == [4.0, 3.0, 2.0]
    rows = decode_rows(run.steps, run.spans)
    run.spans["join_s"] += 2.0  # it came two seconds into the first step
    has_finished = run.requests["status"].is_("finished")
    nobody = np.zeros(1, np.bool_)
    assert largest_gaps(rows, run.spans, has_finished, nobody, run.requests["output_tokens"]).tolist() == [3.0]


def test_a_preemption_makes_one_long_gap() -> None:
    lives = [Life(0, 4)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(1 * S)
    teller.preempt(0)
    teller.pause(3 * S)
    teller.row(5 * S, joins=(0,))  # computed again: the next token comes at its end
    teller.row(1 * S)
    run = tables(lives, [teller])
    assert lives[0].gaps_s == [1.0, 8.0, 1.0]
    assert pooled(run, np.array([True])).highest == 8.0
    assert largest(run, lives) == [8.0]


def test_a_preemption_before_the_first_decode_step_makes_a_gap_too() -> None:
    lives = [Life(0, 2)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.preempt(0)
    teller.row(4 * S, joins=(0,))
    run = tables(lives, [teller])
    assert largest(run, lives) == [4.0]
    assert pooled(run, np.array([True])).n == 1


def test_one_token_has_no_gap_and_an_unfinished_request_no_largest_one() -> None:
    lives = [Life(0, 1), Life(0, 9)]
    teller = Teller(lives)
    teller.start(0, 1)
    teller.row(1 * S, joins=(0, 1))
    teller.row(1 * S)
    assert np.isnan(largest(tables(lives, [teller]), lives)).all()


def test_answers_that_leave_whole_have_gaps_of_zero() -> None:
    lives = [Life(0, 3)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(1 * S, n=2)
    run = tables(lives, [teller], whole=True)
    result = pooled(run, np.array([False]), n_whole_gaps=2)
    assert (result.n, result.mean, result.highest) == (2, 0.0, 0.0)
    rows = decode_rows(run.steps, run.spans)
    finished = run.requests["status"].is_("finished")
    assert largest_gaps(rows, run.spans, finished, finished, run.requests["output_tokens"]).tolist() == [0.0]


def test_without_any_token_there_is_no_distribution() -> None:
    run = tables([Life(0, 3)], [Teller([Life(0, 3)])])
    result = pooled(run, np.array([True]))
    assert result.n == 0
    assert np.isnan(result.mean)


def test_requests_that_do_not_count_leave_no_gap_behind() -> None:
    lives = [Life(0, 3), Life(0, 3)]
    teller = Teller(lives)
    teller.start(0, 1)
    teller.row(1 * S, joins=(0, 1))
    teller.row(1 * S, n=2)
    assert pooled(tables(lives, [teller]), np.array([False, True])).n == 2


def test_replicas_keep_their_own_steps() -> None:
    """Replica 0's steps under replica 1's label would give request 1 gaps of 1 s."""
    lives = [Life(0, 3), Life(0, 3)]
    tellers = [Teller(lives, 0), Teller(lives, 1)]
    for request, (teller, step_s) in enumerate(zip(tellers, (1, 10), strict=True)):
        teller.start(request)
        teller.row(step_s * S, joins=(request,))
        teller.row(step_s * S, n=2)
    run = tables(lives, tellers)
    assert largest(run, lives) == [1.0, 10.0]
    assert pooled(run, np.array([False, True])).percentiles[50.0] == 10.0


def test_a_span_that_matches_no_row_is_our_own_mistake() -> None:
    lives = [Life(0, 5)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(1 * S, n=4)
    run = tables(lives, [teller])
    run.spans["last_step"] -= 1
    with pytest.raises(InvariantError, match="every span begins and ends with a row"):
        decode_rows(run.steps, run.spans)
    run.spans["last_step"] += 100
    with pytest.raises(InvariantError, match="every span lies within"):
        decode_rows(run.steps, run.spans)


@settings(max_examples=examples(60))
@given(st.integers(0, 10**9), st.booleans())
def test_pooled_gaps_are_those_of_all_tokens_written_out(seed: int, narrow: bool) -> None:
    lives, run = random_story(seed)
    counts = np.array([life.status == "finished" and i % 5 != 0 for i, life in enumerate(lives)])
    gaps_s = [gap for life, counted in zip(lives, counts, strict=True) if counted for gap in life.gaps_s]
    with in_pieces(3 if narrow else scratch.PIECE_ROWS):  # every branch of the search, on a few numbers
        result = pooled(run, counts)
    assert result.n == len(gaps_s)
    if gaps_s:
        assert result.mean == pytest.approx(np.mean(gaps_s), rel=1e-12)
        assert result.std == pytest.approx(np.std(gaps_s), rel=1e-9, abs=1e-12)
        assert result.highest == max(gaps_s)
        assert list(result.percentiles.values()) == np.percentile(gaps_s, PERCENTILES).tolist()


@settings(max_examples=examples(60))
@given(st.integers(0, 10**9))
@in_pieces()
def test_largest_gaps_and_ends_of_spans_are_those_of_all_tokens_written_out(seed: int) -> None:
    lives, run = random_story(seed)
    expected = [max(life.gaps_s) if life.status == "finished" and life.gaps_s else np.nan for life in lives]
    np.testing.assert_array_equal(largest(run, lives), expected)
    rows = decode_rows(run.steps, run.spans)
    ends_s = span_ends(rows, rows.by_span(run.spans))
    last_s = np.full(len(lives), -1.0)
    np.maximum.at(last_s, run.spans["request_id"], ends_s)
    assert last_s.tolist() == [life.token_ps[-1] / S if life.token_ps else -1.0 for life in lives]
