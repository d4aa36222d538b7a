"""Points from CSV, parquet or YAML: columns are scenario keys; an empty cell changes nothing."""

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from simserve.errors import Problem, ScenarioError, SimserveError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.scenario.dump import flow
from simserve.scenario.template import Override
from simserve.scenario.yaml_lines import NotYaml, read_yaml, scalar
from simserve.study.sweep.points import MOST_RUNS

PointRow = tuple[str, Mapping[str, Any]]
"""Place in the file, and values by key."""


def read_points(path: Path) -> list[tuple[Override, ...]]:
    """Return the overrides of each point; raise SimserveError."""
    readers = {".csv": _csv, ".parquet": _parquet, ".yaml": _yaml, ".yml": _yaml}
    if path.suffix not in readers:
        raise _problem(path, "must end in .csv, .parquet or .yaml", None, "save it as one of these")
    try:
        rows = list(readers[path.suffix](path))
    except FileNotFoundError:
        raise _problem(path, "there is no such file", None, "name a file with scenario keys as columns") from None
    except OSError as error:
        raise _problem(path, f"cannot be read: {error.strerror or error}", None, None) from None
    except csv.Error as error:
        raise _problem(path, f"is not CSV: {error}", None, "is a quote left open?") from None
    except UnicodeDecodeError as error:
        raise _problem(path, f"is not UTF-8 text (byte {error.start})", None, None) from None
    if not rows:
        raise _problem(path, "needs at least one point", None, "a row each, columns such as cluster.pools.0.replicas")
    of_row = "command line --points {}: {}={}"
    return [
        tuple(Override(of_row.format(where, key, flow(v)), _keys(key, where), v) for key, v in values.items())
        for where, values in rows
    ]


def _keys(key: str, where: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in str(key).split("."))
    if not all(parts):
        rule = "columns must be keys of the scenario"
        raise ScenarioError([Problem(where, rule, f"'{key}'", "for example cluster.pools.0.replicas")])
    return parts


def _csv(path: Path) -> Iterable[PointRow]:
    rows = csv.DictReader(StringIO(_text(path), newline=""))
    for row in rows:
        where = f"{path} line {rows.line_num}"
        if None in row or None in row.values():
            rule = f"must have {len(rows.fieldnames or ())} cells, as the first line"
            raise ScenarioError([Problem(where, rule, None, "quote cells that hold commas")])
        yield where, {key: _cell(text, where) for key, text in row.items() if text.strip()}


def _text(path: Path) -> str:
    return read_file(path, SCENARIO_BYTES).decode("utf-8-sig")


def _cell(text: str, where: str) -> Any:
    try:
        return scalar(text)
    except NotYaml as error:
        raise ScenarioError([Problem(where, f"a cell {error.rule}", text, "quote it")]) from None


def _parquet(path: Path) -> Iterable[PointRow]:
    from simserve.tables.foreign import read_columns

    if not path.is_file():
        raise FileNotFoundError
    columns, _ = read_columns(path, lambda _: "value", MOST_RUNS)
    n_characters = sum(len(cell) for column in columns.values() for cell in column if isinstance(cell, str))
    if n_characters > SCENARIO_BYTES:
        rule = f"must have at most {SCENARIO_BYTES // 2**20} MiB of text"
        raise _problem(path, rule, f"{n_characters / 2**20:,.4g} MiB", "shorten its cells")
    for row, cells in enumerate(zip(*columns.values(), strict=True)):
        values = dict(zip(columns, cells, strict=True))
        yield f"{path} row {row}", {key: value for key, value in values.items() if value is not None and value == value}


def _yaml(path: Path) -> Iterable[PointRow]:
    try:
        document = read_yaml(_text(path))
    except NotYaml as error:
        raise SimserveError(f"{path}{'' if error.line is None else f':{error.line}'}: {error.rule}") from None
    if document.problems:
        problem, line = document.problems[0]
        raise SimserveError(f"{path}:{line}: {problem}")
    data = document.data
    if not isinstance(data, list) or not all(isinstance(point, Mapping) for point in data):
        raise _problem(path, "must be a list of points, each a mapping of keys to values", None, "- gpu: h100-sxm")
    for row, point in enumerate(data):
        yield f"{path}:{document.lines.get((row,))}", point


def _problem(path: Path, rule: str, value: str | None, remedy: str | None) -> ScenarioError:
    return ScenarioError([Problem(f"command line --points {path}", rule, value, remedy)])
