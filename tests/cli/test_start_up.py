"""Start-up stays quick: held by what is imported, since a timed test is at the mercy of the machine."""

import subprocess
import sys

import pytest

HEAVY = {"numpy", "pandas", "plotly", "pyarrow", "pydantic", "rich", "scipy", "simpy", "torch", "xlsxwriter", "yaml"}


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


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    import simserve

    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        _ = simserve.Simulator  # type: ignore[attr-defined]


def test_the_public_names_are_listed() -> None:
    import simserve

    assert set(simserve.__all__) <= set(dir(simserve))
