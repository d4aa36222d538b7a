"""Everything that is wrong with one scenario, and where each of it was written."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from simserve.errors import Problem, ScenarioError
from simserve.plugins.validation import Path, ValueProblem, dotted
from simserve.scenario.glossary import remedy_for_unknown


@dataclass
class ScenarioSource:
    """Where the values of a scenario were written: a file's lines, or options of the command line."""

    name: str
    """The file as the user named it."""
    lines: dict[Path, int] = field(default_factory=dict)
    options: dict[Path, str] = field(default_factory=dict)
    """`--set cluster.router=random` by the path that it sets."""

    def override(self, path: Path, option: str) -> None:
        """From now on, what stands at `path` and below was said by an option."""
        self.lines = {at: line for at, line in self.lines.items() if at[: len(path)] != path}
        self.options = {at: text for at, text in self.options.items() if at[: len(path)] != path}
        self.options[path] = option

    def place(self, path: Path, line: int | None = None) -> str:
        """Where a reader finds it: `file:line: path`, or the option that set it."""
        option = self._option(path)
        if option is not None:
            at, text = option
            return f"command line {text}" + ("" if at == path else f": {dotted(path)}")
        line = line or self.line(path)
        where = self.name if line is None else f"{self.name}:{line}"
        return f"{where}: {dotted(path)}" if path else where

    def order(self, path: Path) -> tuple[bool, int]:
        """Sorts by line, then by option."""
        option = self._option(path)
        if option is not None:
            return True, list(self.options).index(option[0])
        return False, self.line(path) or 0

    def has(self, path: Path) -> bool:
        """The value at this very path was written down."""
        return path in self.lines or path in self.options

    def line(self, path: Path) -> int | None:
        """The line of a value, or of the nearest thing around it that was written down."""
        return next((self.lines[at] for at in _upwards(path) if at in self.lines), None)

    def _option(self, path: Path) -> tuple[Path, str] | None:
        for at in _upwards(path):
            if at in self.options:
                return at, self.options[at]
            if at in self.lines:
                return None
            made = next((inner for inner in self.options if at and inner[: len(at)] == at), None)
            if made is not None:  # the option brought this key into being
                return made, self.options[made]
        return None


class Problems:
    """Collects flaws of a scenario; each is told once."""

    def __init__(self, source: ScenarioSource) -> None:
        self._source = source
        self._result: dict[tuple[Path, str], tuple[ValueProblem, int | None]] = {}
        self._of_options: list[Problem] = []

    def add(self, problem: ValueProblem, line: int | None = None) -> None:
        """Note one flaw; unknown keys get a remedy from the glossary."""
        if (
            problem.path
            and problem.path[-1] == "kind"
            and problem.kind == "value"
            and not self._source.has(problem.path)
        ):
            problem = replace(problem, path=problem.path[:-1])  # the user wrote a bare name
        if problem.kind == "unknown":
            problem = replace(problem, remedy=remedy_for_unknown(problem.path) or problem.remedy)
        self._result.setdefault((problem.path, problem.rule), (problem, line))

    def add_option(self, option: str, problem: ValueProblem) -> None:
        """Note an option that could not be read at all, and so has no path."""
        self._of_options.append(Problem(f"command line {option}", problem.rule, problem.value, problem.remedy))

    def extend(self, problems: Iterable[ValueProblem], below: Path = ()) -> None:
        """Note many flaws of the part at `below`."""
        for problem in problems:
            self.add(problem.below(below))

    def knows(self, path: Path) -> bool:
        """Something is wrong at this very path."""
        return any(at == path for at, _ in self._result)

    def touch(self, *paths: Path) -> bool:
        """Something at, above or inside one of these is wrong, so that what follows from it is not to be trusted."""
        return any(_overlap(at, path) for at, _ in self._result for path in paths)

    def has_unknown_key(self, path: Path) -> bool:
        """A key of the mapping at `path` is unknown, so that a default may stand where the user meant something."""
        return any(problem.kind == "unknown" and at[:-1] == path for (at, _), (problem, _) in self._result.items())

    def raise_if_any(self) -> None:
        """Raises ScenarioError with all mistakes."""
        if self._result or self._of_options:
            raise self.as_error()

    def as_error(self) -> ScenarioError:
        """All mistakes in the order of the file; the command line's come last."""
        in_order = sorted(self._result.values(), key=self._order)
        return ScenarioError([*(self._progress(problem, line) for problem, line in in_order), *self._of_options])

    def _order(self, result: tuple[ValueProblem, int | None]) -> tuple[bool, int]:
        problem, line = result
        return (False, line) if line is not None else self._source.order(problem.path)

    def _progress(self, problem: ValueProblem, line: int | None) -> Problem:
        return Problem(
            self._source.place(problem.path, line), problem.rule, problem.value, problem.remedy, problem.is_conflict
        )


def _upwards(path: Path) -> list[Path]:
    """The path itself, then what is around it, to the whole scenario."""
    return [path[:n] for n in range(len(path), -1, -1)]


def _overlap(one: Path, other: Path) -> bool:
    n = min(len(one), len(other))
    return one[:n] == other[:n]
