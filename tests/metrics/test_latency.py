"""Latencies of each request, from its instants."""

import numpy as np

from simserve.metrics.stats import latency_columns
from tests.metrics.stories import Life, S, Teller, tables


def test_latencies_are_differences_of_instants() -> None:
    lives = [Life(1 * S, 3)]
    teller = Teller(lives, now_ps=2 * S)
    teller.start(0)
    teller.row(3 * S, joins=(0,))
    teller.row(1 * S, n=2)
    result = latency_columns(tables(lives, [teller]).requests)
    assert {name: column.tolist() for name, column in result.items()} == {
        "queue_s": [1.0],
        "ttft_s": [4.0],
        "tpot_s": [1.0],
        "e2e_s": [6.0],
    }


def test_one_output_token_has_no_tpot() -> None:
    lives = [Life(0, 1)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    assert np.isnan(latency_columns(tables(lives, [teller]).requests)["tpot_s"]).all()


def test_what_never_came_has_no_latency() -> None:
    lives = [Life(0, 5, status="rejected"), Life(0, 5)]
    teller = Teller(lives)
    teller.start(1)
    teller.row(1 * S, joins=(1,))
    result = latency_columns(tables(lives, [teller]).requests)
    assert np.isnan([column[0] for column in result.values()]).all()
    assert result["ttft_s"][1] == 1.0
    assert np.isnan([result["tpot_s"][1], result["e2e_s"][1]]).all()


def test_a_preemption_does_not_move_the_first_token() -> None:
    lives = [Life(0, 3)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.preempt(0)
    teller.row(5 * S, joins=(0,))
    teller.row(1 * S)
    assert latency_columns(tables(lives, [teller]).requests)["ttft_s"].tolist() == [1.0]


def test_an_answer_that_leaves_whole_has_a_tpot_of_zero() -> None:
    lives = [Life(0, 3)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(1 * S, n=2)
    result = latency_columns(tables(lives, [teller], whole=True).requests)
    assert (result["ttft_s"][0], result["tpot_s"][0], result["e2e_s"][0]) == (3.0, 0.0, 3.0)
