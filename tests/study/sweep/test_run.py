"""A run of a sweep is a row that a journal gives back, or that is not taken for one."""

from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.sweep_runs import read_run
from simserve.scenario import load_scenario
from simserve.study.sweep.run import failed_row, run_row, task_of
from tests.cli.scenarios import write_scenario

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
OTHERS: dict[str, tuple[Any, ...]] = {
    "seed": (None, 0.5),
    "is_final": (False,),
    "goodput.per_s": (1e300, [1.0]),
    "n_gpus": (0, 0.5, True, 1e300),
    "usd_per_hour": (None, -1),
    "outcomes": (None, [1], [[]]),
    "load": (None, {}, []),
}
"""Values of other types, or out of range."""


def is_row(row: dict[str, Any]) -> bool:
    try:
        return bool(read_run(row))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("poisson", "n_requests=60"),
        ("conversations", "n_requests=60"),
        ("closed_loop", "n_requests=160"),
        ("classes", "duration_s=120"),
        ("overload", "duration_s=8"),
        ("agents", "duration_s=8"),
    ],
)
def test_a_row_of_every_kind_of_load_comes_back_from_json_as_one(name: str, ends: str) -> None:
    warm_up = [] if name == "closed_loop" else ["measure.warmup_s=0"]
    scenario = load_scenario(SCENARIOS / f"{name}.yaml", overrides=[f"workload.{ends}", *warm_up])
    row = run_row(task_of(scenario, 3))
    assert row.status == "finished", row
    assert read_run(row.facts()) == row


def test_a_final_failure_is_a_row_and_one_that_is_repeated_is_not() -> None:
    assert is_row(failed_row(3, "it does not fit").facts())
    assert not is_row(failed_row(3, "out of memory", is_final=False).facts())


def test_a_row_that_lacks_a_key_or_has_another_type_in_it_is_none(tmp_path: Path) -> None:
    row = run_row(task_of(load_scenario(write_scenario(tmp_path)), 3)).facts()
    (outcome,) = row["outcomes"]
    assert is_row(row)
    for key in row:
        assert not is_row({name: value for name, value in row.items() if name != key}), key
        assert not is_row(row | {key: {"a": "x"}}), key
        assert not is_row(row | {key: "x"}), key
    for key, values in OTHERS.items():
        assert not any(is_row(row | {key: value}) for value in values), key
    for key in outcome:
        assert not is_row(row | {"outcomes": [outcome | {key: [[0.5]]}]}), key
