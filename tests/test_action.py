"""The GitHub Action and the examples of docs/check.md are valid, and their shell runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.invoke import invoke
from tests.cli.test_check import TOLERANCE, scenario

ROOT = Path(__file__).resolve().parents[1]


def action() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return content


def step() -> dict[str, Any]:
    """Return the step that runs the gate."""
    result: dict[str, Any] = next(each for each in action()["runs"]["steps"] if each.get("id") == "check")
    return result


def run_step(folder: Path, **inputs: str) -> tuple[int, str, str]:
    """Return exit code, outputs and job summary, run as on GitHub: `bash -e -o pipefail` with the given inputs."""
    defaults = {key: value.get("default", "") for key, value in action()["inputs"].items()}
    given = defaults | inputs
    values = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], text)
        for name, text in step()["env"].items()
    }
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **values, **{name: str(file) for name, file in files.items()}, "PATH": path}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step()["run"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    return done.returncode, *(file.read_text() for file in files.values())  # type: ignore[return-value]


def test_the_action_has_what_a_composite_action_needs() -> None:
    content = action()
    assert content["runs"]["using"] == "composite"
    assert content["inputs"]["scenario"]["required"] is True
    assert all("uses" in each or each["shell"] == "bash" for each in content["runs"]["steps"])
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(content["inputs"])
    assert not re.search(r"\$\{\{", step()["run"])  # user input reaches the shell as variables, never as code


@pytest.mark.thorough
def test_its_shell_passes_and_fails_with_the_gate(tmp_path: Path) -> None:
    file = scenario(tmp_path)
    assert invoke("check", file, "--baseline", tmp_path / "base.json", "--update", *TOLERANCE).exit_code == 0
    inputs = {"scenario": "tiny.yaml", "baseline": "base.json", "tolerance": "0.15"}
    exit_code, output, summary = run_step(tmp_path, **inputs)
    assert (exit_code, output) == (0, "passes=true\n")
    assert summary.startswith("### simserve check: tiny passes\n")
    assert (tmp_path / "simserve-check.xml").is_file()
    worse = "--set cluster.pools.0.scheduler.max_num_seqs=8"
    exit_code, output, summary = run_step(tmp_path, **inputs, arguments=worse)
    assert (exit_code, output) == (1, "passes=false\n")
    assert summary.startswith("### simserve check: tiny fails\n")
    exit_code, output, summary = run_step(tmp_path, **inputs | {"baseline": "none.json"})
    assert (exit_code, output, summary) == (2, "", "")


@pytest.mark.parametrize(
    "block", re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "check.md").read_text(), re.M | re.S)
)
def test_the_examples_are_valid_and_say_what_there_is(block: str) -> None:
    content = yaml.safe_load(block)
    if "jobs" in content:
        used = content["jobs"]["check"]["steps"][-1]
        assert re.fullmatch(r"OWNER/simserve@\w+", used["uses"])
        assert used["with"].keys() <= action()["inputs"].keys()
    else:
        script = content["p99-goodput"]["script"]
        assert script[1].startswith("simserve check ")
        names = re.findall(r"--[a-z]+", script[1])
        sentence = invoke("check", "--help").out
        assert names and all(name in sentence for name in names)


def test_the_project_gates_itself() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "simserve check scenarios/chat_burst.yaml" in ci
    assert (ROOT / "scenarios" / "baselines" / "chat_burst.json").is_file()
