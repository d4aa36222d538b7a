"""The floor plan of CONTRIBUTING.md, checked on every import statement, and counts of form that may only fall."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "simserve"
ANYWHERE = {
    "allowed_modules",
    "errors",
    "forks",
    "input_files",
    "integers",
    "interruptions",
    "units",
    "version",
    "__init__",
}

# Imports allowed to each part beside itself and ANYWHERE. `workload.trace` allows that module alone.
ALLOWED: dict[str, set[str]] = {
    "cli": {
        "api",
        "report",
        "simulation",
        "explain",
        "scenario",
        "plugins",
        "catalog",
        "metrics",
        "workload",
        "tables",
        "lab",
        "study",
        "servers",
    },
    "api": {"servers", "lab", "study", "report", "simulation", "scenario", "metrics", "plugins.validation", "tables"},
    "servers": {
        "lab",
        "study",
        "report",
        "scenario",
        "catalog",
        "metrics",
        "tables",
        "workload",
    },
    "lab": {
        "study",
        "report",
        "simulation",
        "scenario",
        "plugins",
        "catalog",
        "cost",
        "metrics",
        "tables",
        "workload",
    },
    "study": {"simulation", "scenario", "plugins", "catalog", "cost", "tables", "metrics", "workload"},
    "report": {"metrics"},
    "explain": {"scenario", "cost", "catalog", "workload.load", "workload.trace"},
    "simulation": {
        "columns",
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
    "shards": {"columns", "engine", "state", "tables"},
    "columns": {"cost", "engine", "schedulers.base", "state"},
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
        "autoscalers.base",
        "workload.trace",
    },
    "scenario": {
        "plugins",
        "catalog",
        "cost",
        "schedulers.base",
        "routers.base",
        "admission.base",
        "splitters.base",
        "autoscalers.base",
        "tables.facts",
        "workload.amounts",
        "workload.size",
    },
    "plugins": set(),
    "cost": {"catalog", "state.layer_blocks", "tables.facts"},
    "catalog": {"plugins.validation"},
    "schedulers": {"state"},
    "routers": {"state"},
    "admission": {"state"},
    "splitters": {"state"},
    "autoscalers": {"state"},
    "state": {"catalog.layers"},
    "workload": {"tables", "plugins"},
    "tables": set(),
    "allowed_modules": set(),
    "errors": set(),
    "forks": {"interruptions"},
    "interruptions": set(),
    "input_files": set(),
    "integers": set(),
    "units": set(),
    "version": set(),
    "__init__": {
        "api",
        "metrics",
        "scenario",
        "simulation",
        "schedulers.base",
        "routers.base",
        "admission.base",
        "autoscalers.base",
    },
    "__main__": {"cli"},
}

# Parts that may import a heavy or far-reaching library.
OWNERS = {
    "simpy": {"engine"},
    "pyarrow": {"tables"},
    "plotly": {"report", "lab"},
    "typer": {"cli"},
    "scipy": {"lab", "study"},
    "torch": {"lab"},
    "xlsxwriter": {"report"},
    "optuna": {"servers"},
}

FILES = sorted(PACKAGE.rglob("*.py"))

# What no law measures doubles in days. Where a change makes a count fall, lower it here; none may rise.
RATCHETS = {
    "files over 250 lines": 13,
    "functions over 50 lines": 2,
    "files with one importer": 78,
    "circles of imports": 0,
    "literal keys in report, study, cli and lab": 597,
    "dictionaries in signatures": 196,
    "calls of isinstance": 266,
    "flags read in columns/replica.py": 18,
    "pages released in metrics": 8,
}

STATEMENTS: dict[str, int] = {
    "__init__": 47,
    "__main__": 2,
    "admission": 44,
    "allowed_modules": 53,
    "api": 413,
    "autoscalers": 569,
    "catalog": 1529,
    "cli": 1853,
    "columns": 3229,
    "cost": 2295,
    "engine": 3788,
    "errors": 43,
    "explain": 254,
    "forks": 27,
    "input_files": 78,
    "integers": 112,
    "interruptions": 17,
    "lab": 3958,
    "metrics": 4970,
    "plugins": 346,
    "report": 6205,
    "routers": 169,
    "scenario": 4149,
    "schedulers": 300,
    "servers": 1188,
    "shards": 145,
    "simulation": 308,
    "splitters": 40,
    "state": 2939,
    "study": 5578,
    "tables": 1395,
    "units": 26,
    "version": 1,
    "workload": 3170,
}
"""Most lines of each part that are neither blank, docstring, comment nor import. Only a new capability raises them."""

SHRUNK = 0.97
"""Share of its limit below which a part has shrunk for good."""


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


@pytest.mark.parametrize("family", ["schedulers", "routers", "admission", "splitters", "autoscalers"])
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
        inner -= {
            "simserve.metrics.goal",
            "simserve.api",
            "simserve.api.options",
        }  # numbers; it imports late
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


@pytest.mark.parametrize("name", RATCHETS)
def test_a_count_of_form_only_falls(name: str) -> None:
    now = COUNTS[name]()
    assert now <= RATCHETS[name], f"{name}: {now}; give the thing one form and one place instead"
    assert now == RATCHETS[name], f"{name}: {now}; lower it in RATCHETS, so that it stays"


def test_no_part_gains_statements() -> None:
    now = Counter(dict.fromkeys(STATEMENTS, 0))
    for file in FILES:
        now[_part(file)] += _n_statements(file)
    assert not {part: n for part, n in now.items() if n > STATEMENTS.get(part, 0)}, "say the same in fewer statements"
    assert not {part: n for part, n in now.items() if n < SHRUNK * STATEMENTS.get(part, 0)}, "lower these in STATEMENTS"


def test_no_folder_is_empty() -> None:
    folders = {file.parent for file in FILES} | {PACKAGE}
    empty = [
        each for each in PACKAGE.rglob("*") if each.is_dir() and each.name != "__pycache__" and not any(each.iterdir())
    ]
    alone = [each for each in folders if {file.name for file in each.iterdir()} <= {"__init__.py", "__pycache__"}]
    assert not empty + alone


def test_the_counts_see_what_they_count(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "from typing import Any\nRow = dict[str, Any]\n\n\ndef f(row: Row, n: int) -> dict[str, Any]:\n"
        '    """Text."""\n    # why\n    return row["a"] or row.get("b") or row[n]\n'
    )
    tree = ast.parse(file.read_text())
    assert sum(map(_is_literal_key, ast.walk(tree))) == 2
    assert sum(_n_dictionaries(node, {"Row"}) for node in ast.walk(tree)) == 2
    assert _n_statements(file) == 3


@cache
def _nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def _count(is_one: Callable[[ast.AST], object], *parts: str) -> int:
    """Count the nodes of some parts, or of all."""
    return sum(bool(is_one(node)) for file in FILES if not parts or _part(file) in parts for node in _nodes(file))


def _is_long(node: ast.AST) -> bool:
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return is_function and node.end_lineno - node.lineno >= 50  # type: ignore[attr-defined]


def _is_literal_key(node: ast.AST) -> bool:
    """Return whether a node reads a key that stands there: x["key"], x.get("key") or itemgetter("key")."""
    if isinstance(node, ast.Subscript):
        return _is_text(node.slice)
    called = getattr(node, "func", None)
    name = getattr(called, "attr", getattr(called, "id", ""))
    return isinstance(node, ast.Call) and name in ("get", "itemgetter") and bool(node.args) and _is_text(node.args[0])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _aliases() -> set[str]:
    """Return the names that stand for a dictionary: aliases and TypedDicts, and aliases of these."""
    names = {
        node.name for file in FILES for node in _nodes(file) if isinstance(node, ast.ClassDef) and _is_typed_dict(node)
    }
    given = [
        (node.targets[0].id, ast.unparse(node.value))
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    for _ in range(3):  # aliases of aliases
        names |= {name for name, value in given if _is_dictionary(value, names)}
    return names - {"Columns"}  # a table is no answer; these are 88 signatures


def _is_typed_dict(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base) == "TypedDict" for base in node.bases)


def _is_dictionary(annotation: str, aliases: set[str]) -> bool:
    has_any = re.search(r"(dict|Mapping)\[str, (Any|object)\]", annotation)
    return has_any is not None or bool(set(re.findall(r"\w+", annotation)) & aliases)


def _n_dictionaries(node: ast.AST, aliases: set[str]) -> int:
    """Count the arguments and results of a function that are dictionaries of anything, under whatever name."""
    if not isinstance(node, ast.FunctionDef):
        return 0
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotations = [each.annotation for each in arguments] + [node.returns]
    return sum(_is_dictionary(ast.unparse(each), aliases) for each in annotations if each is not None)


def _n_in_signatures() -> int:
    aliases = _aliases()
    parts = ("report", "study", "cli", "metrics", "lab")
    return sum(_n_dictionaries(node, aliases) for file in FILES if _part(file) in parts for node in _nodes(file))


def _n_flags() -> int:
    """Count the tests of an attribute of the replica itself, for truth or for None."""
    tests = []
    for node in _nodes(PACKAGE / "columns" / "replica.py"):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            tests.append(node.test)
        elif isinstance(node, ast.comprehension):
            tests += node.ifs
    parts = [each for test in tests for each in _parts_of(test)]
    return sum(isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self" for each in parts)


def _parts_of(test: ast.expr) -> list[ast.expr]:
    """Return what a condition tests, without its and, or, not, and None."""
    if isinstance(test, ast.BoolOp):
        return [each for value in test.values for each in _parts_of(value)]
    if isinstance(test, ast.UnaryOp):
        return _parts_of(test.operand)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot):
        return [test.left]
    return [test]


def _imported() -> dict[str, set[str]]:
    """Return the modules of the package that each of them imports, anywhere in its file."""
    names = {_module(file): file for file in FILES}
    wanted: dict[str, set[str]] = {}
    for name, file in names.items():
        every: set[str] = set()
        for module, members in _imports(file):
            modules = {f"{module}.{member}" for member in members} & names.keys()
            every |= modules if members and len(modules) == len(members) else {module, *modules}
        wanted[name] = (every & names.keys()) - {name}
    return wanted


def _module(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _n_imported_once() -> int:
    return sum(n == 1 for n in Counter(module for every in _imported().values() for module in every).values())


def _n_circles() -> int:
    """Count groups of modules that reach each other; TYPE_CHECKING counts."""
    reached = _imported()
    for middle in reached:
        for module in reached:
            if middle in reached[module]:
                reached[module] = reached[module] | reached[middle]
    return len(
        {
            frozenset(each for each in reached if module in reached[each] and each in reached[module])
            for module in reached
            if module in reached[module]
        }
    )


def _n_statements(file: Path) -> int:
    others = {
        line
        for node in _nodes(file)
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and _is_text(node.value))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in others for n, line in lines)


COUNTS: dict[str, Callable[[], int]] = {
    "files over 250 lines": lambda: sum(file.read_text(encoding="utf-8").count("\n") > 250 for file in FILES),
    "functions over 50 lines": lambda: _count(_is_long),
    "files with one importer": _n_imported_once,
    "circles of imports": _n_circles,
    "literal keys in report, study, cli and lab": lambda: _count(_is_literal_key, "report", "study", "cli", "lab"),
    "dictionaries in signatures": _n_in_signatures,
    "calls of isinstance": lambda: _count(
        lambda node: isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    ),
    "flags read in columns/replica.py": _n_flags,
    "pages released in metrics": lambda: sum(
        len(re.findall(r"\brelease\b|\bscratch\b", file.read_text(encoding="utf-8")))
        for file in FILES
        if _part(file) == "metrics"
    ),
}


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
    for node in _nodes(file):
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
