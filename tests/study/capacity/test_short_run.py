"""A capacity that growth ends says so where its runs are little more than their start."""

from pathlib import Path

import pytest

from simserve import load_scenario
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study
from tests.cli.scenarios import write_scenario
from tests.study.served import runs_at


@pytest.mark.parametrize(
    ("saturates_at", "window_s", "is_said"), [(3.0, 6.0, True), (3.0, 8.0, False), (99.0, 6.0, False)]
)
def test_runs_of_fewer_than_ten_lives_are_too_short_to_tell_growth(
    tmp_path: Path, saturates_at: float, window_s: float, is_said: bool
) -> None:
    """A request takes 0.1 s times 1 + 2 loads: at the answer, near 3 loads, 0.7 s."""
    runs = runs_at({"ttft_s": lambda load: 0.0 if load < 3.0 else 0.5}, saturates_at=saturates_at, window_s=window_s)
    question = CapacityQuestion(load_scenario(write_scenario(tmp_path)), 0.99, 0.05)
    text = study(question, runs).answer.warnings
    assert any("their start-up may look like a queue that only grows" in each for each in text) == is_said
