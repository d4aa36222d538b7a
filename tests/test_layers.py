"""Imports point down only: the floor plan of CONTRIBUTING.md, checked on every import statement."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "simserve"
ANYWHERE = {"allowed_modules", "errors", "forks", "input_files", "interruptions", "units", "__init__"}

# Imports allowed to each part beside itself and ANYWHERE. `workload.trace` allows that module alone.
ALLOWED: dict[str, set[str]] = {
    "cli": {
        "report",
        "simulation",
        "explain",
        "scenario",
        "plugins",
        "catalog",
        "metrics",
        "workload",
        "tables",
        "calibrate",
        "study",
    },
    "study": {"simulation", "scenario", "plugins", "catalog", "cost", "tables", "metrics", "workload"},
    "report": {"metrics"},
    "explain": {"scenario", "cost", "catalog", "workload.load"},
    "simulation": {
        "shards",
        "engine",
        "metrics",
        "scenario",
        "cost",
        "catalog",
        "tables",
        "workload.load",
        "workload.trace",
    },
    "shards": {"engine", "tables"},
    "metrics": {"tables", "plugins.validation"},
    "engine": {
        "scenario",
        "cost",
        "catalog",
        "state",
        "tables",
        "schedulers.base",
        "routers.base",
        "admission.base",
        "splitters.base",
        "workload.trace",
        "workload.dependencies",
    },
    "scenario": {
        "plugins",
        "catalog",
        "cost",
        "schedulers.base",
        "routers.base",
        "admission.base",
        "splitters.base",
        "workload.amounts",
        "workload.size",
    },
    "plugins": set(),
    "cost": {"catalog", "state.layer_blocks"},
    "calibrate": {"cost", "catalog", "tables"},
    "catalog": {"plugins.validation"},
    "schedulers": {"state"},
    "routers": {"state"},
    "admission": {"state"},
    "splitters": {"state"},
    "state": {"catalog.specs"},
    "workload": {"tables", "plugins"},
    "tables": set(),
    "allowed_modules": set(),
    "errors": set(),
    "forks": {"interruptions"},
    "interruptions": set(),
    "input_files": set(),
    "units": set(),
    "__init__": {"metrics", "scenario", "simulation"},
    "__main__": {"cli"},
}

# Parts that may import a heavy or far-reaching library.
OWNERS = {
    "simpy": {"engine"},
    "pyarrow": {"tables"},
    "plotly": {"report"},
    "typer": {"cli"},
    "scipy": {"calibrate", "study"},
    "torch": {"calibrate"},
    "xlsxwriter": {"report"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def test_a_file_imports_only_from_the_layers_below_it() -> None:
    for file in FILES:
        part = _part(file)
        allowed = ALLOWED[part] | ANYWHERE | {part}
        wrong = [name for name in _own_imports(file) if not _is_within(name, allowed)]
        assert not wrong, f"{file}: {part} must not import {wrong}"


def test_a_library_is_imported_only_by_the_part_that_owns_it() -> None:
    for file in FILES:
        libraries = {name.split(".")[0] for name, _ in _imports(file)}
        wrong = {library for library in libraries & OWNERS.keys() if _part(file) not in OWNERS[library]}
        assert not wrong, f"{file}: {_part(file)} must not import {wrong}"


@pytest.mark.parametrize("family", ["schedulers", "routers", "admission", "splitters"])
def test_a_policy_sees_only_the_state_and_its_own_base(family: str) -> None:
    for file in (PACKAGE / family).glob("*.py"):
        siblings = [name for name in _own_imports(file) if name.startswith(f"{family}.") and name != f"{family}.base"]
        assert not siblings, f"{file.name} imports its sibling {siblings}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty_names = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    assert not [file for file in PACKAGE.rglob("*") if file.stem in empty_names]


def test_commands_import_nothing_heavy_before_they_run() -> None:
    light = {"typer", "simserve"}
    for file in (PACKAGE / "cli").glob("*.py"):
        heavy = {name for name in _top_level_imports(file) if name.split(".")[0] not in light | sys.stdlib_module_names}
        inner = {name for name in _top_level_imports(file) if name.startswith("simserve.")}
        inner -= {"simserve.metrics.goal"}  # one number, in a module of its own so that it may be a default
        assert not heavy, f"{file.name} imports {heavy} at its top"
        assert all(name.startswith("simserve.cli") for name in inner), f"{file.name} imports {inner} at its top"


def test_the_tables_above_know_every_part_of_the_package() -> None:
    parts = {_part(file) for file in FILES}
    assert parts <= ALLOWED.keys(), f"say what {parts - ALLOWED.keys()} may import"


def test_a_wrong_import_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "from simserve import simulation\nfrom simserve.engine.cluster import Cluster\nimport simserve.cli.run\n"
    )
    assert list(_own_imports(file)) == ["simulation", "engine.cluster", "cli.run"]
    assert not _is_within("engine.cluster", ALLOWED["metrics"])
    assert not _is_within("workload.load", ALLOWED["engine"])
    assert _is_within("workload.trace", ALLOWED["engine"])


def _part(file: Path) -> str:
    """Return the top-level part of a file: `engine` for simserve/engine/replica.py."""
    relative = file.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _is_within(name: str, allowed: set[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in allowed)


def _own_imports(file: Path) -> Iterator[str]:
    """Return a file's imports from simserve, as `part.module`, anywhere in the file."""
    for name, members in _imports(file):
        if name == "simserve":
            yield from (member if member in ALLOWED else "__init__" for member in members)
        elif name.startswith("simserve."):
            inner = name.removeprefix("simserve.")
            whole_part = "." not in inner and (PACKAGE / inner).is_dir()
            modules = [m for m in members if whole_part and (PACKAGE / inner / f"{m}.py").exists()]
            yield from (f"{inner}.{module}" for module in modules)
            if not modules:
                yield inner


def _imports(file: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        yield from _named(node)


def _top_level_imports(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {name for node in body for name, _ in _named(node)}


def _named(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Return (module, names imported from it) of an import statement."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, []) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield node.module or "", [alias.name for alias in node.names]
