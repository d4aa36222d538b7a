"""The GitHub Action and the examples of docs/check.md are valid, and their shell runs."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
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


def step(name: str = "simserve check") -> dict[str, Any]:
    """Return a step, by default the one that runs the gate."""
    result: dict[str, Any] = next(each for each in action()["runs"]["steps"] if each.get("name") == name)
    return result


GATE = """#!/bin/bash
printf '%s\\n' "$@" > arguments
echo "$RESULT"
exit "$CODE"
"""
"""A command in place of simserve, which keeps its arguments and ends as the test wants."""


def run_step(folder: Path, **inputs: str) -> tuple[int, str, str]:
    """Return exit code, outputs and job summary of the gate, with the given inputs."""
    defaults = {key: value.get("default", "") for key, value in action()["inputs"].items()}
    return run_as_on_github(folder, step(), {f"inputs.{key}": value for key, value in (defaults | inputs).items()})


def run_as_on_github(folder: Path, step: dict[str, Any], given: Mapping[str, str]) -> tuple[int, str, str]:
    """Return exit code, outputs and job summary of a step: `bash -e -o pipefail`, with what its `${{ }}` stand for."""
    values = {key: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda m: given[m[1]], text) for key, text in step["env"].items()}
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **values, **{name: str(file) for name, file in files.items()}, "PATH": path}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
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


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Put a command in place of simserve that prints a result and ends with an exit code."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "simserve").write_text(GATE)
    (tmp_path / "bin" / "simserve").chmod(0o755)

    def ends_with(exit_code: int, result: str) -> None:
        monkeypatch.setenv("CODE", str(exit_code))
        monkeypatch.setenv("RESULT", result)

    return ends_with


@pytest.mark.parametrize(
    ("exit_code", "result", "ends_with", "said"),
    [
        (0, '{"passes": true}', 0, "passes=true\n"),
        (1, '{"passes": false}', 1, "passes=false\n"),
        (0, '{"passes": false}', 2, ""),
        (0, "", 2, ""),
        (0, "Usage: simserve check", 2, ""),
        (1, "", 2, ""),
        (2, "", 2, ""),
        (139, '{"passes": true}', 139, ""),
    ],
)
def test_the_verdict_is_the_gates_own(
    exit_code: int, result: str, ends_with: int, said: str, gate: Callable[[int, str], None], tmp_path: Path
) -> None:
    gate(exit_code, result)
    assert run_step(tmp_path, scenario="a.yaml", baseline="b.json")[:2] == (ends_with, said)


def test_arguments_are_those_of_all_lines_and_quotes_group(gate: Callable[[int, str], None], tmp_path: Path) -> None:
    gate(0, '{"passes": true}')
    given = "--goal 0.9\n--set \"workload.lengths={kind: fixed, prompt_tokens: 3}\" '--set=a=$(touch hacked) *'\n"
    run_step(tmp_path, scenario="--help", baseline="b.json", arguments=given)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[-2:] == ["--", "--help"]
    assert arguments[-7:-2] == [
        *("--goal", "0.9", "--set", "workload.lengths={kind: fixed, prompt_tokens: 3}"),
        "--set=a=$(touch hacked) *",
    ]
    assert not (tmp_path / "hacked").exists()


def test_what_it_installs_is_pinned() -> None:
    install = step("Install simserve")["run"]
    assert '--constraint "$SIMSERVE/.ci/constraints.txt"' in install
    pinned = {line.partition("==")[0].lower() for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines()}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split("[<>=]", each)[0].replace("_", "-") for each in needed} <= pinned
    assert all(re.search("@[0-9a-f]{40}$", each["uses"]) for each in action()["runs"]["steps"] if "uses" in each)


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
