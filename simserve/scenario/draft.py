"""Draft: a section between parsing and resolving; Problems: what is wrong with it; ScenarioSource: its lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import eq
from pathlib import Path as FilePath
from typing import Any, TypeVar

from simserve import catalog, plugins
from simserve.catalog.hub import is_id
from simserve.errors import CatalogError, Problem, ScenarioError
from simserve.plugins.validation import Path, ValueProblem, dotted, shown
from simserve.scenario.cards import is_file

NamedT = TypeVar("NamedT")
T = TypeVar("T")


@dataclass
class ScenarioSource:
    """The places of a scenario's values: lines of a file, or command-line options."""

    name: str
    """The file's name as the user gave it."""
    lines: dict[Path, int] = field(default_factory=dict)
    options: dict[Path, str] = field(default_factory=dict)
    """Options such as `command line --set cluster.router=random` by the path that each sets."""

    def override(self, path: Path, option: str) -> None:
        """Attribute the value at `path`, and all below it, to an option."""
        self.lines = {at: line for at, line in self.lines.items() if at[: len(path)] != path}
        self.options = {at: text for at, text in self.options.items() if at[: len(path)] != path}
        self.options[path] = option

    def place(self, path: Path, line: int | None = None) -> str:
        """Return the place of a value for messages: `file:line: path`, or the option that set it."""
        option = self._option(path)
        if option is not None:
            at, text = option
            return text + ("" if at == path else f": {dotted(path)}")
        line = line or self.line(path)
        where = self.name if line is None else f"{self.name}:{line}"
        return f"{where}: {dotted(path)}" if path else where

    def order(self, path: Path) -> tuple[bool, int]:
        """Return a sort key: by line, then by option."""
        option = self._option(path)
        if option is not None:
            return True, list(self.options).index(option[0])
        return False, self.line(path) or 0

    def has(self, path: Path) -> bool:
        """Tell whether the value at exactly this path was written."""
        return path in self.lines or path in self.options

    def line(self, path: Path) -> int | None:
        """Return the line of a value, or of the nearest enclosing section that was written."""
        return next((self.lines[at] for at in _upwards(path) if at in self.lines), None)

    def _option(self, path: Path) -> tuple[Path, str] | None:
        for at in _upwards(path):
            if at in self.options:
                return at, self.options[at]
            if at in self.lines:
                return None
            made = next((inner for inner in self.options if at and inner[: len(at)] == at), None)
            if made is not None:  # the option created this key
                return made, self.options[made]
        return None


class Problems:
    """Collects the problems of a scenario; each is reported once."""

    def __init__(self, source: ScenarioSource) -> None:
        self._source = source
        self._problems: dict[tuple[Path, str], tuple[ValueProblem, int | None]] = {}
        self._of_options: list[Problem] = []

    def add(self, problem: ValueProblem, line: int | None = None) -> None:
        """Add one problem."""
        is_kind = problem.path[-1:] == ("kind",) and problem.kind == "value"
        if is_kind and not self._source.has(problem.path):  # the user wrote a bare name
            problem = replace(problem, path=problem.path[:-1])
        self._problems.setdefault((problem.path, problem.rule), (problem, line))

    def add_option(self, problem: Problem) -> None:
        """Add the problem of an option that could not be parsed, and so has no path."""
        self._of_options.append(problem)

    def extend(self, problems: Iterable[ValueProblem], below: Path = ()) -> None:
        """Add the problems of the section at `below`."""
        for problem in problems:
            self.add(problem.below(below))

    def knows(self, path: Path) -> bool:
        """Tell whether there is a problem at exactly this path."""
        return any(at == path for at, _ in self._problems)

    def touch(self, *paths: Path) -> bool:
        """Tell whether there is a problem at, above or below one of these paths."""
        return any(all(map(eq, at, path)) for at, _ in self._problems for path in paths)

    def has_unknown_key(self, path: Path) -> bool:
        """Tell whether the mapping at `path` has an unknown key, so that a default may hide the intended value."""
        return any(problem.kind == "unknown" and at[:-1] == path for (at, _), (problem, _) in self._problems.items())

    def __bool__(self) -> bool:
        return bool(self._problems or self._of_options)

    def as_error(self, remedy_for_unknown: Callable[[Path], str | None]) -> ScenarioError:
        """Return all problems in the order of the file; those of the command line come last. Unknown keys have the
        given remedy, where there is one."""
        in_order = sorted(self._problems.values(), key=self._order)
        located = []
        for problem, line in in_order:
            known = remedy_for_unknown(problem.path) if problem.kind == "unknown" else None
            place, remedy = self._source.place(problem.path, line), known or problem.remedy
            located.append(Problem(place, problem.rule, problem.value, remedy, problem.is_conflict))
        return ScenarioError([*located, *self._of_options])

    def _order(self, entry: tuple[ValueProblem, int | None]) -> tuple[bool, int]:
        problem, line = entry
        return (False, line) if line is not None else self._source.order(problem.path)


