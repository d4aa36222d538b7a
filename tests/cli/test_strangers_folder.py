"""A folder of a stranger, as the root of a pull request: its modules do not run, whatever they are called."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.test_check import TOLERANCE, scenario
from tests.composite import action, defaults, run_as_on_github, step

SIMSERVE = Path(sys.executable).parent / "simserve"

RECORDER = """
import sys


def record(event, arguments):
    if event == "import":
        with open({file!r}, "a") as file:
            file.write(arguments[0].partition(".")[0] + "\\n")


sys.addaudithook(record)
"""
"""Writes the name of each module that an interpreter asks for, whether it exists or not."""

READ_ONLY = {
    "check": ("g.yaml", "--baseline", "b.json"),
    "explain": ("g.yaml",),
    "validate": ("log.csv", "--scenario", "g.yaml"),
}
"""Commands that import no module of the scenario's folder, in the folder that `place` makes."""

RUNNING = {
    "run": ("g.yaml", "--replications", "3", "--no-report"),
    "sweep": ("g.yaml", "--vary", "cluster.pools.0.replicas=1,2"),
    "compare": ("g.yaml", "h.yaml", "--jobs", "2"),
    "capacity": ("g.yaml", "--precision", "0.2"),
    "plan": ("g.yaml", "--max-gpus", "2"),
    "trace": ("info", "log.csv"),
    "catalog": ("routers", "least_kv"),
    "schema": (),
}
"""Commands that would import what the scenario names, and commands that read none."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scenarios, a log and a baseline; its file `asked` names the modules that a command asks for."""
    folder, recorder = tmp_path_factory.mktemp("stranger"), tmp_path_factory.mktemp("recorder")
    scenario(folder).rename(folder / "g.yaml")
    scenario(folder, seed=4).rename(folder / "h.yaml")
    (folder / "log.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n0,64,8,0.02,0.1\n1,64,8,0.02,0.1\n"
    )
    (recorder / "sitecustomize.py").write_text(RECORDER.format(file=str(folder / "asked")))
    baseline = "check", "g.yaml", "--baseline", "b.json", "--update", *map(str, TOLERANCE)
    command(folder, *baseline, PYTHONPATH=str(recorder))
    return folder


@pytest.fixture(scope="module")
def names(place: Path) -> set[str]:
    """All names that a command with workers asks for, those of optional packages too, and all that exist."""
    asked = set((place / "asked").read_text().split())
    assert {"joblib", "numpy", "psutil"} <= asked, "workers and optional packages are asked for"
    return {name for name in {*asked, *sys.stdlib_module_names, *_top_level(), "pip"} if name.isidentifier()}


def _top_level() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def command(folder: Path, *arguments: str, **environment: str) -> None:
    """Run the program as installed, with a worker a core."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("LOKY_MAX_CPU_COUNT", "PYTHONPATH")}
    line = [str(SIMSERVE), *arguments]
    done = subprocess.run(line, cwd=folder, env=inherited | environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr


def set_traps(folder: Path, names: set[str]) -> Path:
    """Write a package of each name, which leaves a mark when it is imported or run; return where."""
    mark = folder / "PWNED"
    for name in names:
        package = folder / name
        package.mkdir(exist_ok=True)
        for file in ("__init__.py", "__main__.py"):
            (package / file).write_text(f"open({str(mark)!r}, 'a').write({name!r} + ' ')\n")
    return mark


def copy_of(place: Path, folder: Path) -> Path:
    for file in place.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("name", "arguments"),
    [*READ_ONLY.items(), *(pytest.param(*each, marks=pytest.mark.thorough) for each in RUNNING.items())],
)
def test_no_module_of_the_current_directory_runs(
    name: str, arguments: tuple[str, ...], place: Path, names: set[str], tmp_path: Path
) -> None:
    mark = set_traps(copy_of(place, tmp_path), names)
    command(tmp_path, name, *arguments)
    assert not mark.exists(), mark.read_text()


def test_a_trap_that_is_run_leaves_its_mark(names: set[str], tmp_path: Path) -> None:
    mark = set_traps(tmp_path, {"joblib", "pip"})
    assert {"joblib", "pip"} < names
    subprocess.run([sys.executable, "-m", "pip"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-c", "import joblib"], cwd=tmp_path, check=True)
    assert mark.read_text().split() == ["pip", "pip", "joblib"]


STEPS = {
    "Name the caches": (0, "wheels="),
    "Build simserve": (1, ""),  # there is nothing to build or install, so that pip ends at once
    "Install simserve": (1, ""),
    "simserve check": (0, "passes=true\n"),
    "Comment on the pull request": (0, ""),
}
"""Steps of the action with a shell: how each ends, and with which output."""


@pytest.mark.parametrize("name", STEPS)
def test_no_module_of_the_checkout_runs_in_the_action(name: str, names: set[str], tmp_path: Path) -> None:
    mark = set_traps(tmp_path, names)
    for program, text in (("simserve", "echo '{\"passes\": true}'"), ("gh", "echo '[]'")):
        file = tmp_path / "bin" / program
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    (tmp_path / "bin" / "comment.md").write_text("marker\n")
    given = {f"inputs.{key}": value for key, value in defaults().items()} | {"inputs.arguments": "--goal 0.9"}
    given |= {"inputs.scenario": "g.yaml", "github.event.pull_request.number": "7"}
    given |= {"steps.names.outputs.wheels": str(tmp_path / "bin"), "steps.check.outputs.report": str(tmp_path / "bin")}
    step_of_it = step(name)
    if name == "Build simserve":
        step_of_it["run"] = step_of_it["run"].replace("${wanted:-$GITHUB_ACTION_PATH}", str(tmp_path / "bin"))
    ended = run_as_on_github(tmp_path, step_of_it, given)
    assert not mark.exists(), mark.read_text()
    assert ended.exit_code == STEPS[name][0], ended.log
    assert ended.output.startswith(STEPS[name][1])


def test_each_interpreter_of_the_action_is_isolated() -> None:
    shells = [each for each in action()["runs"]["steps"] if "run" in each]
    assert [each["name"] for each in shells] == list(STEPS)
    used: list[Mapping[str, str]] = [
        match.groupdict() for each in shells for match in re.finditer(r"\bpython(?P<flag> \S+)", each["run"])
    ]
    assert len(used) == len(shells)
    assert {each["flag"] for each in used} == {" -I"}
