"""Rules of the problems that a scenario may have, read from the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "simserve" / "scenario"

ELSEWHERE = {"cards", "draft", "machine", "memory", "server_errors"} | {
    *("_cap_slots", "_check_context", "_check_stated", "_check_tensor", "check_parallel"),
}
"""Modules and functions without mechanisms: what a machine holds and computes, and how a file is written."""


def rules() -> Iterator[str]:
    """Yield the rules, with {} for what they name."""
    for file in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            for call in calls if not {file.stem, function.name} & ELSEWHERE else []:
                if isinstance(call.func, ast.Attribute) and call.func.attr == "problem":
                    yield from _texts(call.args[1], function)


def _texts(value: ast.expr, function: ast.FunctionDef) -> Iterator[str]:
    """Yield what a text may be: as written, or as assigned to its name in the function."""
    if isinstance(value, ast.Constant):
        yield from [value.value] if isinstance(value.value, str) else []
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in value.values)
    elif isinstance(value, ast.Name):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                yield from _assigned(node, value.id, function)
    elif ast.unparse(value) != "str(error)":  # what is wrong with a file
        raise AssertionError(f"{function.name}: no rule can be read from {ast.unparse(value)}")


def _assigned(node: ast.Assign, name: str, function: ast.FunctionDef) -> Iterator[str]:
    """Yield what an assignment gives a name."""
    (target,) = node.targets
    pairs = [(target, node.value)]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = [*zip(target.elts, node.value.elts, strict=True)]
    for left, right in pairs:
        if isinstance(left, ast.Name) and left.id == name:
            yield from _texts(right, function)
