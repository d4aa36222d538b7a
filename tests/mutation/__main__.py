"""python -m tests.mutation simserve/state --n 50 --seed 0: break modules in small ways; list what no test caught.

The tests of the same folder, or of `--tests`, are collected once. Each fault goes into the code of a copy of this
process, which runs those of each file that calls the broken function until the first failure: first the tests that
caught the faults before, then those that call it. Random cases are the same for each fault.
"""

import argparse
import ast
import gc
import json
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from time import process_time
from types import CodeType, FrameType, FunctionType

import pytest
from _pytest.main import pytest_runtestloop

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 4 * 2**30
"""Memory of a test run; a fault may fill all of it."""

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


@dataclass(frozen=True)
class Fault:
    """A module with a fault."""

    module: Path
    label: str
    """Line and kind."""
    place: int
    """Number of the node among all that `ast.walk` yields."""
    kind: str
    function: tuple[str, int] | None
    """Name and first line of the function or method whose body has it; None outside of functions."""

    def code(self) -> CodeType:
        """Return the code of the module."""
        tree = ast.parse(self.module.read_text(encoding="utf-8"))
        _break(tree, list(ast.walk(tree))[self.place], self.kind)
        return compile(tree, self.module, "exec", dont_inherit=True)

    def is_put_in_place(self) -> bool:
        """Give its code to the function, wherever that is used; return whether it was there and could take it."""
        live = [each for each in gc.get_objects() if isinstance(each, FunctionType) and self._is_in(each.__code__)]
        new = next((each for each in _inner(self.code()) if self._is_in(each)), None)
        if new is None or not live or any(each.__code__.co_freevars != new.co_freevars for each in live):
            return False
        for each in live:
            each.__code__ = new
        return True

    def _is_in(self, code: CodeType) -> bool:
        return self.function == (code.co_qualname, code.co_firstlineno) and code.co_filename == str(self.module)


def _inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inner(constant)


def faults(module: Path) -> list[Fault]:
    """Return all faults of a module."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    without_effect, functions = set(_without_effect(tree)), dict(_functions(tree, ""))
    result = []
    for place, node in enumerate(ast.walk(tree)):
        for kind in _kinds(node) if node not in without_effect else ():
            label = f"{getattr(node, 'lineno', 0)}: {kind} in `{ast.unparse(node).splitlines()[0][:70]}`"
            result.append(Fault(module, label, place, kind, functions.get(node)))
    return result


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, tuple[str, int]]]:
    """Yield each node in the body of a function or method, with the name and first line of that."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            first_line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            for statement in node.body:
                yield from ((inner, (f"{prefix}{node.name}", first_line)) for inner in ast.walk(statement))


def _without_effect(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what matters to no caller: type hints, the text of errors, `repr`, and what only type checkers read."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node] if node.name == "__repr__" else [node.returns]
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            parts = [node]
        for part in parts:
            yield from ast.walk(part) if part is not None else ()


def _kinds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "comparison"
    if isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        yield "operator"
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "constant"
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "result"
    if isinstance(node, ast.Break | ast.Continue):
        yield "jump"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out"


def _break(tree: ast.Module, node: ast.AST, kind: str) -> None:
    if kind == "comparison" and isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = int(str(node.value)) + 1
    elif isinstance(node, ast.Return):
        is_truth = isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool)  # None is false, too
        node.value = ast.UnaryOp(ast.Not(), node.value) if is_truth and node.value else ast.Constant(None)
    else:
        new: ast.stmt = ast.Pass() if isinstance(node, ast.Expr) else SWAPS[type(node)]()
        for parent in ast.walk(tree):
            for _, body in ast.iter_fields(parent):
                if isinstance(body, list) and node in body:
                    body[body.index(node)] = ast.copy_location(new, node)
    ast.fix_missing_locations(tree)


class SameCases:
    """Plugin of pytest: random cases are the same in each run, and those that fail are not made smaller."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Replace the settings of conftest.py."""
        from hypothesis import Phase, settings  # once pytest has made its assertions readable

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings(), phases=phases, derandomize=True, database=None)
        settings.load_profile("mutation")


