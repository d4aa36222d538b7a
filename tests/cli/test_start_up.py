"""Start-up stays quick: held by what is imported, since a timed test is at the mercy of the machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"numpy", "pandas", "plotly", "pyarrow", "pydantic", "rich", "scipy", "simpy", "torch", "xlsxwriter", "yaml"}


CHAT_BURST = Path(__file__).parents[2] / "scenarios" / "chat_burst.yaml"


def modules_after(program: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after running `program`."""
    program += "\nimport sys\nprint('\\n' + ' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.splitlines()[-1].split()}


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_after("from simserve.cli.main import execute\nexecute(['--help'])")
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not modules_after("import simserve") & HEAVY


@pytest.mark.parametrize("first", ["import simserve.simulation", "from simserve import simulate", "import simserve"])
def test_simulate_is_the_function_whatever_was_imported_first(first: str) -> None:
    program = f"{first}\nimport simserve\nfrom simserve import simulate\n"
    program += "assert callable(simulate) and simserve.simulate is simulate, simulate"
    subprocess.run([sys.executable, "-c", program], check=True)


def threads_of_blas(**given: str) -> str:
    """Return the setting for numpy after a command, in the environment `given`."""
    program = "import os, sys\nfrom simserve.cli.main import main\nsys.argv = ['simserve', '--version']\nmain()\n"
    program += "print(os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"} | given
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[-1]


def test_numpy_has_one_thread_unless_the_user_says_otherwise() -> None:
    assert threads_of_blas() == "1"
    assert threads_of_blas(OPENBLAS_NUM_THREADS="2") == "2"


@pytest.mark.skipif(sys.platform != "linux" or (os.cpu_count() or 1) < 2, reason="counts threads of two cores in /proc")
def test_a_command_starts_no_thread_of_numpy() -> None:
    program = "import os, sys\nfrom simserve.cli.main import main\nsys.argv = ['simserve', '--help']\nmain()\n"
    program += "import numpy\nprint(len(os.listdir('/proc/self/task')))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "1"


def test_results_do_not_depend_on_the_threads_of_numpy(tmp_path: Path) -> None:
    files = []
    for n in ("1", "2", "4"):
        out = tmp_path / n
        command = [sys.executable, "-m", "simserve", "run", str(CHAT_BURST), "--out", str(out)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": n}
        subprocess.run([*command, "--set", "measure.replays=2"], env=environment, capture_output=True, check=True)
        summary = json.loads((out / "summary.json").read_text())
        del summary["wall_s"]
        files.append((summary, *(path.read_bytes() for path in sorted(out.glob("*.parquet")))))
    assert len(files[0]) == 6
    assert files[0] == files[1] == files[2]


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    import simserve

    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        _ = simserve.Simulator  # type: ignore[attr-defined]


def test_the_public_names_are_listed() -> None:
    import simserve

    assert set(simserve.__all__) <= set(dir(simserve))
