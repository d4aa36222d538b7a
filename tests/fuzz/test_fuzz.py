"""Some mutants of every kind of input; `python -m tests.fuzz` tries more, and other ones."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.effort import is_thorough
from tests.fuzz.configs import KEYS, config_of
from tests.fuzz.subjects import one_case, room

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


@pytest.mark.parametrize("family", KEYS)
def test_a_config_is_simulated_before_it_is_spoilt(family: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps(config_of(family)))
    scenario = write_scenario(tmp_path, **room("b300-sxm", 1))
    outcome = invoke("explain", scenario, "--set", f"model={tmp_path / 'file.json'}")
    assert outcome.exit_code == 0, outcome.err