class Mutation(SameCases):
    """Plugin of pytest that runs the collected tests once for each fault, in a process each."""

    def __init__(self, tried: Sequence[Fault], again: Sequence[str]) -> None:
        self.tried = tried
        self.again = again
        """Arguments of a process that breaks a module while it imports it, without the number of the fault."""
        self.missed: list[Fault] = []
        self._told = TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        """What a test run tells the first process: the test that failed, or what each calls."""
        self._calls: dict[str, list[str]] = {}
        """Functions of the modules that each test calls."""
        self._cpu_s: dict[str, float] = {}
        """Processor time of each test."""
        self._test = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every fault."""
        if self._is_caught(session, None):
            raise pytest.UsageError("the tests must pass where there is no fault")
        self._calls, self._cpu_s = json.loads(self._read())
        every = [*session.items]
        for number, fault in enumerate(self.tried):
            session.items = self._of(fault, every)
            if self._is_caught(session, number):
                caught_by = self._read()
                every.sort(key=lambda item: item.nodeid != caught_by)
            else:
                self.missed.append(fault)
                print(f"{fault.module.relative_to(ROOT)}:{fault.label}", flush=True)
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which test runs."""
        self._test, self._cpu_s[nodeid] = nodeid, process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note how long it took."""
        self._cpu_s[nodeid] = process_time() - self._cpu_s[nodeid]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the first process which test failed."""
        if report.failed:
            self._told.write(report.nodeid)
            self._told.flush()

    def _of(self, fault: Fault, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the tests of each file that calls the function of a fault, those first that call it themselves."""
        if fault.function is None:
            return items
        name = _name(str(fault.module), *fault.function)
        calling = [item for item in items if name in self._calls.get(item.nodeid, ())]
        files = {item.path for item in calling}
        return calling + [item for item in items if item.path in files and item not in calling]

    def _is_caught(self, session: pytest.Session, number: int | None) -> bool:
        """Return whether a test fails with a fault."""
        self._told.seek(0)
        self._told.truncate()
        child = os.fork()
        if not child:
            self._run(session, number)
        return os.waitpid(child, 0)[1] != 0

    def _read(self) -> str:
        self._told.seek(0)
        return self._told.read()

    def _run(self, session: pytest.Session, number: int | None) -> None:
        """Run the tests with a fault, and end the process."""
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        session.config.pluginmanager.unregister(name="terminalreporter")
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        status = 1
        with suppress(BaseException):
            if number is None:
                calls = self._record()
                pytest_runtestloop(session)
                sys.setprofile(None)
                self._told.write(json.dumps([{test: [*names] for test, names in calls.items()}, self._cpu_s]))
                self._told.flush()
            else:
                usual_s = sum(self._cpu_s[item.nodeid] for item in session.items)
                most_s = int(5 + 3 * usual_s)  # a fault that makes the code run on is caught
                resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
                if not self.tried[number].is_put_in_place():
                    os.execv(sys.executable, [sys.executable, "-m", "tests.mutation", *self.again, f"--fault={number}"])
                pytest_runtestloop(session)
            status = 1 if session.testsfailed else 0
        os._exit(status)

    def _record(self) -> dict[str, set[str]]:
        """Return a table, filled from now on, of the functions of the modules that each test calls."""
        paths = {str(fault.module) for fault in self.tried}
        calls: dict[str, set[str]] = defaultdict(set)

        def note(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename in paths:
                calls[self._test].add(_name(code.co_filename, code.co_qualname, code.co_firstlineno))

        sys.setprofile(note)
        return calls


def _name(path: str, function: str, line: int) -> str:
    return f"{path}:{line}:{function}"


def _import_with(fault: Fault) -> None:
    """Let the module be imported with its fault."""
    honest = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        return fault.code() if self.path == str(fault.module) else honest(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def main() -> int:
    """Try the faults of modules; return 1 where fewer than 95% were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("place", type=Path, help="a module, or a folder of modules, such as simserve/state")
    parser.add_argument("--n", type=int, help="number of faults, drawn from all [default: all]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", help="tests to run [default: the folder of the same name]")
    parser.add_argument("--fault", type=int, help="run the tests once, with this one of them")
    arguments = parser.parse_args()
    place = (ROOT / arguments.place).resolve()
    modules = [place] if place.is_file() else sorted(place.rglob("*.py"))
    every = [fault for module in modules for fault in faults(module)]
    tried = every if arguments.n is None else Random(arguments.seed).sample(every, min(arguments.n, len(every)))
    tests = arguments.tests or [f"tests/{place.relative_to(ROOT).parts[1]}"]
    options = ["-q", "-x", "-n", "0", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *tests]
    if arguments.fault is not None:
        _import_with(tried[arguments.fault])
        return int(pytest.main(options, [SameCases()]))
    mutation = Mutation(tried, sys.argv[1:])
    if pytest.main(options, [mutation]) not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return 2
    n_missed = len(mutation.missed)
    print(f"{len(tried) - n_missed} of {len(tried)} faults caught ({len(every)} in all)")
    return 1 if n_missed > 0.05 * len(tried) else 0


if __name__ == "__main__":
    raise SystemExit(main())
