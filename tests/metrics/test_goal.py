"""Goals as people say them."""

import json
from pathlib import Path

import pytest

from simserve.errors import SimserveError
from simserve.metrics.goal import GOAL_FRAC, goal_from
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

COMMANDS = {
    "capacity": ("--precision", 0.5),
    "plan": ("--tensor", 1, "--max-gpus", 1),
    "sweep": ("--vary", "cluster.pools.0.replicas=1"),
    "check": ("--update", "--tolerance", 0.3),
}


@pytest.mark.parametrize(
    ("text", "frac"),
    [("0.99", 0.99), (".9", 0.9), ("p90", 0.9), ("P99", 0.99), ("p99.9", 0.999), ("99.9%", 0.999), ("99%", 0.99)],
)
def test_a_goal_is_a_share_or_a_percentile(text: str, frac: float) -> None:
    assert goal_from(text) == frac


@pytest.mark.parametrize("text", ["", "99", "1", "0", "p100", "p0", "best", "-0.5", "p", "0.99999", "nan", "1e-1"])
def test_what_is_neither_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(
        SimserveError, match=r"--goal: must be a share from 0.01 to 0.9999, or a percentile .*; try p99"
    ):
        goal_from(text)


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
    tight = ["--set", "slo.ttft_s=0.03"]  # so that some rate misses it, and soon
    tight += ["--set", "workload.n_requests=10"] if command == "capacity" else []
    outcome = invoke(command, write_scenario(tmp_path), *tight, *COMMANDS[command], *place, *text, "--json")
    assert json.loads(outcome.out)["goal_frac"] == frac


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_what_is_no_goal(tmp_path: Path, command: str) -> None:
    outcome = invoke(command, write_scenario(tmp_path), "--goal", "99")
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: --goal: must be a share from 0.01 to 0.9999, or a percentile")
