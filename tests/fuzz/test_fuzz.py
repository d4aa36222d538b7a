"""Some mutants of every kind of input; `python -m tests.fuzz` tries more, and other ones."""

import tempfile
from pathlib import Path

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.effort import is_thorough
from tests.fuzz.subjects import one_case

N_QUICK, N_THOROUGH = 100, 2_000


@settings(
    max_examples=N_THOROUGH if is_thorough() else N_QUICK,
    derandomize=True,
    phases=[Phase.generate],  # a seed has nothing smaller
)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_mutant_breaks_a_rule(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one_case(seed, Path(folder))
