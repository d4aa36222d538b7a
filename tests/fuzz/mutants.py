"""Mutants: one to three faults in a tree of values, or in the bytes of a file."""

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "0", "1e3", "a\0b", "é\u2028", "=1+1", "../..", "/dev/zero", "os:Mine", "{}", "none"),
    *(0, 1, -1, 2, 3, 7, 16, 1000, 2**31, 2**63, -(2**63), 10**30),
    *(0.5, 1e-9, 1e-308, -1e-308, 1e308, -1e308, 1e15, math.inf, -math.inf, math.nan),
    *([], {}, [None], [[]], [1, 2], {"kind": "x"}, {"kind": None}, [{}], ["x"] * 50),
)
"""Values that a place in a file may hold by mistake."""

TEXTS = ("", "x", "auto", "4096", "2.5", "1e3", "true", "null", "float32", "a\0b", "é\u2028")

FACTORS = (-1, 0.1, 0.5, 2, 10, 1e3, 1e9)

Place = tuple[Any, ...]


def mutant(tree: Any, random: Random) -> Any:
    """Return a copy of a tree of lists and mappings with one to three faults."""
    tree = deepcopy(tree)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = [path for path in _places(tree, ()) if path]
        if places:
            _spoil(tree, random.choice(places), random)
    return tree


def typed(tree: Any, random: Random) -> Any:
    """Return a copy of a tree in which one to three places, at any depth, hold a value of a drawn JSON type."""
    tree = deepcopy(tree)
    for _ in range(random.choice((1, 1, 2, 3))):
        path = _walk(tree, random)
        if path:
            _at(tree, path[:-1])[path[-1]] = json_value(random)
    return tree


def json_value(random: Random, levels: int = 2) -> Any:
    """Draw a value of one of JSON's own types: numbers of all sizes, whole ones as floats too, lists inside lists."""
    whole = random.choice((-1, 1)) * random.getrandbits(random.choice((0, 1, 3, 7, 15, 31, 64, 100)))
    size = random.choice((-1, 1)) * 10.0 ** random.uniform(-320, 308)
    scalars = (None, random.random() < 0.5, whole, float(whole), random.randrange(99) + 0.5, size, random.choice(TEXTS))
    kind = random.choice(("list", "object", *scalars) if levels else scalars)
    if kind not in ("list", "object"):
        return kind
    items = [json_value(random, levels - 1) for _ in range(random.choice((0, 1, 2)))]
    return items * random.choice((1, 1, 16, 32)) if kind == "list" else dict(zip(TEXTS, items, strict=False))


def spoilt(content: bytes, random: Random) -> bytes:
    """Return the bytes of a file with one to three faults."""
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(content) + 1)
        length = random.choice((1, 1, 4, 100))
        fault = random.choice((random.randbytes(length), b"[" * 200, b"9" * 5000, b"\n", b",", b'"', b"\0", b""))
        content = random.choice((content[:at] + fault + content[at + length :], content[:at] + fault + content[at:]))
        if random.random() < 0.1:
            content = content[:at]
    return content


def write_json(file: Path, tree: Any, random: Random) -> None:
    """Write a mutant of a tree as JSON, some with spoilt bytes."""
    content = json.dumps(random.choice((mutant, typed))(tree, random)).encode()
    file.write_bytes(spoilt(content, random) if random.random() < 0.2 else content)


def _spoil(tree: Any, path: Place, random: Random) -> None:
    parent = _at(tree, path[:-1])
    key, value = path[-1], parent[path[-1]]
    fault = random.choice(
        ("value", "value", "value", "type", "type", "factor", "factor", "remove", "rename", "copy", "wrap")
    )
    if fault == "factor" and isinstance(value, int | float) and not isinstance(value, bool):
        factor = random.choice(FACTORS)
        parent[key] = type(value)(value * factor) if math.isfinite(value * factor) else value
    elif fault == "type":
        parent[key] = json_value(random)
    elif fault == "remove":
        del parent[key]
    elif fault == "rename" and isinstance(parent, dict):
        parent[random.choice((f"{key}s", str(key)[:-1], str(key).upper(), "", "kind"))] = parent.pop(key)
    elif fault == "copy":
        parent[key] = deepcopy(_at(tree, random.choice(list(_places(tree, ())))))
    elif fault == "wrap":
        parent[key] = random.choice(([value], {"kind": value}, {key: value}, json.dumps(value, default=str)))
    else:
        parent[key] = deepcopy(random.choice(VALUES))


def _walk(tree: Any, random: Random) -> Place:
    """Draw a place level by level, so that a long list is as likely as a key beside it."""
    path: Place = ()
    while isinstance(tree, dict | list) and tree and (not path or random.random() < 0.7):
        key = random.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        path, tree = (*path, key), tree[key]
    return path


def _places(tree: Any, path: Place) -> Iterator[Place]:
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from _places(value, (*path, key))


def _at(tree: Any, path: Place) -> Any:
    for key in path:
        tree = tree[key]
    return tree
