"""Every command takes a goal as people say it."""

import json
from pathlib import Path

import pytest

from simserve.metrics.goal import GOAL_FRAC
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

COMMANDS = {
    "capacity": ("--set", "slo.ttft_s=0.001"),  # no rate meets it, so that the search ends soon
    "plan": ("--tensor", 1, "--max-gpus", 1),
    "sweep": ("--vary", "cluster.pools.0.replicas=1"),
    "check": ("--update", "--tolerance", 0.3),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("text", "frac"),
    [
        ((), GOAL_FRAC),
        (("--goal", "p90"), 0.9),
        pytest.param(("--goal", "90%"), 0.9, marks=pytest.mark.thorough),
    ],
)
def test_every_command_takes_a_goal_as_people_say_it(
    tmp_path: Path, command: str, text: tuple[str, ...], frac: float
) -> None:
    place = ("--baseline", tmp_path / "base.json") if command == "check" else ("--out", tmp_path / "out")
    scenario = write_scenario(tmp_path, slo={"ttft_s": 0.03})  # so tight that some rate misses it, and soon
    outcome = invoke(command, scenario, *COMMANDS[command], *place, *text, "--json")
    assert json.loads(outcome.out)["goal_frac"] == frac


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_what_is_no_goal(tmp_path: Path, command: str) -> None:
    outcome = invoke(command, write_scenario(tmp_path), "--goal", "99")
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: --goal: must be a share from 0.01 to 0.9999, or a percentile")