@dataclass(frozen=True)
class Draft:
    """A section of a scenario between parsing and resolving; paths are below it, and all sections share the rest."""

    problems: Problems
    folders: tuple[FilePath, ...]
    """Folders to look up relative paths in, in this order."""
    origins: dict[Path, str] = field(default_factory=dict)
    """Origins of values that are neither the user's nor a field's default."""
    replaced: dict[Path, str] = field(default_factory=dict)
    """Origins of values that stand for those that the user gave."""
    notes: dict[Path, str] = field(default_factory=dict)
    """What of the files that sections name is not simulated."""
    at: Path = ()
    """The path of the section."""

    def below(self, *keys: str | int) -> "Draft":
        """Return the section at these keys."""
        return Draft(self.problems, self.folders, self.origins, self.replaced, self.notes, (*self.at, *keys))

    @property
    def root(self) -> "Draft":
        """The whole scenario."""
        return Draft(self.problems, self.folders, self.origins, self.replaced, self.notes)

    def problem(self, path: Path, rule: str, value: object = None, remedy: str | None = None) -> None:
        """Report values that do not fit together; None leaves the value out of the message."""
        text = None if value is None else shown(value)
        self.problems.add(ValueProblem((*self.at, *path), rule, text, remedy, is_conflict=True))

    def set_origin(self, path: Path, origin: str) -> None:
        """Record the origin of a value."""
        self.origins[*self.at, *path] = origin

    def touched(self, *keys: str | int) -> bool:
        """Tell whether there is a problem at one of these keys; without keys, anywhere in the section."""
        return self.problems.touch(*[(*self.at, key) for key in keys] or [self.at])

    def spelled_out(self, family: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a plug-in with all its arguments, or as it is after reporting its problems."""
        policy, problems = plugins.check(family, spec)
        self.problems.extend(problems, self.at)
        return spec if policy is None else {"kind": spec["kind"], **plugins.spelled_out(policy)}

    def looked_up(self, load: Callable[[NamedT], T], named: NamedT) -> T | None:
        """Return the catalog entry that the section names, or None after reporting the error."""
        if self.touched():
            return None
        try:
            return load(named)
        except CatalogError as error:
            self.problems.add(ValueProblem(self.at, str(error)))
            return None

    def find_file(self, written: str) -> FilePath | None:
        """Return the absolute path of a file next to the scenario, else in the current directory."""
        path = FilePath(written).expanduser()
        candidates = (folder / path for folder in self.folders)  # an absolute path replaces the folder
        return next((file.resolve() for file in candidates if file.is_file()), None)

    def absolute(self, written: str) -> str:
        """Return the absolute path of a file, or the text as it is where there is none."""
        return str(self.find_file(written) or written)

    def absolute_model(self, name: str) -> str:
        """Return a catalog name or an id of the hub as it is, and the path of an existing config.json made absolute."""
        return self.absolute(name) if name.endswith(".json") or ("/" in name and not is_id(name)) else name

    def absolute_gpu(self, name: str) -> str:
        """Return a name as the catalog has it, and the path of an existing card file made absolute."""
        return self.absolute(name) if is_file(name) else catalog.gpu_name(name)

    def looked_in(self) -> str:
        """List the folders that `find_file` tries, for messages."""
        return " and ".join(dict.fromkeys(str(folder) for folder in self.folders))


def leaves(data: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield every value that is not a mapping, with its path; a list of plain values is one value."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        for index, item in enumerate(data):
            yield from leaves(item, (*path, index))
    else:
        yield path, data


def _upwards(path: Path) -> list[Path]:
    """Return the path and its enclosing paths, up to the whole scenario."""
    return [path[:n] for n in range(len(path), -1, -1)]
