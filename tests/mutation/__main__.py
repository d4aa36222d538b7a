"""python -m tests.mutation simserve/state --n 50 --seed 0: break modules in small ways; list what no test caught.

Each fault goes into a copy of the checkout, where the tests of the same folder, or of `--tests`, run until the first
failure.
"""

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
MOST_S = 300
"""Time of a test run after which a fault counts as caught: it made the code run on."""

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}


def faults(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Yield each fault of a module as its line and kind, and the module with it."""
    nodes = list(ast.walk(tree))
    for place, node in enumerate(nodes):
        for kind in _kinds(node):
            broken = deepcopy(tree)
            target = list(ast.walk(broken))[place]
            _break(broken, target, kind)
            yield f"{getattr(node, 'lineno', 0)}: {kind} in `{ast.unparse(node).splitlines()[0][:70]}`", broken


def _kinds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "comparison"
    if isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        yield "operator"
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "constant"
    if isinstance(node, ast.Return) and node.value is not None:
        yield "result"
    if isinstance(node, ast.Break | ast.Continue):
        yield "jump"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out"


def _break(tree: ast.Module, node: ast.AST, kind: str) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = int(str(node.value)) + 1
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    else:
        new: ast.stmt = ast.Pass() if isinstance(node, ast.Expr) else SWAPS[type(node)]()
        for parent in ast.walk(tree):
            for _, body in ast.iter_fields(parent):
                if isinstance(body, list) and node in body:
                    body[body.index(node)] = new
    ast.fix_missing_locations(tree)


def _is_caught(checkout: Path, module: Path, broken: ast.Module, tests: list[str]) -> bool:
    """Return whether a test fails with the fault."""
    before = (checkout / module).read_text(encoding="utf-8")
    (checkout / module).write_text(ast.unparse(broken), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {"PYTHONPATH": str(checkout), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, timeout=MOST_S, check=False)
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        (checkout / module).write_text(before, encoding="utf-8")


def main() -> int:
    """Try the faults of modules; return 1 where fewer than 95% were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("place", type=Path, help="a module, or a folder of modules, such as simserve/state")
    parser.add_argument("--n", type=int, help="number of faults, drawn from all [default: all]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", help="tests to run [default: the folder of the same name]")
    arguments = parser.parse_args()
    place = (ROOT / arguments.place).resolve()
    modules = [place] if place.is_file() else sorted(place.rglob("*.py"))
    every = [
        (module.relative_to(ROOT), *fault)
        for module in modules
        for fault in faults(ast.parse(module.read_text(encoding="utf-8")))
    ]
    tried = every if arguments.n is None else Random(arguments.seed).sample(every, min(arguments.n, len(every)))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        for part in ("simserve", "calibration", "scenarios", "traces", "tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            checkout.mkdir(exist_ok=True)
            copy(ROOT / part, checkout / part)
        for module, label, broken in tried:
            tests = arguments.tests or [f"tests/{module.parts[1]}"]
            if not _is_caught(checkout, module, broken, tests):
                missed += 1
                print(f"{module}:{label}", flush=True)
    print(f"{len(tried) - missed} of {len(tried)} faults caught ({len(every)} in all)")
    return 1 if missed > 0.05 * len(tried) else 0


if __name__ == "__main__":
    raise SystemExit(main())
