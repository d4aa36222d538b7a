"""The question of a sweep: its points, also from a file; its seeds and goal."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from simserve.errors import Problem, ScenarioError, SimserveError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.metrics.goal import GOAL_FRAC
from simserve.scenario import Scenario
from simserve.scenario.dump import flow
from simserve.scenario.template import Override, Template
from simserve.scenario.yaml_lines import NotYaml, read_yaml, scalar
from simserve.study.fleet import check_not_deterministic, gains_by_replicas, of_any_size
from simserve.study.sweep.points import MOST_RUNS, SweepAxis, SweepPoint, grid, resolved
from simserve.study.sweep.run import key_of

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


@dataclass(frozen=True)
class SweepQuestion:
    """Points, seeds and goal of a sweep; at least one point is valid."""

    points: tuple[SweepPoint, ...]
    n_seeds: int
    """Seeds shared by all points."""
    goal_frac: float = GOAL_FRAC
    effort: Effort = DEFAULT_EFFORT

    @classmethod
    def of(
        cls,
        template: Template,
        axes: Sequence[SweepAxis],
        listed: Sequence[tuple[Override, ...]],
        n_seeds: int,
        goal_frac: float,
        effort: Effort,
    ) -> "SweepQuestion":
        """Return the question about each combination. Raises SimserveError before anything runs."""
        points = resolved(template, grid(axes, listed, n_seeds))
        for point in points if n_seeds > 1 else ():
            if point.scenario is not None:
                check_not_deterministic(point.scenario, "--replications", n_seeds)
        return cls(points, n_seeds, goal_frac, effort)

    @property
    def first(self) -> Scenario:
        """Return the scenario of the first valid point."""
        return next(point.scenario for point in self.points if point.scenario is not None)

    @property
    def seeds(self) -> range:
        """Return the seeds that all points share."""
        return range(self.first.seed, self.first.seed + self.n_seeds)

    def key(self, place: int, at: int) -> str | None:
        """Return the key of a run by point and seed index; None for conflicting values."""
        scenario = self.points[place].scenario
        if scenario is None:
            return None
        if (place, at) not in self._known:
            self._known[place, at] = key_of(scenario, self.first.seed + at)
        return self._known[place, at]

    @cached_property
    def _known(self) -> dict[tuple[int, int], str]:
        """Return the cache of keys, as each takes a digest."""
        return {}

    @cached_property
    def smaller(self) -> Mapping[int, Sequence[int]]:
        """Return the points that differ from a point by fewer replicas alone, where more never make an SLO worse."""
        known = {place: point.scenario for place, point in enumerate(self.points) if point.scenario is not None}
        sizes = {place: each.cluster.pools[0].replicas for place, each in known.items()}
        if len(set(sizes.values())) == 1:
            return {}
        alike: dict[str, list[int]] = {}
        for place, scenario in known.items():
            alike.setdefault(of_any_size(scenario), []).append(place)
        groups = [group for group in alike.values() if len(group) > 1 and gains_by_replicas(known[group[0]])]
        return {a: [b for b in group if sizes[b] < sizes[a]] for group in groups for a in group}

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the keys of runs with shared seeds; identical points count once."""
        every = (self.key(place, at) for place in range(len(self.points)) for at in range(self.n_seeds))
        return frozenset(key for key in every if key is not None)
