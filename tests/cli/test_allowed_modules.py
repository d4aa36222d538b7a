"""Modules that a scenario names: which command imports them, and that none decides an exit code."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import simserve.allowed_modules as rule
from simserve import load_scenario
from simserve.errors import ScenarioError
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario

ROUTER = """
from pathlib import Path

from simserve.routers.round_robin import RoundRobin

Path({proof!r}).touch()
{line}


class Mine(RoundRobin):
    pass
"""


@pytest.fixture
def proof(tmp_path: Path) -> Iterator[Path]:
    """A file that is there once the module of the scenario's folder was imported; no folder becomes a path."""
    before = [*sys.path], [*sys.meta_path]
    yield tmp_path / "was_imported"
    assert (sys.path, sys.meta_path) == before


def with_module(proof: Path, module: str, line: str = "", folder: str = "scenarios") -> Path:
    """Return a scenario that names a module of its folder, or of another."""
    (proof.parent / folder).mkdir(exist_ok=True)
    (proof.parent / folder / f"{module}.py").write_text(ROUTER.format(proof=str(proof), line=line))
    (proof.parent / "scenarios").mkdir(exist_ok=True)
    pools = [{"name": "serve", "role": "both", "replicas": 2}]
    return write_scenario(proof.parent / "scenarios", cluster={"router": f"{module}:Mine", "pools": pools})


def check(scenario: Path, *options: str) -> Outcome:
    return invoke("check", scenario, "--baseline", scenario.parent / "none.json", *options)


def test_a_run_imports_modules_of_the_scenarios_own_folder(proof: Path) -> None:
    scenario = with_module(proof, "of_the_folder")
    assert invoke("run", scenario, "--out", proof.parent / "out", "--no-report").exit_code == 0
    assert proof.exists()


def test_a_module_imports_its_neighbors_and_no_namesake_of_an_installed_one(proof: Path) -> None:
    scenario = with_module(proof, "of_neighbors", "import a_neighbor, a_package.inner, yaml")
    (scenario.parent / "a_neighbor.py").touch()
    (scenario.parent / "yaml.py").write_text("raise SystemExit")
    (scenario.parent / "a_package").mkdir()
    (scenario.parent / "a_package" / "inner.py").touch()
    assert invoke("run", scenario, "--out", proof.parent / "out", "--no-report").exit_code == 0
    assert proof.exists()


def test_what_a_module_imports_while_it_runs_must_be_there(proof: Path) -> None:
    scenario = with_module(proof, "of_late")
    (scenario.parent / "a_late_neighbor.py").touch()
    module = scenario.parent / "of_late.py"
    module.write_text(f"{module.read_text()}\n    def pick(self, request, views):\n        import a_late_neighbor\n")
    outcome = invoke("run", scenario, "--out", proof.parent / "out")
    assert outcome.exit_code == 2
    assert "No module named 'a_late_neighbor'" in outcome.err


@pytest.mark.thorough
def test_workers_import_them_too(proof: Path) -> None:
    scenario = with_module(proof, "of_the_workers")
    command = [sys.executable, "-m", "simserve", "sweep", str(scenario), "--vary", "gpu=h100-sxm,h200-sxm"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "LOKY_MAX_CPU_COUNT": "2"}
    done = subprocess.run(command, cwd=proof.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["explain", "check"])
def test_what_reads_a_file_of_unknown_origin_imports_nothing(
    command: str, proof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"of_unknown_{command}"
    scenario = with_module(proof, module)
    monkeypatch.chdir(scenario.parent)
    outcome = invoke("explain", scenario) if command == "explain" else check(scenario)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err == (
        f"simserve: error: {scenario}:10: cluster.router: the module {module} may not be imported, as "
        f"importing runs it, got '{module}:Mine'; add --allow-plugin {module} if you trust it\n"
    )
    assert not proof.exists()
    options = ("--allow-plugin", module)
    allowed = invoke("explain", scenario, *options) if command == "explain" else check(scenario, *options)
    assert "may not be imported" not in allowed.err
    assert proof.exists()


def test_a_run_imports_no_module_from_elsewhere(proof: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = with_module(proof, "of_elsewhere", folder="elsewhere")
    monkeypatch.chdir(proof.parent / "elsewhere")
    assert "may not be imported" in invoke("run", scenario, "--out", proof.parent / "out").err
    assert "may not be imported" in invoke("run", scenario, "--set", "cluster.router=os:Mine").err
    assert not proof.exists()
    options = ("--allow-plugin", "of_elsewhere", "--out", proof.parent / "out", "--no-report")
    assert invoke("run", scenario, *options).exit_code == 0


def test_a_module_of_the_folder_with_the_name_of_another_is_not_taken_for_it(proof: Path) -> None:
    scenario = with_module(proof, "json")
    assert "the module json may not be imported" in invoke("run", scenario, "--out", proof.parent / "out").err
    assert not proof.exists()


def test_installed_packages_declare_their_plug_ins(proof: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = with_module(proof, "of_a_package", folder="site")
    metadata = proof.parent / "site" / "of_a_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-package\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(proof.parent / "site"))
    assert "may not be imported" in invoke("explain", scenario).err
    (metadata / "entry_points.txt").write_text(f"[{rule.GROUP}]\nrouters = of_a_package\n")
    assert invoke("explain", scenario).exit_code == 0


def test_from_python_everything_importable_is_allowed(proof: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = with_module(proof, "from_python", folder="elsewhere")
    monkeypatch.chdir(proof.parent / "elsewhere")
    assert load_scenario(scenario).cluster.router == {"kind": "from_python:Mine"}
    with pytest.raises(ScenarioError, match="the module __main__ has no class Mine"):
        load_scenario(scenario, overrides=["cluster.router=__main__:Mine"])
    with rule.limited_modules(), pytest.raises(ScenarioError, match="may not be imported"):
        load_scenario(scenario)


@pytest.mark.parametrize("line", ["raise SystemExit(0)", "import sys; sys.exit()"])
def test_a_module_that_exits_is_bad_input(line: str, proof: Path) -> None:
    scenario = with_module(proof, f"exits_{len(line)}", line)
    outcome = check(scenario, "--allow-plugin", f"exits_{len(line)}")
    assert outcome.exit_code == 2
    assert f"the module exits_{len(line)} cannot be imported (SystemExit: " in outcome.err


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_policy_that_exits_is_bad_input(command: str, proof: Path) -> None:
    scenario = with_module(proof, f"picks_{command}")
    module = scenario.parent / f"picks_{command}.py"
    module.write_text(f"{module.read_text()}\n    def pick(self, request, views):\n        raise SystemExit(0)\n")
    more = ("--update",) if command == "check" else ()
    options = ("--out", proof.parent / "out") if command == "run" else ("--baseline", proof.parent / "base.json", *more)
    outcome = invoke(command, scenario, "--allow-plugin", f"picks_{command}", *options)
    assert outcome.exit_code == 2, outcome.err
    assert f"{module}:" in outcome.err.splitlines()[-1] and "a plug-in must not exit" in outcome.err
    assert not (proof.parent / "base.json").exists()


def test_a_module_named_on_the_command_line_is_trusted(proof: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = with_module(proof, "on_the_line")
    monkeypatch.chdir(scenario.parent)
    assert invoke("catalog", "routers", "on_the_line:Mine").exit_code == 0
