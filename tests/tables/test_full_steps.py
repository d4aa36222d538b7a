"""Step runs expanded into one row per step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.tables.run_tables import full_steps
from tests.effort import examples
from tests.metrics.stories import Life, S, Teller, random_story, tables


def test_a_stretch_becomes_its_steps() -> None:
    lives = [Life(0, 4)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(5 * S, prefill_tokens=8, joins=(0,))
    teller.row(1 * S, 1 * S, 3, kv_tokens=9, queue_len=2, blocked_by="seats")
    full = full_steps(tables(lives, [teller]).steps)
    assert full["step"].tolist() == [0, 1, 2, 3]
    assert full["decode_step"].tolist() == [0, 0, 1, 2]
    assert full["n_steps"].tolist() == [1, 1, 1, 1]
    assert full["start_s"].tolist() == [0.0, 5.0, 6.0, 8.0]
    assert full["end_s"].tolist() == [5.0, 6.0, 8.0, 11.0]
    assert full["first_step_s"].tolist() == full["last_step_s"].tolist() == [5.0, 1.0, 2.0, 3.0]
    assert full["prefill_tokens"].tolist() == [8, 0, 0, 0]
    assert full["kv_tokens"].tolist() == [0, 9, 10, 11]
    assert full["queue_len"].tolist() == [0, 2, 2, 2]
    assert [full["blocked_by"].categories[code] for code in full["blocked_by"].codes] == ["", *["seats"] * 3]


@settings(max_examples=examples(40))
@given(st.integers(0, 10**9))
def test_steps_end_where_their_tokens_came_to_the_last_bit(seed: int) -> None:
    lives, run = random_story(seed)
    full = full_steps(run.steps)
    ends_s = set(full["end_s"].tolist())
    assert {at_ps / S for life in lives for at_ps in life.token_ps} <= ends_s
    assert full["n_steps"].sum() == run.steps["n_steps"].sum()
    same_replica = full["replica"][1:] == full["replica"][:-1]
    assert (full["step"][1:] - full["step"][:-1])[same_replica].tolist() == [1] * int(same_replica.sum())
    assert (full["start_s"][1:] >= full["end_s"][:-1])[same_replica].all()


def test_steps_late_in_a_long_run_still_meet_end_to_start() -> None:
    """After a day a float64 of seconds is 15 ps coarse."""
    lives = [Life(0, 10_000)]
    teller = Teller(lives, now_ps=100_003 * S + 1)
    teller.start(0)
    teller.row(1_234_567, joins=(0,))
    for i in range(300):
        teller.row(7_000_000_003 + i, 1_009, 1 + i % 7)
    run = tables(lives, [teller])
    full = full_steps(run.steps)
    assert full["start_s"][1:].tolist() == full["end_s"][:-1].tolist()
    assert set(run.steps["end_s"].tolist()) <= set(full["end_s"].tolist())
    assert np.diff(full["end_s"]) == pytest.approx(full["first_step_s"][1:], abs=1e-10)


def test_what_stays_the_same_keeps_its_type() -> None:
    _, run = random_story(1)
    full = full_steps(run.steps)
    for name, column in run.steps.items():
        if isinstance(column, np.ndarray):
            assert full[name].dtype == column.dtype, name
