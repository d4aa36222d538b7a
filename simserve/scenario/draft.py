"""Draft: a scenario between parsing and resolving, with its problems so far and the origins of its values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

from simserve import plugins
from simserve.errors import CatalogError
from simserve.plugins.validation import Path, ValueProblem, shown
from simserve.scenario.cards import is_file
from simserve.scenario.models import Experiment
from simserve.scenario.problems import Problems

T = TypeVar("T")


@dataclass
class Draft:
    """The state that the steps of resolving share."""

    scenario: Experiment
    problems: Problems
    folders: tuple[FilePath, ...]
    """Folders to look up relative paths in, in this order."""
    origins: dict[Path, str] = field(default_factory=dict)
    """Origins of values that are neither the user's nor a field's default."""
    replaced: dict[Path, str] = field(default_factory=dict)
    """Origins of values that stand for those that the user gave."""

    def problem(self, path: Path, rule: str, value: object = None, remedy: str | None = None) -> None:
        """Report values that do not fit together; None leaves the value out of the message."""
        self.problems.add(ValueProblem(path, rule, None if value is None else shown(value), remedy, is_conflict=True))

    def spelled_out(self, family: str, spec: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return a plug-in with all its arguments, or as it is after reporting its problems."""
        policy, problems = plugins.check(family, spec)
        self.problems.extend(problems, path)
        return spec if policy is None else {"kind": spec["kind"], **plugins.spelled_out(policy)}

    def looked_up(self, path: Path, look_up: Callable[[], T]) -> T | None:
        """Return a catalog entry, or None after reporting the error at `path`."""
        if self.problems.touch(path):
            return None
        try:
            return look_up()
        except CatalogError as error:
            self.problems.add(ValueProblem(path, str(error)))
            return None

    def find_file(self, written: str) -> FilePath | None:
        """Return the absolute path of a file next to the scenario, else in the current directory."""
        path = FilePath(written).expanduser()
        candidates = (folder / path for folder in self.folders)  # an absolute path replaces the folder
        return next((file.resolve() for file in candidates if file.is_file()), None)

    def absolute_gpu(self, name: str) -> str:
        """Return a catalog name as it is, and the path of an existing card file made absolute."""
        file = self.find_file(name) if is_file(name) else None
        return name if file is None else str(file)

    def looked_in(self) -> str:
        """List the folders that `find_file` tries, for messages."""
        return " and ".join(dict.fromkeys(str(folder) for folder in self.folders))
